"""Whether the event loop turns, as other threads see it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from om_processors.leading import pulse
from om_processors.leading.pulse import Pulse
from replicated_db.core.tables.memory import ManualClock
from replicated_db.shell.follower import make_app

START_MS = 5_000


def app_of(folder: Path) -> Any:
    return make_app("pulse", bootstrap_servers="127.0.0.1:1", host="127.0.0.1", port=1, data_dir=folder, fatal=print)


def test_it_is_not_known_before_the_loop_turns(tmp_path: Path):
    found = Pulse(ManualClock(now_ms=START_MS))
    found.attach(app_of(tmp_path))
    assert found.ago_ms() is None


def test_it_is_noted_again_and_again_while_the_loop_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(pulse, "PULSE_INTERVAL_S", 0.001)
    clock = ManualClock(now_ms=START_MS)
    found, app = Pulse(clock), app_of(tmp_path)
    found.attach(app)

    async def until_it_is_noted() -> None:
        while found.ago_ms() != 0:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)

    async def story() -> list[float | None]:
        [begun] = app._app_tasks
        await begun()
        seen: list[float | None] = [found.ago_ms()]
        clock.advance(700)
        seen.append(found.ago_ms())
        await asyncio.wait_for(until_it_is_noted(), 30)
        return seen

    assert asyncio.run(story()) == [0, 700]
