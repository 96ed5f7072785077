"""The docs as a reader meets them: the site builds, and the tutorial's commands do what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from build_tools.reference.metrics import FOREIGN, families
from stratolog.configuration.loading import load_settings
from stratolog.local.state import SETTINGS_FILE

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
STEPS = re.findall(r"^## (\d+)\. .*?\n(.*?)(?=^## )", TUTORIAL, re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strict: a page in no menu, a link or an anchor that leads nowhere ends it."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    index = (tmp_path / "site" / "index.html").read_text()
    assert "Learn it" in index
    for page in ("tutorial", "reference/commands", "project/readme", "decisions/0001-retry-is-byte-identical"):
        assert (tmp_path / "site" / page / "index.html").is_file(), page
    # Nothing is fetched from elsewhere when a page is read.
    assert not re.findall(r'(?:src|href)="https?://(?!squidfunk|[^"]*\.(?:com|org|io)/?")[^"]*\.(?:css|js)"', index)


class Reader:
    """Somebody who types what the tutorial says, in a directory of his own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin_folder = folder.parent / "bin"
        bin_folder.mkdir()
        command = bin_folder / "stratolog"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m stratolog "$@"\n')
        command.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STRATOLOG_")}
        path = os.pathsep.join([str(bin_folder), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def types(self, script: str, timeout_s: float = 400) -> str:
        done = subprocess.run(
            ["sh", "-e", "-c", script],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    folder = tmp_path / "here"
    folder.mkdir()
    made = Reader(folder)
    yield made
    if (folder / ".stratolog").exists():  # the tutorial's last step has not removed it
        made.types("stratolog down --remove-data")


def scraped(address: str) -> dict[str, set[str]]:
    """Return the labels of each metric that a process has, by the names of the reference."""
    found: dict[str, set[str]] = {}
    for one in text_string_to_metric_families(httpx.get(f"http://{address}/metrics", trust_env=False).text):
        name = f"{one.name}_total" if one.type == "counter" else one.name
        for sample in one.samples:
            found.setdefault(name, set()).update(set(sample.labels) - {"le"})
    return found


@pytest.mark.timeout(900)
def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    said: dict[str, str] = {}
    for number, text in STEPS:
        for block in BLOCK.findall(text):
            said[number] = said.get(number, "") + reader.types(block)
        if number == "6":
            data = reader.folder / ".stratolog"
            settings = load_settings(data / SETTINGS_FILE, environment={})
            said["6"] += reader.types(f"python first.py {settings.bootstrap_servers}")
            of_audit = json.loads((data / "audit" / "health.json").read_text())["metrics"]
            addresses = [
                *(node.address for node in settings.nodes), *(one.http_address for one in settings.datanodes), of_audit,
            ]  # fmt: skip
            found = [scraped(address) for address in addresses]
    assert list(said) == [number for number, _ in STEPS] == list("12345678")
    assert "monday,12" in said["2"]
    assert "Batch" in said["3"]
    assert "NOT EQUAL" not in said["4"]
    assert said["5"].endswith("monday,12\n")
    assert "hello.txt" in said["6"]
    assert "passed" in said["7"]

    # What the processes of a real stack have is what the reference says, and the other way round.
    labels = {name: set(of) for name, _, _, of in (*families(), *FOREIGN)}
    everything: dict[str, set[str]] = {}
    for one in found:
        for name, of in one.items():
            everything.setdefault(name, set()).update(of)
    assert {name: of for name, of in everything.items() if labels.get(name) != of} == {}
    unseen = set(labels) - set(everything)
    assert not {name for name in unseen if not name.startswith("stratolog_opening_")}
    assert "stratolog_audit_query_active" in found[-1]
