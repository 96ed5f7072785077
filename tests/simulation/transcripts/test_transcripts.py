"""The transcripts in this folder are what the scenarios give.

After a change that is meant to change them, ``REWRITE_TRANSCRIPTS=1 pytest tests/simulation/transcripts`` writes them
anew; read the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.transcripts.rendering import WIDTH, transcript
from tests.simulation.transcripts.scenarios import SCENARIOS

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_transcript_is_what_its_scenario_gives(name: str):
    path, told = HERE / f"{name}.txt", transcript(SCENARIOS[name])
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(told)
    assert path.read_text() == told
    assert max(map(len, told.splitlines())) <= WIDTH


def test_each_transcript_has_its_scenario():
    assert {path.stem for path in HERE.glob("*.txt")} == set(SCENARIOS)
