"""The audit and the cluster are disturbed under load: no verdict may be missing or contradict itself, and none be false.

What a barrier asks for: of each member of its shard, and for each basis that it has (incremental; scrubbed, too, if it is a scrub), a last
word. Nobody damages a replica here, so ``equal`` is the only right one; ``unknown`` is allowed for a replica that was down.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow.dataset as ds

from schemas.records.log import Barrier
from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EQUAL, INCREMENTAL, SCRUBBED, UNKNOWN
from schemas.topics import OM_LOG
from spark_streaming.configuration.audit_config import load_config
from stratolog.cluster.leadership import move
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.faults import lose_leader
from stratolog.drills.kit.load import Load
from stratolog.drills.kit.session import Session
from stratolog.local.processes import wait_until
from tests.chaos.audit.world import SHARD, AuditWorld
from tests.support.faults.stack_faults import bystander, fresh_volume
from tests.support.logs.judged_log import read_log
from transport.waiting.deadline import Deadline

KEYS_PER_S = 4.0
SETTLE_S = 120.0
"""How long the last words may take after the load has ended."""

PAUSES_S = (0.5, 8.0)
"""Between two disturbances."""


class Subject(NamedTuple):
    """What a verdict is about."""

    node: str
    offset: int
    basis: str


def audit_kills(world: AuditWorld, times: int, seed: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Kill the audit so often, at any moment, under load; return figures and what is wrong."""
    chosen = random.Random(seed)
    with _load(world):
        for number in range(1, times + 1):
            time.sleep(chosen.uniform(*PAUSES_S))
            world.kill_audit()
            world.start_audit()
            note(f"kill {number}: the audit runs again, {len(world.poll())} verdicts")
    return {"kills": times, **_judged(world)}


def false_alarms(world: AuditWorld, minutes: float, seed: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Disturb the cluster for so many minutes under load; return figures and what is wrong."""
    chosen, counts = random.Random(seed), Counter[str]()
    deadline = Deadline.after_s(60 * minutes)
    with _load(world):
        while not deadline.has_passed:
            name = chosen.choice(sorted(DISTURBANCES))
            DISTURBANCES[name](world)
            world.stack.wait_led()
            counts[name] += 1
            note(f"{name}: {len(world.poll())} verdicts so far")
            time.sleep(chosen.uniform(*PAUSES_S))
    return {"minutes": minutes, "disturbances": dict(counts), **_judged(world)}


def _load(world: AuditWorld) -> Load:
    return Load(world.client, [fresh_volume(SHARD, world.stack.settings.shards)], in_flight=1, keys_per_s=KEYS_PER_S)


# -- disturbances ------------------------------------------------------------------------------------------------------


def _kill_leader(world: AuditWorld) -> None:
    lose_leader(Session(), world.stack, SHARD, ProcessFault.KILL).give_back()


def _move_leader(world: AuditWorld) -> None:
    move(world.stack.settings, SHARD, bystander(world.stack))


def _restart_follower(world: AuditWorld) -> None:
    world.stack.take(None, bystander(world.stack), ProcessFault.STOP)()


def _lose_a_disk(world: AuditWorld) -> None:
    """The node begins with a peer's checkpoint: the stack's settings demand that of every empty replica."""
    node = bystander(world.stack)
    world.stack.kill_node(node)
    shutil.rmtree(world.stack.settings.node_folder(node))
    world.stack.start_node(node)
    world.stack.wait_converged()


def _restart_all(world: AuditWorld) -> None:
    """One node after the other, as an upgrade does it."""
    for node in world.stack.names:
        world.stack.stop_node(node)
        world.stack.start_node(node)
        world.stack.wait_led()


def _restart_audit(world: AuditWorld) -> None:
    world.kill_audit()
    world.start_audit()


DISTURBANCES: dict[str, Callable[[AuditWorld], None]] = {
    "leader killed": _kill_leader, "leader moved": _move_leader, "follower restarted": _restart_follower,
    "disk lost": _lose_a_disk, "all restarted in turn": _restart_all, "audit killed": _restart_audit,
}  # fmt: skip


# -- the judgement -----------------------------------------------------------------------------------------------------


def _judged(world: AuditWorld) -> dict[str, Any]:
    """Wait until every barrier has its last words, and say what is wrong with them."""
    world.stack.wait_converged()
    wanted = _wanted(world)

    def missing() -> list[Subject]:
        return sorted(wanted - _by_subject(world).keys())

    wait_until(lambda: not missing(), SETTLE_S, interval_s=1.0)
    found = _by_subject(world)
    words = Counter(verdicts[-1].verdict for verdicts in found.values())
    return {
        "barriers": len({one.offset for one in wanted}), "verdicts": len(world.verdicts), "last_words": dict(words),
        "repeated_on_kafka": sum(len(verdicts) - len(_changes(verdicts)) for verdicts in found.values()),
        "wrong": [*(f"missing: {one}" for one in missing()), *_contradictions(found), *_twice(world)],
    }  # fmt: skip


def _wanted(world: AuditWorld) -> set[Subject]:
    """Return what all barriers of the log ask for."""
    log = read_log(world.stack.settings.bootstrap_servers, SHARD)
    barriers = [
        (one.offset, one.record) for one in log.records
        if one.reading.takes_effect and isinstance(one.record, Barrier)
    ]  # fmt: skip
    return {
        Subject(node, offset, basis)
        for offset, barrier in barriers
        for node in world.stack.names
        for basis in ((INCREMENTAL, SCRUBBED) if barrier.scrub else (INCREMENTAL,))
    }


def _by_subject(world: AuditWorld) -> dict[Subject, list[Verdict]]:
    found = defaultdict(list)
    for verdict, _ in world.poll():
        if verdict.log == OM_LOG:
            found[Subject(verdict.node, verdict.barrier_offset, verdict.basis)].append(verdict)
    return found


def _changes(verdicts: list[Verdict]) -> list[str]:
    """Return the words of verdicts on one subject, without repetitions."""
    words: list[str] = []
    for verdict in verdicts:
        if not words or words[-1] != verdict.verdict:
            words.append(verdict.verdict)
    return words


def _contradictions(found: dict[Subject, list[Verdict]]) -> list[str]:
    """``unknown``, then ``equal`` is what a late report gives; nothing else may change, and nothing be diverged."""
    allowed = ([EQUAL], [UNKNOWN], [UNKNOWN, EQUAL])
    return [
        f"{DIVERGED if DIVERGED in _changes(verdicts) else 'contradiction'}: {subject}: {verdicts[-1].reason}"
        for subject, verdicts in sorted(found.items())
        if _changes(verdicts) not in allowed
    ]


def _twice(world: AuditWorld) -> list[str]:
    """Return what Parquet, which is written exactly once, has more than once: the same verdict on the same subject."""
    config = load_config(world.stack.settings.data_dir / "audit" / "audit.json")
    names = ["log", "shard", "node", "barrier_offset", "basis", "verdict"]
    rows = ds.dataset(config.output_dir / "verdicts", format="parquet").to_table(columns=names).to_pylist()
    counts = Counter(tuple(row[name] for name in names) for row in rows)
    return [f"twice in Parquet: {row}" for row, count in sorted(counts.items()) if count > 1]
