"""The drills that start a stack of their own, since what they inflict cannot be taken back: each passes, and leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratolog.drills.core.report import PASSED, DrillReport
from stratolog.drills.installs import bootstrap_kill
from tests.chaos.drill_campaign import run_once

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(400)]


def drilled(name: str, folder: Path) -> DrillReport:
    report = run_once(name, folder)
    assert report.verdict == PASSED, json.dumps(report.as_json(), indent=2)
    assert not list((folder / "drills").iterdir())
    return report


def test_bootstrap(tmp_path: Path) -> None:
    report = drilled("bootstrap", tmp_path)
    assert report.figures["fetched_bytes"] > 0


def test_expired_log(tmp_path: Path) -> None:
    report = drilled("expired-log", tmp_path)
    assert report.figures["second_saved_bytes"] > 0


def test_bootstrap_leader_change(tmp_path: Path) -> None:
    report = drilled("bootstrap-leader-change", tmp_path)
    assert report.figures["leader_changes"] == 4
    assert report.figures["kept_bytes"] > 0


def test_bootstrap_kill(tmp_path: Path) -> None:
    report = drilled("bootstrap-kill", tmp_path)
    assert report.figures["kills"] >= len(bootstrap_kill.STAGES)
    assert report.figures["kept_bytes"] > 0


def test_restore(tmp_path: Path) -> None:
    report = drilled("restore", tmp_path)
    assert report.figures["second_saved_bytes"] > 0
    assert report.figures["keys_in_the_backup"] > 200


def test_keys_are_changed_under_load_and_nothing_is_refused(tmp_path: Path) -> None:
    report = drilled("rotate-keys", tmp_path)
    assert report.figures["acknowledged"] > 300
    assert len(report.findings) == 4
