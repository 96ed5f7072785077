// Sends the key of an operator's link once, and shows the dashboard if the server takes it.
"use strict";

async function logIn() {
  const found = location.hash.match(/^#operator=([0-9a-f]{64})$/);
  if (!found) return;
  const answer = await fetch("/login", {method: "POST", headers: {"X-Stratolog-Key": found[1]}});
  if (answer.ok) location.reload();
  else document.getElementById("login").textContent = await answer.text();
}

logIn();
