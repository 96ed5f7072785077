"""Damage to one replica again and again: how long until the running audit names the keys."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EQUAL
from schemas.topics import OM_LOG
from spark_streaming.naming.core.row_differences import NAMED, shown
from stratolog.drills.kit.rebuild import database_of
from tests.chaos.audit.damage import INJECTIONS, Change, Injection, buckets_of, inject
from tests.chaos.audit.world import PATIENCE_S, SHARD, AuditWorld, TimedVerdict
from tests.support.faults.stack_faults import bystander, database
from tests.support.logs.judged_log import read_log

KEYS = 4


class NamingTimes(NamedTuple):
    """An injection, and what became of it: seconds from what shows it to the verdict, and to the verdict with keys."""

    name: str
    verdict_s: float
    named_s: float


def run(world: AuditWorld, times: int, seed: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Inject ``times`` faults, the kinds in turn; return figures. What is not found in time is an AssertionError."""
    chosen = random.Random(seed)
    kinds = list(INJECTIONS)
    chosen.shuffle(kinds)
    findings = [_one(world, kinds[number % len(kinds)], note) for number in range(times)]
    return figures(findings)


def figures(findings: Sequence[NamingTimes]) -> dict[str, Any]:
    """Return counts and percentiles of findings."""
    named = sorted(one.named_s for one in findings)
    told = sorted(one.verdict_s for one in findings)
    return {
        "injections": len(findings), "kinds": dict(Counter(one.name for one in findings)),
        "verdict_p50_s": percentile(told, 50), "verdict_p95_s": percentile(told, 95),
        "named_p50_s": percentile(named, 50), "named_p95_s": percentile(named, 95), "named_max_s": named[-1],
        "named_s": named,
    }  # fmt: skip


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the value that so many percent of the ordered values do not exceed (nearest rank).

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 95)
    (2.0, 4.0)
    """
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _one(world: AuditWorld, injection: Injection, note: Callable[[str], None]) -> NamingTimes:
    """Inject one fault into a follower, wait for the verdict and the keys, and give it its rows back."""
    stack = world.stack
    volume = world.fresh_place()
    elsewhere = world.fresh_place()
    for number in range(KEYS):
        world.write(volume, f"key-{number}")
    stack.wait_converged(PATIENCE_S)
    damaged = bystander(stack)
    log = read_log(stack.settings.bootstrap_servers, SHARD)
    change = injection.change(log.rows(), log, volume)
    stack.kill_node(damaged)
    saved = _copied(world, damaged)
    with database(stack, damaged, SHARD) as store:
        inject(store, injection, change)
    since_ms = time.time_ns() // 1_000_000
    stack.start_node(damaged)
    _wait_caught_up(world, damaged)
    if not injection.at_rest:
        world.write(elsewhere, "a-barrier-later")
    finding = _found(world, injection, damaged, change, since_ms)
    note(
        f"{injection.name} on {damaged}: diverged after {finding.verdict_s:.1f} s, named after {finding.named_s:.1f} s"
    )
    _give_back(world, damaged, saved)
    return finding


def _found(world: AuditWorld, injection: Injection, node: str, change: Change, since_ms: int) -> NamingTimes:
    """Wait for the verdict and the keys."""

    def first(wanted: Callable[[Verdict], bool]) -> TimedVerdict | None:
        return next((one for one in world.poll() if one.at_ms >= since_ms and wanted(one.verdict)), None)

    def is_diverged(one: Verdict) -> bool:
        places = {(difference.cf, difference.bucket) for difference in one.differences}
        return (one.log, one.shard, one.node, one.verdict) == (OM_LOG, SHARD, node, DIVERGED) and places == buckets_of(
            change
        )

    def is_named(one: Verdict) -> bool:
        return is_diverged(one) and all(shown(row.key) in one.reason.partition(NAMED)[2] for row in change)

    told: TimedVerdict = world.wait(f"{node} is diverged: {injection.name}", lambda: first(is_diverged))
    named: TimedVerdict = world.wait(f"the keys of {node}: {injection.name}: {sorted(change)}", lambda: first(is_named))
    shown_at_ms = _shown_at_ms(world, told.verdict)
    return NamingTimes(injection.name, (told.at_ms - shown_at_ms) / 1000, (named.at_ms - shown_at_ms) / 1000)


def _shown_at_ms(world: AuditWorld, verdict: Verdict) -> int:
    """Return when the replica reported what the verdict is about: at the barrier, or at the end of its scan."""
    return next(
        report.reported_at_ms for report in world.reports()
        if (report.node, report.basis, report.barrier_offset) == (verdict.node, verdict.basis, verdict.barrier_offset)
    )  # fmt: skip


# -- before and after --------------------------------------------------------------------------------------------------


def _copied(world: AuditWorld, node: str) -> Path:
    saved = world.stack.folder / f"saved-{node}"
    shutil.rmtree(saved, ignore_errors=True)
    return Path(shutil.copytree(database_of(world.stack.settings, node, SHARD), saved))


def _wait_caught_up(world: AuditWorld, node: str) -> None:
    """Wait until a node has applied what the others have; what it holds may be something else."""

    def views() -> bool:
        return len({world.stack.shard(name, SHARD).get("applied_index") for name in world.stack.names}) == 1

    world.wait(f"{node} has caught up", views)


def _give_back(world: AuditWorld, node: str, saved: Path) -> None:
    """Put the copy back, from which the node replays the log, and wait until the audit says that it is equal."""
    stack = world.stack
    stack.kill_node(node)
    shutil.rmtree(database_of(world.stack.settings, node, SHARD))
    shutil.copytree(saved, database_of(world.stack.settings, node, SHARD))
    stack.start_node(node)
    stack.wait_converged(PATIENCE_S)
    offset = stack.shard(node, SHARD)["applied_offset"]
    world.write(world.fresh_place(), "repaired")

    def is_equal() -> bool:
        later = [
            one.verdict for one in world.poll() if one.verdict.node == node and one.verdict.barrier_offset > offset
        ]
        return bool(later) and later[-1].verdict == EQUAL

    world.wait(f"{node} is equal again", is_equal)
