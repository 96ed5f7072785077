"""Whole clusters under faults, by seed: the suite's share of the seeds, determinism, coverage, and that planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from om_processors.execution.requests import LATE_REQUEST_TYPES
from replicated_db.core.execution.service import Reply
from replicated_db.core.leading.leader import claim_for
from schemas.codecs.codec import decode, encode
from schemas.records.identity import ChangeAcl, TokenRequest, UserRequest
from schemas.records.messages import RequestBody
from tests.simulation.cluster import START_MS
from tests.simulation.faults import Faults, actions_of
from tests.simulation.mutants import MUTANTS
from tests.simulation.trace import explain, run, shrink, simulate, told
from tests.simulation.truth import Violation
from tests.simulation.world import World

SEEDS = 200
MORE_SEEDS = 3_000
"""With the slow tests; and as many they may need to reach everything."""
CHUNK = 100
MOST_SEEDS_FOR_A_MUTANT = 400
LATE_MUTANTS = ("prev not compared on apply", "rows remembered over logged requests", "non monotonic timestamp")
"""They take the most seeds."""
ROOT = Path(__file__).parents[2]

SEEN: Counter[str] = Counter()

WANTED = {
    # the reading rule
    "claim", "counts", "void: stale term", "void: lost claim", "void: twin", "void: duplicate", "void: gap",
    "halt: broken", "halt: claim missed", "halt: term missed",
    # processes
    "crash", "crash in a write", "power failure", "pause", "zombie", "two claim", "cut off",
    "lead: seq", "lead: stopped", "lead: another candidate was faster", "lead: log unavailable", "lead: unfit to lead",
    # appends
    "expired first", "expired in the middle", "report lost", "report held", "report late", "report without offset",
    "report too high", "report too low", "appended twice", "overtaken", "orphan", "appended again", "twin",
    # requests and answers
    "request lost", "late request", "call id reused", "rejected", "response lost", "executed", "refused",
    "REQUEST_EXPIRED", "CALL_ID_REUSED", "retry row removed", "below answered_below",
    "hint trusted", "resumed ten minutes back", "requests cut", "requests trimmed", "requests truncated under a leader",
    # the log's tail, readers that miss part of it
    "log cut", "log poisoned", "records skipped", "gap filled", "records again", "records missed", "stop: AheadOfLog",
    "answer of a lost tail", "holder of a lost tail stopped",
    # clocks
    "node's clock seconds", "node's clock a year", "broker's clock seconds", "broker's clock a year",
    "client's clock seconds", "client's clock a year", "long time",
    # reads and divergence
    "linearizable: read", "linearizable: no leader", "linearizable: not caught up", "linearizable: flagged", "row damaged",
    "scrub",
    # late validation, operators
    "executed late", "control: Mode", "control: Prepared", "control: Members", "command", "refused while prepared",
    "control: FeatureLevel", "control: DigestBase", "log of older software",
    "log trimmed", "not trimmed: members", "not trimmed: base", "not trimmed: no leader",
    # small keys
    "inline rows compared",
    # blocks
    "block in an earlier container", "block in a container of its time",
}  # fmt: skip
OF_DOORS = {
    "sent by the direct door", "taken by the direct door", "nobody at the direct door", "told that the leadership ended",
    "connection lost", "one call sent through both doors", "one call answered through both doors",
    "healed by the direct door", "healed by om.requests",
}  # fmt: skip
"""What requests do at both doors: it is frequent, so every chunk of seeds reaches it."""
WANTED |= OF_DOORS
OF_USERS = frozenset((*get_args(UserRequest), *get_args(TokenRequest), ChangeAcl))
"""Those that are for signed requests: ``test_callers`` has them, but for rotation and tokens."""
WANTED |= {f"{body.__name__}: OK" for body in get_args(RequestBody) if body not in OF_USERS}
WANTED |= {f"{body.__name__}: refused" for body in get_args(RequestBody) if body not in OF_USERS}
WANTED |= {f"{name}: late" for name in LATE_REQUEST_TYPES if name not in {one.__name__ for one in OF_USERS}}
"""Every request type that there is: a new one without a place in the workload is missed."""


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start, marks=pytest.mark.slow) if start > SEEDS else start
        for start in range(1, MORE_SEEDS + 1, CHUNK)
    ],
)
def test_nothing_that_must_hold_is_broken(start: int):
    seen: Counter[str] = Counter()
    for seed in range(start, start + CHUNK):
        world, failure = simulate(seed)
        seen.update(world.seen)
        if failure is not None:
            pytest.fail(explain(seed, failure), pytrace=False)
    SEEN.update(seen)
    assert [what for what in sorted(OF_DOORS) if not seen[what]] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_seeds_reach_every_fault_and_every_reading():
    """Otherwise they prove little. Run alone, this test runs its own seeds."""
    seed = 0
    while WANTED - set(+SEEN) and seed < MORE_SEEDS:
        seed += 1
        SEEN.update(simulate(seed)[0].seen)
    assert set(+SEEN) >= WANTED


@pytest.mark.parametrize("seed", [1, 77, 2024])
def test_a_seed_gives_the_same_trace_each_time(seed: int):
    one, other = simulate(seed)[0], simulate(seed)[0]
    assert [entry.value for entry in one.log.entries] == [entry.value for entry in other.log.entries]
    assert one.fingerprint() == other.fingerprint()
    assert told(actions_of(seed)) == told(actions_of(seed))
    assert simulate(seed + 1)[0].fingerprint() != one.fingerprint()


def test_a_seed_gives_the_same_trace_in_other_processes():
    """Nothing depends on the order of sets, on addresses, or on what has run before."""
    found = {
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--fingerprint", "5"],
            cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": hash_seed}, check=True, capture_output=True, text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }  # fmt: skip
    assert found == {simulate(5)[0].fingerprint()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LATE_MUTANTS else name for name in MUTANTS]
)
def test_a_planted_bug_is_found(name: str):
    with MUTANTS[name]():
        seeds = range(1, MOST_SEEDS_FOR_A_MUTANT + 1)
        assert any(simulate(seed)[1] is not None for seed in seeds), f"{name}: not found within {len(seeds)} seeds"


def test_a_direct_door_without_answers_is_named():
    with MUTANTS["the direct door answers only at the end of the leadership"]():
        failure = next(found for seed in range(1, 20) if (found := simulate(seed)[1]) is not None)
    assert str(failure.error).startswith("no answer to 3 calls by the direct door within")


def test_every_rule_that_matters_has_its_mutant():
    assert set(MUTANTS) == {
        "nonce check off", "seq check off", "void rule off", "contiguity check off",
        "error answered before its batch is effective", "merge without in batch visibility", "retry rows not in the batch",
        "prev not compared on apply", "expiry by local clock", "floors not asked", "non monotonic timestamp", "overlay kept after step down",
        "overlay layer dropped before its write is visible", "read index from a stale broker",
        "rows remembered over logged requests", "prepared state not asked", "mode taken from the first request of a fetch",
        "chain not compared", "the direct door does not answer",
        "the direct door answers only at the end of the leadership", "the end of the leadership is not told at the direct door",
        "an answer to a direct call goes the other way", "an answer to a direct call goes by another connection",
    }  # fmt: skip


def test_a_failure_tells_its_seed_a_short_trace_and_the_command():
    with MUTANTS["nonce check off"]():
        seed, failure = next((seed, found) for seed in range(1, 100) if (found := simulate(seed)[1]) is not None)
        small = shrink(failure)
        again = run(small.actions, World())
        text = explain(seed, failure)
    assert len(small.actions) < len(failure.actions) / 4
    assert again is not None
    assert str(again.error) == str(small.error)
    assert f"seed {seed} fails" in text
    assert "lands at" in text
    assert f"make simulate SEEDS=1 START={seed}" in text
    assert run(small.actions, World()) is None, "without the planted bug the same trace is harmless"


def test_a_candidate_that_has_read_a_lost_tail_does_not_claim_on_top_of_it():
    """Void records were read, lost and replaced by ones that count: its chain is not the log's, and a record of its own would stop everybody."""
    world = World()
    faults = Faults(world)

    def settle() -> None:
        for _ in range(12):
            world.run(1, 20)
            faults.deliver(3)

    try:
        settle()
        world.nodes["n1"].lead()
        settle()
        end = len(world.log.entries)
        faults.forge_twin(0)
        settle()
        world.log.cut(end)
        faults.call(0)
        settle()
        assert world.truth.index == 1
        assert {node.replica.position.index for node in world.nodes.values()} == {0}, "all have read past that offset"
        world.invariants.may_stop["n2"] = "read a lost tail"
        world.nodes["n2"].lead()
        settle()
        assert world.truth.halted is None
        assert world.seen["stop: AheadOfLog"] == 1
    finally:
        world.close()


class Misled:
    """A cluster in which n3 takes a copy for the record itself.

    The log loses two void records that n3 has read. n3's own two batches land in their place, so n3 reads past them; then the first
    of the two lands again, behind.
    """

    def __init__(self) -> None:
        self.world = World()
        self.faults = Faults(self.world)
        self.node = self.world.nodes["n3"]

    def settle(self, *, deliver: bool = True) -> None:
        for _ in range(12):
            self.world.run(1, 20)
            if deliver:
                self.faults.deliver(3)
            self.world.invariants.check_nodes(list(self.world.nodes.values()))

    def call(self) -> None:
        self.faults.call(self.world.seen["calls of the test"])
        self.world.note("calls of the test")

    def prepare(self) -> None:
        world = self.world
        for name in ("n1", "n3"):
            for node in world.nodes.values():
                node.stop.set()
            self.settle()
            world.nodes[name].lead()
            self.settle()
        for name in ("n1", "n2"):
            world.nodes[name].running = False
        for _ in range(2):
            self.call()
            self.settle(deliver=False)
        for _ in range(2):
            world.log.append(world.log.entries[0].value)
        self.settle(deliver=False)
        self.faults.cut_log(1)
        self.faults.deliver(1)
        self.settle()
        world.log.append(world.log.entries[-2].value)
        self.settle()

    def prepare_behind_a_claim(self) -> None:
        """Instead: the log loses a void record that n3 has read, and n2's claim lands in its place.

        What n1 appends behind it as the leader of before is void, and counts for n3, which has read past the claim.
        """
        world = self.world
        self.settle()
        world.nodes["n1"].lead()
        self.settle()
        self.call()
        self.settle()
        self.call()
        self.settle(deliver=False)
        for name in ("n1", "n2"):
            world.nodes[name].running = False
        world.log.append(world.log.entries[0].value)
        self.settle(deliver=False)
        self.faults.cut_log(0)
        world.log.append(encode(claim_for(world.nodes["n2"].replica, b"2" * 16, "n2", START_MS)))
        self.settle()

    def lead_again(self) -> None:
        self.node.lead()
        self.settle()
        self.call()
        self.settle()
        for name in ("n1", "n2"):
            self.world.nodes[name].running = True
        self.world.heal()


@pytest.fixture
def misled() -> Iterator[Misled]:
    found = Misled()
    yield found
    found.world.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_candidate_that_took_a_copy_for_the_record_itself_answers_alone(misled: Misled, restarts: bool):
    """Decision 0016. To compare what it remembers would not help: a restart forgets that, and its disk agrees with the log."""
    misled.prepare()
    if restarts:
        misled.node.crash()
        misled.node.boot()
        misled.settle()
    misled.lead_again()
    seen, truth = misled.world.seen, misled.world.truth
    assert misled.world.invariants.misled == {"n3"}
    assert truth.reading == "halt: broken"
    assert truth.halted is not None
    assert seen["answer of a misled node"] > 0
    assert all(misled.world.nodes[name].replica.position.offset < truth.halted for name in ("n1", "n2"))


def test_a_candidate_that_has_read_past_a_claim_answers_alone(misled: Misled):
    """Decision 0016: its consumer did not notice the loss. Nobody follows it, and it stops once the log goes on."""
    misled.prepare_behind_a_claim()
    assert misled.world.invariants.misled == {"n3"}
    misled.lead_again()
    assert misled.world.seen["answer of a misled node"] > 0
    assert misled.world.seen["holder of a lost tail stopped"] == 1


def test_a_wrong_answer_of_a_node_that_has_read_past_a_claim_is_found(misled: Misled):
    misled.prepare_behind_a_claim()
    replied = misled.world.invariants.replied
    misled.world.invariants.replied = lambda node, replies: replied(  # type: ignore[method-assign]
        node, [replace(reply, response=encode(replace(decode(reply.response), message="wrong"))) for reply in replies]
    )
    with pytest.raises(Violation, match="n3 answers call"):
        misled.lead_again()


def test_a_wrong_answer_of_a_misled_node_is_found(misled: Misled):
    """What it answers must be what it has logged."""
    misled.prepare()
    replied = misled.world.invariants.replied
    misled.world.invariants.replied = lambda node, replies: replied(  # type: ignore[method-assign]
        node, [replace(reply, response=encode(replace(decode(reply.response), message="wrong"))) for reply in replies]
    )
    with pytest.raises(Violation, match="n3 answers call"):
        misled.lead_again()


def test_only_who_stands_on_what_is_void_is_exempt(misled: Misled):
    """The same answers of a node that stands on what counts are wrong ones, though it had read a lost tail, too."""
    misled.prepare()
    misled.world.truth.void.clear()
    misled.world.invariants.misled.clear()
    with pytest.raises(Violation, match="n3 answers call"):
        misled.lead_again()


def test_an_answer_before_the_record_that_stops_the_others_is_not_exempt(misled: Misled):
    """A misled node is judged like all others until its own first record has stopped them."""
    early: list[Reply] = []
    misled.world.invariants.replied = lambda node, replies: early.extend(replies)  # type: ignore[method-assign]
    misled.prepare()
    misled.lead_again()
    same = Misled()
    same.prepare()
    assert early
    assert same.world.invariants.misled == {"n3"}
    with pytest.raises(Violation, match="n3 answers call"):
        same.world.invariants.replied(same.node, early)
    same.world.close()
