"""Clusters whose log is trimmed and whose disks are lost, by seed: every node comes back by a peer's checkpoint, and nobody is fooled."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation import installs
from tests.simulation.cluster import Store
from tests.simulation.installs import STEPS, simulate_installs, strange_store

SEEDS = 5
MORE_SEEDS = 400
CHUNK = 25
WANTED = {
    "log trimmed", "disk lost", "installed", "content came wrong", "stranger refused", "listing",
}  # fmt: skip
WANTED_OF_MANY = {
    *(f"crash before {step}" for step in STEPS), "old peer passed over", "two peers in one install",
    "a second listing in one install", "transfer broke", "checkpoint installed",
}  # fmt: skip
"""What the first long chunk of seeds reaches; a few seeds need not reach each."""

SEEDS_FOR_A_BUG = 40


@pytest.fixture(scope="module")
def stranger() -> Store:
    return strange_store()


@pytest.mark.parametrize(
    ("start", "count"),
    [(1, SEEDS), *(pytest.param(n, CHUNK, marks=pytest.mark.slow) for n in range(1 + SEEDS, MORE_SEEDS, CHUNK))],
)
def test_every_node_comes_back(start: int, count: int, stranger: Store):
    seen: Counter[str] = Counter()
    for seed in range(start, start + count):
        world, error = simulate_installs(seed, stranger)
        seen.update(world.seen)
        assert error is None, f"seed {seed}: {type(error).__name__}: {error}"
    assert set(+seen) >= (WANTED | WANTED_OF_MANY if start == 1 + SEEDS else WANTED)


def test_a_seed_gives_the_same_trace_each_time(stranger: Store):
    one, other = simulate_installs(7, stranger)[0], simulate_installs(7, stranger)[0]
    assert one.fingerprint() == other.fingerprint()


def test_a_candidate_that_nobody_checks_is_found_out(stranger: Store, monkeypatch: pytest.MonkeyPatch):
    """The planted bug: whatever was fetched is installed. A stranger's rows then break what must hold."""
    monkeypatch.setattr(installs, "_check", lambda *_: None)
    assert any(simulate_installs(seed, stranger)[1] is not None for seed in range(1, SEEDS_FOR_A_BUG, 2))
