"""A campaign of a drill: a drill beside the running stack, on a stack of its own each time, so many times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from stratolog.configuration.loading import load_settings
from stratolog.drills.bodies import BESIDE_THE_STACK
from stratolog.drills.core.report import PASSED, DrillReport
from stratolog.drills.kit import session
from stratolog.drills.kit.cluster import Cluster

SESSION_TIMEOUT_MS, BARRIER_INTERVAL_MS = 3_000, 200


def run_once(name: str, folder: Path) -> DrillReport:
    """Run a drill once, with its stack in ``folder``."""
    settings = replace(
        load_settings(environment={}), data_dir=folder, session_timeout_ms=SESSION_TIMEOUT_MS,
        barrier_interval_ms=BARRIER_INTERVAL_MS,
    )  # fmt: skip
    cluster = Cluster(settings=settings, detached=False)
    return session.run(name, None, lambda told: BESIDE_THE_STACK[name](told, cluster), data_dir=folder)


def run(
    name: str, times: int, folder: Path, *, note: Callable[[str], None], stop: Event
) -> tuple[dict[str, Any], bool]:
    """Run a drill so many times; return the figures of the campaign, and whether all passed. Once ``stop`` is set the run at work is the last."""
    verdicts, wrong = Counter[str](), []
    while not stop.is_set() and verdicts.total() < times:
        report = run_once(name, folder)
        verdicts[report.verdict] += 1
        note(f"run {verdicts.total()}: {report.verdict}, {report.took_s:.1f} s")
        if report.verdict != PASSED:
            note(report.reason)
            wrong.append(report.reason)
    return {"times": verdicts.total(), "verdicts": dict(verdicts), "wrong": wrong}, not wrong
