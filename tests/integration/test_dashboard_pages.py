"""Many pages of the dashboard in Chromium: tabs share one stream, and a page too many is told why. No cluster is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

pytest.importorskip("aiohttp", reason="the dashboard needs aiohttp (extra 'ui')")

from stratolog.ui.serving import server as serving
from tests.support.ui.browser import browser_page
from tests.support.ui.served import Served

pytestmark = [pytest.mark.integration, pytest.mark.slow]
TABS = 9
"""More than the six connections that a browser opens to a server."""
SILENCE_MS = 7_000
"""A page says that it hears nothing after five seconds."""
PATIENCE_MS = 60_000


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("ui"))
    yield found
    found.close()


def test_many_tabs_of_a_browser_share_one_stream(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_VIEWERS", 1)  # a second stream would be refused
    with browser_page() as page:
        tabs = [page, *(page.context.new_page() for _ in range(TABS - 1))]
        for tab in tabs:
            tab.goto(f"http://{served.address}/")
            tab.wait_for_selector("#sentence h1 >> text=No broker answers, and nothing is judged", timeout=PATIENCE_MS)
        tabs[0].close()  # the one that read the stream: another one goes on
        tabs[-1].wait_for_timeout(SILENCE_MS)
        for tab in tabs[1:]:
            tab.wait_for_selector("#connection >> text=live", timeout=PATIENCE_MS)
        tabs[-1].click("#log-show")  # a connection is free for it
        tabs[-1].wait_for_selector("#log-records p", timeout=PATIENCE_MS)


def test_a_page_too_many_is_told_why_and_goes_on_when_there_is_room(served: Served) -> None:
    with ExitStack() as streams, browser_page() as page:
        for _ in range(serving.MAX_VIEWERS):
            answer = streams.enter_context(served.http.stream("GET", "/events"))
            assert answer.status_code == 200
        page.goto(f"http://{served.address}/")
        page.wait_for_selector(f"#connection >> text={serving.MAX_VIEWERS} pages are open already", timeout=PATIENCE_MS)
        streams.close()
        page.wait_for_selector("#sentence h1 >> text=No broker answers, and nothing is judged", timeout=PATIENCE_MS)
        page.wait_for_selector("#connection >> text=live", timeout=PATIENCE_MS)
