"""The dashboard of a secure cluster: nobody looks without an operator's link or certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from schemas.security.certificates import Role
from stratolog.ui.serving.login import COOKIE, KEY_HEADER
from tests.support.security.certified import Certified
from tests.support.ui.served import Served

PATHS = ("/events", "/replica?shard=0&node=om1", "/keys", "/log?shard=0", "/sizes", "/number", "/assets/dashboard.js")


@pytest.fixture
def site(tmp_path: Path) -> Certified:
    return Certified(tmp_path / "authority")


@pytest.fixture
def served(tmp_path: Path, site: Certified) -> Iterator[Served]:
    found = Served(tmp_path, tls=site.files("operator", Role.ADMIN))
    yield found
    found.close()


def test_a_stranger_sees_the_page_to_log_in_and_nothing_else(served: Served):
    page = served.http.get("/")
    assert page.status_code == 401
    assert "/assets/login.js" in page.text
    assert served.http.get("/assets/login.js").status_code == 200
    assert {path: served.http.get(path).status_code for path in PATHS} == dict.fromkeys(PATHS, 403)
    assert served.http.post("/drills/kill-leader").status_code == 403
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{served.address}/", trust_env=False)


def test_the_key_of_the_link_logs_in(served: Served):
    assert served.server.key is not None
    for wrong in ("", "0" * 64, served.server.key[:-1], "key"):
        assert served.http.post("/login", headers={KEY_HEADER: wrong}).status_code == 403
    assert (
        served.http.post("/login", headers={KEY_HEADER: served.server.key, "Origin": "https://evil"}).status_code == 403
    )
    done = served.http.post("/login", headers={KEY_HEADER: served.server.key})
    assert done.status_code == 200
    said = done.headers["Set-Cookie"]
    assert all(word in said for word in (COOKIE, "HttpOnly", "Secure", "SameSite=Strict", "Path=/"))
    assert served.server.key not in said
    assert served.http.get("/").status_code == 200
    assert served.http.get("/number").json()["number"] == served.server.number
    # Drills need the proof as before: the cookie looks, it does not act.
    assert served.http.post("/drills/kill-leader").status_code == 403


def test_an_operators_certificate_needs_no_link_and_others_do(served: Served, site: Certified):
    for name, role, status in (("root", Role.ADMIN, 200), ("alice", Role.CLIENT, 403), ("dn1", Role.DATANODE, 403)):
        context = site.tls(name, role).client()
        answer = httpx.get(f"https://{served.address}/number", trust_env=False, verify=context)
        assert answer.status_code == status


def test_without_tls_nothing_has_changed(tmp_path: Path):
    found = Served(tmp_path)
    assert found.http.get("/").status_code == 200
    assert found.http.post("/login").status_code in {403, 404}
    found.close()
