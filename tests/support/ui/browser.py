"""Chromium for the dashboard's tests: the system's own, driven by Playwright; without either the test is skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 800


@contextmanager
def browser_page(*, dark: bool = False, scale: float = 1.0) -> Iterator[Any]:
    """Yield a page of 1280 by 800; what its console complains of fails the test in the end."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (extra 'dev')")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    complaints: list[str] = []
    with playwright.sync_playwright() as driver:
        # Containers run as root, and Chromium's own sandbox does not.
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark" if dark else "light",
            device_scale_factor=scale, reduced_motion="reduce",
        )  # fmt: skip
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        yield page
        browser.close()
    expected = ("net::ERR", "status of 4", "status of 503")  # what a server refuses, or that is not there
    assert [one for one in complaints if not any(words in one for words in expected)] == []


def shot(page: Any, folder: Path, name: str) -> Path:
    """Write what the page shows into a file."""
    path = folder / f"{name}.png"
    page.screenshot(path=str(path))
    return path
