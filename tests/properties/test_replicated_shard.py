"""The shard under faults (``replicated_world``): by Hypothesis, which shrinks, and by seeded simulation, which goes deep."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.properties.replicated_world import CANDIDATES, World
from tests.unit.replicated_db.kit import NODES, add, delete, put

NAMES = st.sampled_from(CANDIDATES)
PICK = st.integers(0, 7)
OPERATION = (
    st.builds(put, st.sampled_from([b"x", b"y"]), st.binary(max_size=2))
    | st.builds(delete, st.sampled_from([b"x", b"y"]))
    | st.builds(add, st.sampled_from([b"x", b"y"]), st.integers(-5, 5))
)
SECONDS = [0, 0, 1, 1, 30, 200, 700]
JUMPS_MS = [0, 0, 0, -10_000, 3_600_000]


class ShardMachine(RuleBasedStateMachine):
    """Every step of the world as a rule."""

    @initialize()
    def start(self):
        self.world = World()

    @rule(name=NAMES)
    def claim(self, name: str):
        self.world.claim(name)

    @rule(name=NAMES)
    def claim_late(self, name: str):
        self.world.claim_late(name)

    @rule(name=NAMES)
    def twin_appends(self, name: str):
        self.world.twin_appends(name)

    @rule(name=NAMES)
    def restart(self, name: str):
        self.world.restart(name)

    def someone(self, pick: int) -> str:
        return sorted(self.world.leading)[pick % len(self.world.leading)]

    @rule(pick=PICK, operations=st.lists(OPERATION, max_size=3), sealed=st.booleans())
    @precondition(lambda self: self.world.leading)
    def propose(self, pick: int, operations: list[Any], sealed: bool):
        self.world.propose(self.someone(pick), operations)
        if sealed:
            self.world.seal(self.someone(pick))

    @rule(pick=PICK, back=PICK)
    @precondition(lambda self: self.world.leading and self.world.proposals)
    def retry(self, pick: int, back: int):
        self.world.retry(self.someone(pick), back)

    @rule(pick=PICK, call=PICK)
    @precondition(lambda self: self.world.leading and self.world.answers)
    def reuse_call_id(self, pick: int, call: int):
        self.world.reuse_call_id(self.someone(pick), call)

    @rule(pick=PICK, step=st.sampled_from(["seal", "tick", "barrier"]))
    @precondition(lambda self: self.world.leading)
    def append(self, pick: int, step: str):
        getattr(self.world, step)(self.someone(pick))

    @rule(pick=PICK, count=st.integers(1, 4), backwards=st.booleans())
    @precondition(lambda self: self.world.leading)
    def deliver(self, pick: int, count: int, backwards: bool):
        self.world.deliver(self.someone(pick), count, backwards=backwards)

    @rule(pick=PICK, appended=st.booleans(), rest_arrives=st.booleans())
    @precondition(lambda self: self.world.leading)
    def fail(self, pick: int, appended: bool, rest_arrives: bool):
        self.world.fail(self.someone(pick), appended=appended, rest_arrives=rest_arrives)

    @rule(pick=PICK)
    @precondition(lambda self: self.world.late)
    def something_arrives_late(self, pick: int):
        self.world.something_arrives_late(pick)

    @rule(back=PICK)
    @precondition(lambda self: self.world.log.entries)
    def something_arrives_twice(self, back: int):
        self.world.something_arrives_twice(back)

    @rule(seconds=st.sampled_from(SECONDS), jump_ms=st.sampled_from(JUMPS_MS))
    def time_passes(self, seconds: int, jump_ms: int):
        self.world.time_passes(seconds, jump_ms)

    @rule(name=st.sampled_from(NODES), count=st.integers(1, 5))
    def follow(self, name: str, count: int):
        self.world.follow(name, count)

    @rule(name=st.sampled_from(NODES))
    def prune(self, name: str):
        self.world.prune(name)

    @invariant()
    def replicas(self):
        if hasattr(self, "world"):
            self.world.check_replicas()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.check_all()


ShardMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestShard = ShardMachine.TestCase


# Seeded simulation: the same steps, weighted as in life, where leaders last for a while.

WEIGHTS = {
    "propose": 30, "seal": 15, "deliver": 25, "retry": 8, "reuse": 3, "tick": 3, "barrier": 4, "follow": 8, "prune": 2,
    "time": 8, "claim": 2, "claim_late": 1, "twin": 2, "restart": 1, "fail": 3, "late": 3, "twice": 2,
}  # fmt: skip


def operation(rng: random.Random) -> Any:
    key = rng.choice([b"x", b"y", b"z"])
    return rng.choice([put(key, rng.randbytes(2)), delete(key), add(key, rng.randint(-5, 5))])


def step(world: World, rng: random.Random) -> None:
    """One random step; where it is not possible, nothing."""
    kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    if not world.leading:
        kind = rng.choice(["claim", kind])
    someone = rng.choice(sorted(world.leading)) if world.leading else None
    name, pick = rng.choice(CANDIDATES), rng.randrange(100)
    if kind == "claim":
        world.claim(name)
    elif kind == "claim_late":
        world.claim_late(name)
    elif kind == "twin":
        world.twin_appends(name)
    elif kind == "restart":
        world.restart(name)
    elif kind == "time":
        world.time_passes(rng.choice(SECONDS), rng.choice(JUMPS_MS))
    elif kind == "follow":
        world.follow(rng.choice(NODES), rng.randint(1, 20))
    elif kind == "prune":
        world.prune(rng.choice(NODES))
    elif kind == "late" and world.late:
        world.something_arrives_late(pick)
    elif kind == "twice" and world.log.entries:
        world.something_arrives_twice(pick)
    elif someone is not None:
        step_of_leader(world, rng, kind, someone)


def step_of_leader(world: World, rng: random.Random, kind: str, name: str) -> None:
    pick = rng.randrange(100)
    if kind == "propose":
        world.propose(name, [operation(rng) for _ in range(rng.randrange(4))])
    elif kind in ("seal", "tick", "barrier"):
        getattr(world, kind)(name)
    elif kind == "retry" and world.proposals:
        world.retry(name, pick % 12)
    elif kind == "reuse" and world.answers:
        world.reuse_call_id(name, pick)
    elif kind == "deliver":
        world.deliver(name, rng.randint(1, 4), backwards=rng.random() < 0.2)
    elif kind == "fail":
        world.fail(name, appended=rng.random() < 0.5, rest_arrives=rng.random() < 0.5)


def simulate(seed: int, steps: int) -> World:
    rng = random.Random(seed)
    world = World()
    for number in range(steps):
        step(world, rng)
        if number % 25 == 0:
            world.check_replicas()
    world.check_all()
    return world


SEEN: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(60))
def test_simulation(seed: int):
    SEEN.update(simulate(seed, 250).seen)


def test_the_simulation_is_deterministic():
    one, other = simulate(1001, 200), simulate(1001, 200)
    assert [entry.value for entry in one.log.entries] == [entry.value for entry in other.log.entries]
    assert one.seen == other.seen


def test_the_simulation_reaches_what_it_is_for():
    """Otherwise it proves little: every reading of the rule, every way to be answered, every fault."""
    seen = SEEN
    if not seen:
        for seed in range(20):
            seen.update(simulate(seed, 250).seen)
    wanted = {
        "answered", "at once", "expired", "call id reused", "deposed", "must read", "late", "scrub", "executed",
        "retry rows removed", "Reading.VALID_CLAIM", "Reading.COUNTS", "Reading.STALE_TERM", "Reading.LOST_CLAIM",
        "Reading.TWIN", "Reading.DUPLICATE", "Reading.GAP",
    }  # fmt: skip
    assert {name for name in wanted if not seen[name]} == set()
