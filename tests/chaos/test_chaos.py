"""Each fault once (``--rounds`` times), several on one stack under one load; when the stack ends, everything is compared.

The faults that ``tests/integration`` injects (kills and pauses of nodes) are not repeated here. Counts: ``make chaos``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.chaos.campaign import Chaos, Fault, Load, Plan, under_load
from tests.chaos.faults import full_disk
from tests.chaos.faults.sst_bit_flip import SCRUB_INTERVAL_MS
from tests.chaos.registry import FAULTS
from tests.support.faults import netns

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(900)]
ONE_BROKER = ("client-kill", "wal-truncation", "sst-bit-flip", "all-brokers", "full-disk")
QUICK = ("client-kill",)
THREE_BROKERS = ("broker-kill", "node-partition", "broker-partition", "log-corruption")
LOAD = Load(rate=10.0)
"""A sixth of a campaign's, by all three doors: it shares the processors with other tests."""
SETTINGS = (("scrub_interval_ms", SCRUB_INTERVAL_MS),)


def stack_for(names: tuple[str, ...], *, hosts: bool = False) -> Fault:
    """Return what the faults need of a stack, together."""
    disk = "full-disk" in names and not full_disk.why_not()
    return Fault(
        name="+".join(names), inject=lambda _chaos, _round: None, hosts=hosts, settings=SETTINGS,
        surroundings=full_disk.small_disk if disk else nullcontext,
    )  # fmt: skip


@contextmanager
def judged(plan: Plan, folder: Path) -> Iterator[Chaos]:
    with under_load(plan, folder) as chaos:
        yield chaos
        findings = chaos.conclude()
        print(findings)
        assert findings.sound, findings.words
        assert findings.acknowledged > 0


@pytest.fixture(scope="module")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    plan = Plan(fault=stack_for(ONE_BROKER), load=LOAD)
    with judged(plan, tmp_path_factory.mktemp("chaos")) as chaos:
        yield chaos


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    plan = Plan(fault=stack_for(THREE_BROKERS, hosts=not netns.why_not()), brokers=3, load=LOAD)
    with judged(plan, tmp_path_factory.mktemp("chaos")) as chaos:
        yield chaos


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ONE_BROKER]
)
def test_with_one_broker(name: str, request: pytest.FixtureRequest, fault_round: int) -> None:
    inject(FAULTS[name], request, "one_broker", fault_round)


@pytest.mark.slow
@pytest.mark.parametrize("name", THREE_BROKERS)
def test_with_three_brokers(name: str, request: pytest.FixtureRequest, fault_round: int) -> None:
    inject(FAULTS[name], request, "three_brokers", fault_round)


def inject(fault: Fault, request: pytest.FixtureRequest, stack: str, fault_round: int) -> None:
    if reason := fault.why_not():
        pytest.skip(reason)
    chaos: Chaos = request.getfixturevalue(stack)
    acknowledged = chaos.acknowledged()
    chaos.inject(fault, fault_round)
    assert chaos.acknowledged() > acknowledged
