"""The drills that start a stack of their own, since what they inflict cannot be taken back: each passes, and leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stratolog.configuration.loading import load_settings
from stratolog.drills import bootstrap, expired_log, restore
from stratolog.drills.core.report import PASSED, DrillReport
from stratolog.drills.installs import bootstrap_kill, bootstrap_leader_change
from stratolog.drills.keys import rotate_keys
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.session import Session, run

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(400)]


def drilled(name: str, drill: Callable[[Session, Cluster], None], folder: Path) -> DrillReport:
    settings = replace(
        load_settings(environment={}), data_dir=folder, session_timeout_ms=3_000, barrier_interval_ms=200
    )
    cluster = Cluster(settings=settings, detached=False)
    report = run(name, None, lambda session: drill(session, cluster), data_dir=folder)
    assert report.verdict == PASSED, json.dumps(report.as_json(), indent=2)
    assert not list((folder / "drills").iterdir())
    return report


def test_bootstrap(tmp_path: Path) -> None:
    report = drilled("bootstrap", bootstrap.run, tmp_path)
    assert report.figures["fetched_bytes"] > 0


def test_expired_log(tmp_path: Path) -> None:
    report = drilled("expired-log", expired_log.run, tmp_path)
    assert report.figures["second_saved_bytes"] > 0


def test_bootstrap_leader_change(tmp_path: Path) -> None:
    report = drilled("bootstrap-leader-change", bootstrap_leader_change.run, tmp_path)
    assert report.figures["leader_changes"] == 4
    assert report.figures["kept_bytes"] > 0


def test_bootstrap_kill(tmp_path: Path) -> None:
    report = drilled("bootstrap-kill", bootstrap_kill.run, tmp_path)
    assert report.figures["kills"] >= len(bootstrap_kill.STAGES)
    assert report.figures["kept_bytes"] > 0


def test_restore(tmp_path: Path) -> None:
    report = drilled("restore", restore.run, tmp_path)
    assert report.figures["second_saved_bytes"] > 0
    assert report.figures["keys_in_the_backup"] > 200


def test_keys_are_changed_under_load_and_nothing_is_refused(tmp_path: Path) -> None:
    report = drilled("rotate-keys", rotate_keys.run, tmp_path)
    assert report.figures["acknowledged"] > 300
    assert len(report.findings) == 4
