"""Processor time of other processes: what benchmarks divide by what was done."""

from __future__ import annotations

from collections.abc import Mapping

import psutil


def spent_s(process: psutil.Process) -> float:
    """Return a process's seconds of processor time so far, user and system."""
    times = process.cpu_times()
    return float(times.user + times.system)


def spent_by_process(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """Return seconds of processor time so far, by name."""
    return {name: spent_s(process) for name, process in processes.items()}
