"use strict";
// The page is made by the server: this script puts panels in their places, opens dialogs, and proves who an operator is.

const byId = (id) => document.getElementById(id);
const KEY = "stratolog-operator";
const THEMES = ["system", "light", "dark"];
const SILENT_MS = 5000;

// -- panels ---------------------------------------------------------------------------------------------------------

let heardMs = Date.now();
let refusal = "";
let leads = false;
const shown = {};

function take(panels) {
  heardMs = Date.now();
  for (const [id, html] of Object.entries(panels)) {
    if (shown[id] !== html) put(id, html);
    shown[id] = html;
  }
}

function put(id, html) {
  const place = byId(id);
  if (!place) return;
  // What has the focus, and what is unfolded, stay so: the elements are replaced, their ids are not.
  const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
  const folded = [...place.querySelectorAll("details[id]:not([open])")].map((one) => one.id);
  const unfolded = [...place.querySelectorAll("details[id][open]")].map((one) => one.id);
  const scrolled = place.scrollTop;
  place.innerHTML = html;
  for (const one of folded) byId(one)?.removeAttribute("open");
  for (const one of unfolded) byId(one)?.setAttribute("open", "");
  place.scrollTop = scrolled;
  if (focused) byId(focused)?.focus({ preventScroll: true });
}

function follow(tell) {
  const source = new EventSource("/events");
  source.onmessage = (message) => {
    refusal = "";
    const panels = JSON.parse(message.data);
    take(panels);
    tell(panels);
  };
  source.onerror = async () => {
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(() => follow(tell), 2000);
    const said = await fetch("/number").then((answer) => answer.json()).catch(() => ({}));
    refusal = said.is_full ? `${said.most_pages} pages are open already: close some` : "";
  };
}

// A browser opens six connections to a server, and a stream keeps one while its page is open: the seventh page would
// wait for ever. So one page of a browser reads the stream, and tells the others. When it is closed, another one does.
function begin() {
  if (!navigator.locks || !window.BroadcastChannel) return follow(() => {});
  const others = new BroadcastChannel("stratolog-panels");
  others.onmessage = ({ data }) => {
    if (data.panels) take(data.panels);
    else if (leads) others.postMessage({ panels: shown });
  };
  others.postMessage({ asks: true });
  navigator.locks.request("stratolog-panels", () => {
    leads = true;
    follow((panels) => others.postMessage({ panels }));
    return new Promise(() => {}); // the lock goes with the page
  });
}

function watchConnection() {
  const silentMs = Date.now() - heardMs;
  const lost = silentMs > SILENT_MS;
  document.documentElement.classList.toggle("lost", lost);
  const silence = refusal || `the dashboard is silent for ${Math.round(silentMs / 1000)} s`;
  byId("connection").textContent = lost ? silence : "live";
}

// -- dialogs --------------------------------------------------------------------------------------------------------

// The browser gives the focus back to the element that had it. It may have been replaced since; its id was not.
let openedFrom = "";

function focusOpener() {
  if (document.activeElement === document.body) byId(openedFrom)?.focus({ preventScroll: true });
}

async function show(target, into) {
  const place = byId(into || "dialog-body");
  if (!into && !byId("dialog").open) {
    openedFrom = document.activeElement.id;
    place.innerHTML = '<p class="quiet">Asking…</p>';
    byId("dialog").showModal();
  }
  place.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(`/${target}`);
    if (answer.ok) place.innerHTML = await answer.text();
    else say(place, (await answer.json()).message);
  } catch (error) {
    say(place, `The dashboard does not answer: ${error.message}`);
  }
  place.removeAttribute("aria-busy");
}

function say(place, words) {
  const line = document.createElement("p");
  line.className = "quiet";
  line.textContent = words;
  place.replaceChildren(line);
}

// -- operators ------------------------------------------------------------------------------------------------------

async function hmac(key, text) {
  const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, new TextEncoder().encode(text)));
}

async function proof(method, target) {
  const key = new TextEncoder().encode(sessionStorage.getItem(KEY) || "");
  const mac = await hmac(await hmac(key, "stratolog http"), `${method}\0${location.host.toLowerCase()}\0${target}`);
  return "Stratolog " + [...mac].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function post(target) {
  const answer = await fetch(target, { method: "POST", headers: { Authorization: await proof("POST", target) } });
  const said = await answer.json().catch(() => ({ message: `status ${answer.status}` }));
  return answer.ok ? null : said.message;
}

async function becomeOperator() {
  const found = location.hash.match(/^#operator=([0-9a-f]{64})$/);
  if (found) {
    sessionStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", location.pathname);
  }
  if (!sessionStorage.getItem(KEY)) return;
  if (!window.crypto?.subtle) {
    byId("drill-word").textContent = "Browsers prove nothing on a page of another machine without TLS: use a tunnel to 127.0.0.1.";
    return;
  }
  const refused = await post("/operator");
  byId("drill-start").disabled = refused !== null;
  byId("drill-word").textContent =
    refused === null ? "" : "The key is not this dashboard's (it has started again since): 'stratolog ui' prints a new link.";
}

async function startDrill() {
  const choice = byId("drill").selectedOptions[0];
  const shard = choice.dataset.shard === undefined ? "" : `?shard=${byId("drill-shard").value}`;
  byId("drill-word").textContent = "Starting…";
  const refused = await post(`/drills/${choice.value}${shard}`);
  byId("drill-word").textContent = refused === null ? `${choice.value} has begun` : refused;
}

function describeDrill() {
  const choice = byId("drill").selectedOptions[0];
  const needs = choice.dataset.needs ? ` Needs ${choice.dataset.needs}.` : "";
  byId("drill-does").textContent = `${choice.dataset.does} Touches: ${choice.dataset.touches}${needs}`;
  byId("drill-shard").disabled = choice.dataset.shard === undefined;
}

// -- theme, keys ----------------------------------------------------------------------------------------------------

function showTheme() {
  const theme = localStorage.getItem("stratolog-theme") || "system";
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
}

function nextTheme() {
  const at = THEMES.indexOf(document.documentElement.dataset.theme);
  localStorage.setItem("stratolog-theme", THEMES[(at + 1) % THEMES.length]);
  showTheme();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, input, textarea")) return;
  if (byId("dialog").open) return;
  const link = document.querySelector(`nav a[accesskey="${CSS.escape(event.key)}"]`);
  if (link) {
    link.click();
    link.focus({ preventScroll: true });
  } else if (event.key === "t" || event.key === "T") {
    nextTheme();
  }
}

function onClick(event) {
  const opener = event.target.closest("[data-open]");
  if (opener) show(opener.dataset.open, opener.dataset.into);
  const poster = event.target.closest("[data-post]");
  if (poster) {
    event.preventDefault();
    post(`/${poster.dataset.post}`).then((refused) => {
      if (refused) byId("drill-word").textContent = refused;
    });
  }
}

showTheme();
describeDrill();
byId("theme").addEventListener("click", nextTheme);
byId("dialog").addEventListener("close", focusOpener);
byId("drill").addEventListener("change", describeDrill);
byId("drill-start").addEventListener("click", startDrill);
byId("log-show").addEventListener("click", () => show(`log?shard=${byId("log-shard").value}`, "log-records"));
document.addEventListener("keydown", onKey);
document.addEventListener("click", onClick);
window.addEventListener("hashchange", becomeOperator);
setInterval(watchConnection, 1000);
begin();
becomeOperator();
