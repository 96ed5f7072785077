"""The dashboard in Chromium against a live stack with its audit: what happens to the cluster appears on the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace.tables import key_key
from producers import Client, Exists
from replicated_db.shell.rocks import RocksStore
from schemas.column_families import KEY_TABLE
from schemas.settings.values import NodeAddress
from schemas.sharding import shard_of
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.local import stack, state
from stratolog.local.ports import free_ports
from stratolog.local.processes import log_tail, wait_until
from tests.support.ui.browser import HEIGHT, browser_page

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
PATIENCE_MS = 180_000
NODES = 3
SHARDS = 2
KEYS = 40
START_TIMEOUT_S = 420.0
"""A machine that does other work, too, needs minutes until Spark has judged anything."""
HOSTILE = "<img src=x onerror=\"document.title='owned'\">\x1b[31m\u202egpj.exe"
VOLUMES = ("vol-a", "vol-b", "vol-c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A stack with an audit and a dashboard."""

    settings: Settings

    def member(self, kind: str, name: str) -> state.StackMember:
        found = state.read_state(self.settings.data_dir)
        assert found is not None
        return next(member for member in found.of(kind) if member.name == name)

    @property
    def address(self) -> str:
        return self.member(state.UI, state.UI).address

    @property
    def environment(self) -> dict[str, str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("STRATOLOG_")}
        return {**variables, "PYTHONPATH": str(ROOT), "STRATOLOG_DATA_DIR": str(self.settings.data_dir)}

    def stratolog(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stratolog", *words], env=self.environment, capture_output=True, text=True, check=False,
            cwd=self.settings.data_dir, timeout=120,
        )  # fmt: skip

    def up(self) -> None:
        stack.up(self.settings, detached=False)

    def end(self, kind: str, name: str) -> None:
        """Have a process end in order."""
        process = self.member(kind, name).process
        process.signal(signal.SIGTERM)
        assert process.wait(60)

    def shell(self, commands: str) -> subprocess.CompletedProcess[str]:
        """Run what the page names, as somebody who copies it."""
        # Some commands say by their exit code that replicas differ: the last one says whether the stack is up again.
        script = f"stratolog() {{ '{sys.executable}' -m stratolog \"$@\"; }}\n{commands}"
        known = state.read_state(self.settings.data_dir)
        assert known is not None
        with (self.settings.data_dir.parent / "shell.txt").open("w+") as output:
            shell = subprocess.Popen(
                ["bash", "-c", script], env=self.environment, stdout=output, stderr=output, cwd=self.settings.data_dir
            )
            # The stack's processes are this one's children: 'tail --pid' waits until what has ended was reaped.
            ended = wait_until(
                lambda: [one.process.is_running() for one in known.members] == [] or shell.poll() is not None,
                START_TIMEOUT_S,
            )
            if not ended:
                shell.kill()
            output.seek(0)
            return subprocess.CompletedProcess(script, shell.wait(), output.read(), "")

    def damage(self, node: str, volume: str, key: str) -> None:
        """Change a bit of a key's row in a node that does not run."""
        folder = self.settings.node_folder(node) / f"shard-{shard_of(volume, SHARDS)}"
        with closing(RocksStore(folder, OM_FAMILIES.names)) as store:
            row = key_key(volume, "photos", key)
            value = store.get(KEY_TABLE, row)
            assert value is not None
            store.write([(KEY_TABLE, row, value[:-1] + bytes([value[-1] ^ 1]))])

    def write(self, keys: int = KEYS) -> None:
        with Client(self.settings.bootstrap_servers, caller="tester") as client:
            for volume in VOLUMES:
                try:
                    client.create_volume(volume)
                    client.create_bucket(volume, "photos")
                except Exists:
                    pass  # from an earlier test
                for number in range(keys):
                    name = f"k{number}" if number else HOSTILE
                    opened = client.create_key(volume, "photos", name, size=0)
                    client.commit_key(volume, "photos", name, opened.session_id, size=0, blocks=[])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("dashboard") / "stack"
    kafka, *ports = free_ports(1 + NODES)
    patience = pytest.MonkeyPatch()
    patience.setattr(stack, "AUDIT_TIMEOUT_S", START_TIMEOUT_S)
    settings = replace(
        load_settings(environment={}), data_dir=folder, bootstrap_servers=f"127.0.0.1:{kafka}", shards=SHARDS, barrier_interval_ms=500,
        scrub_interval_ms=10_000, datanode_reserve_bytes=0,
        nodes=tuple(NodeAddress(name=f"om{n}", host="127.0.0.1", port=ports[n - 1]) for n in range(1, NODES + 1)),
        datanodes=(),
    )  # fmt: skip
    try:
        found = Live(settings=stack.up(settings, detached=False))
        found.write()
        yield found
    finally:
        patience.undo()
        stack.down(settings)


# The page's Content-Security-Policy forbids what Playwright's wait_for_function does (eval): the waits are for elements.


def opened(page: Any, live: Live, *, link: bool = False) -> None:
    """Open the dashboard, and wait until the audit has judged all replicas."""
    address = json.loads(live.stratolog("ui", "--json").stdout)["operator_link"] if link else f"http://{live.address}/"
    page.goto(address)
    page.wait_for_selector("#grid .cell", timeout=PATIENCE_MS)


def test_the_first_screen_holds_sentence_grid_rates_and_lag(live: Live) -> None:
    live.write()
    with browser_page() as page:
        opened(page, live)
        page.wait_for_selector(".sentence.good", timeout=PATIENCE_MS)
        assert "6 replicas equal at index" in page.inner_text("#sentence h1")
        assert page.locator("#grid .cell.good").count() == 6
        page.wait_for_selector("#traffic tbody tr", timeout=PATIENCE_MS)
        assert "CreateKey" in page.inner_text("#traffic")
        for name in ("sentence", "grid", "traffic", "lag"):
            box = page.locator(f"#{name}").bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= HEIGHT, (name, box)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.inner_text("#connection") == "live"
        page.wait_for_selector("#namespace td >> text=vol-a/photos", timeout=PATIENCE_MS)
        page.wait_for_selector("#namespace dl >> text=open keys", timeout=PATIENCE_MS)
        assert "not known" not in page.inner_text("#namespace dl")
        page.click("[id='sizes-vol-a/photos']")
        page.wait_for_selector("#dialog[open] h2 >> text=Sizes in vol-a/photos")
        assert f"{KEYS} keys" in page.inner_text("#dialog")
        page.keyboard.press("Escape")
        page.wait_for_selector("#timeline >> text=leads from here on", timeout=PATIENCE_MS)


def test_by_keyboard_and_in_the_dark(live: Live) -> None:
    with browser_page(dark=True) as page:
        opened(page, live)
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.keyboard.press("t")
        assert page.inner_text("#theme") == "Theme: light"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        page.keyboard.press("4")
        assert page.evaluate("location.hash") == "#log-section"
        page.focus("#cell-om\\.log-0-om1")
        page.keyboard.press("Enter")
        page.wait_for_selector("#dialog[open] h2 >> text=om1, shard 0")
        page.keyboard.press("Escape")
        assert not page.locator("#dialog[open]").count()
        # Panels are replaced each second; the focus stays where it is.
        page.wait_for_timeout(2500)
        assert page.evaluate("document.activeElement.id") == "cell-om.log-0-om1"
        page.click("#log-show")
        page.wait_for_selector("#log-records table.log")
        assert "counts" in page.inner_text("#log-records")
        assert "not judged" not in page.inner_text("#log-records tbody tr:first-child")


def test_a_killed_leader_appears_and_its_successor_too(live: Live) -> None:
    with browser_page() as page:
        opened(page, live)
        page.wait_for_selector(".cell.leads", timeout=PATIENCE_MS)
        leader = str(page.locator("#grid .cell.leads").first.get_attribute("id")).rpartition("-")[2]
        live.member(state.NODE, leader).process.kill()
        page.wait_for_selector(f"#cell-om\\.log-0-{leader}.warn >> text=no answer", timeout=PATIENCE_MS)
        page.wait_for_selector(f"#timeline .bad >> text={leader}", timeout=PATIENCE_MS)
        assert "does not answer" in page.inner_text("#timeline")
        page.locator("#grid .cell.leads").nth(1).wait_for(timeout=PATIENCE_MS)
        page.wait_for_selector(".sentence.warn", timeout=PATIENCE_MS)
        live.up()
        page.wait_for_selector("#timeline >> text=answers again", timeout=PATIENCE_MS)
        page.wait_for_selector(".sentence.good", timeout=PATIENCE_MS)


def test_a_broker_that_dies_while_the_page_is_open_turns_it_grey_until_it_is_back(live: Live) -> None:
    with browser_page() as page:
        opened(page, live)
        page.wait_for_selector(".sentence.good", timeout=PATIENCE_MS)
        live.member(state.BROKER, "broker-1").process.kill()
        page.wait_for_selector(".sentence.stale >> text=No broker answers", timeout=PATIENCE_MS)
        assert "no broker listens at" in page.inner_text("#sentence p")
        assert page.inner_text("#connection") == "live"
        live.up()
        page.wait_for_selector("#timeline >> text=one answers again", timeout=PATIENCE_MS)
        live.write()
        page.wait_for_selector(".sentence.good", timeout=PATIENCE_MS)


def test_an_injected_divergence_appears_with_its_key_and_the_commands_that_repair_it(live: Live) -> None:
    volume, node = VOLUMES[0], "om3"
    live.end(state.NODE, node)
    live.damage(node, volume, HOSTILE)
    live.up()
    with browser_page() as page:
        opened(page, live)
        page.wait_for_selector(".sentence.bad", timeout=PATIENCE_MS)
        assert f"DIVERGED: {node} of shard {shard_of(volume, SHARDS)}" in page.inner_text("#sentence h1")
        page.wait_for_selector("#sentence p >> text=rows that differ", timeout=PATIENCE_MS)  # the audit names the key
        page.locator("#grid .cell.bad").first.click()
        page.wait_for_selector("#dialog[open] h3 >> text=Buckets that differ")
        page.locator("#dialog button >> text=keys").first.click()
        page.wait_for_selector("#keys td >> text=has another value", timeout=PATIENCE_MS)
        shown = page.inner_text("#keys")
        assert f"/{volume}/photos/<img src=x" in shown
        assert "\\x1b[31m" in shown
        assert "\u202e" not in shown
        assert page.title() == "Stratolog"
        done = live.shell(page.inner_text("#repair"))
        assert done.returncode == 0, done.stdout + done.stderr
        page.keyboard.press("Escape")
        page.wait_for_selector(".sentence.good", timeout=PATIENCE_MS)
        page.wait_for_selector("#timeline .good >> text=equal again", timeout=PATIENCE_MS)


def test_a_drill_is_started_by_operators_alone_and_its_divergence_appears(live: Live) -> None:
    with browser_page() as page:
        opened(page, live)
        page.wait_for_timeout(500)
        assert page.is_disabled("#drill-start")
        opened(page, live, link=True)
        page.wait_for_selector("#drill-start:enabled")
        assert page.url == f"http://{live.address}/"  # the key is in no address bar, and in no history
        page.wait_for_selector(".sentence.good", timeout=PATIENCE_MS)
        page.select_option("#drill", "corrupt-replica")
        page.click("#drill-start")
        page.wait_for_selector(".sentence.bad", timeout=PATIENCE_MS)
        assert "DIVERGED" in page.inner_text("#sentence h1")
        page.locator("#grid .cell.bad").first.click()
        page.wait_for_selector("#dialog[open] h3 >> text=Buckets that differ")
        assert "keyTable" in page.inner_text("#dialog")
        page.keyboard.press("Escape")
        page.wait_for_selector("#timeline .bad >> text=DIVERGED", timeout=PATIENCE_MS)
        page.wait_for_selector('[data-outcome="passed"]', timeout=PATIENCE_MS)
        page.wait_for_selector(".sentence.good", timeout=PATIENCE_MS)


def test_a_dead_audit_turns_grey_and_a_dead_dashboard_says_so(live: Live) -> None:
    with browser_page() as page:
        opened(page, live)
        page.wait_for_selector(".sentence.good", timeout=PATIENCE_MS)
        live.member(state.AUDIT, state.AUDIT).process.kill()
        page.wait_for_selector(".sentence.stale", timeout=PATIENCE_MS)
        assert page.inner_text("#sentence h1").startswith("The audit has ended; it last said: 6 replicas equal")
        assert page.locator("#grid .cell.stale").count() == 6
        process = live.member(state.UI, state.UI).process
        process.kill()
        page.wait_for_selector("html.lost", timeout=PATIENCE_MS, state="attached")
        assert "silent" in page.inner_text("#connection")


def test_it_ends_with_its_stack_and_reads_nothing_while_nobody_looks(live: Live) -> None:
    live.up()
    address = live.address
    assert wait_until(lambda: _answers(address), 30)
    process = live.member(state.UI, state.UI).process
    threads = len(os.listdir(f"/proc/{process.pid}/task"))
    time.sleep(1)
    assert len(os.listdir(f"/proc/{process.pid}/task")) <= threads
    known = state.read_state(live.settings.data_dir)
    assert known is not None
    # An older 'down' knows no dashboards: it leaves them out of the state that it writes.
    others = state.StackState(members=tuple(member for member in known.members if member.kind != state.UI))
    state.write_state(live.settings.data_dir, others)
    log = live.settings.data_dir / "logs" / "ui.log"
    assert process.wait(60), log_tail(log)


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/number", trust_env=False).status_code == 200
    except (httpx.HTTPError, UserError):
        return False
