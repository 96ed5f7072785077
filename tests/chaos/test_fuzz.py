"""A small campaign of ``tests.chaos.fuzz``: every kind of port of a secure stack, a few thousand frames each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fuzz.__main__ import ATTACKS, COUNTS, campaign, is_sound

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]
FRAMES = 4_000


def test_fuzzed_ports_stop_nothing_and_allow_nothing(tmp_path: Path) -> None:
    lines = campaign(list(ATTACKS), FRAMES, seed=2, folder=tmp_path)
    assert [line["port"] for line in lines] == list(ATTACKS)
    for line in lines:
        assert is_sound(line), line
        assert line["sent"] >= FRAMES
        assert line["refused"] > FRAMES / 20, {what: line[what] for what in COUNTS}
