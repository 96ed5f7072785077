"""Fixtures for all tests: real brokers, real stacks, repeated faults.

Topic names are fixed by the contract, so what must not share topics does not share brokers. Modules that leave a broker as they found it
have one after the other (``broker_pool``); the others start brokers of their own.

=================  ========================================================================================
``kafka_broker``   module: one broker without our topics, for tests that make topics of their own names
``lease_kafka``    module: a factory of brokers that nobody else uses now, and that run on afterwards
``make_kafka``     module: a factory of brokers of the module's own, to do anything to, ``make_kafka(brokers=3)``
``make_stack``     module: a factory of whole stacks on such leased brokers, ``make_stack(nodes=3, shards=2, barrier_interval_ms=200)``
``stack``          module: the stack that the module describes, ``STACK = {"nodes": 3, "shards": 2}``; others make their own
``fault_round``    number of the round; a test that asks for it runs ``--rounds`` times
``own_threads``    module, for all: fails at the module's end if threads that were begun in it still run
=================  ========================================================================================
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A failed assertion there shows its values, as in a test; pytest has to know before anybody imports it.
pytest.register_assert_rewrite("tests.support")

from tests.support.local.broker_pool import BrokerPool  # noqa: E402
from tests.support.local.stack import ACTIVE, LocalKafka, TestStack  # noqa: E402
from tests.support.local.threads import described, threads_left  # noqa: E402

# The machine is shared and noisy: how long an example takes says nothing, neither of the code nor of its strategy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

THREADS_END_S = 5.0
"""How long a module's threads may take to end when its fixtures are gone: a closed pool ends a moment later."""
SPARK_TESTS = "tests/integration/test_audit_"
STREAM_TESTS = f"{SPARK_TESTS}stream"
"""Half of Spark's tests; each half shares one Spark session, and is kept together."""
LONGEST_FIRST = (
    STREAM_TESTS,
    SPARK_TESTS,
    *(f"tests/integration/test_{name}" for name in ("datanode_client", "command_line", "datanode_faults", "bytes_end_to_end")),
    "tests/simulation/",
)  # fmt: skip
"""Beginnings of the names of what takes longest, in order: what is begun last keeps the others waiting."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="how often each fault is injected (default 1)")


def pytest_configure() -> None:
    # Spark's JVM lives for a minute here: its second compiler, and a collector with threads of its own, would cost more processor time than they save.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    # A shell that starts the tests in the background has SIGINT ignored, and so would every process that they start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def scope_of(nodeid: str) -> str:
    """Return what a test is kept together with on one worker: half of Spark's tests, else those of its file, which share a stack."""
    file = nodeid.partition("::")[0]
    return SPARK_TESTS if file.startswith(SPARK_TESTS) and not file.startswith(STREAM_TESTS) else file


def turn_of(nodeid: str) -> int:
    """Return when a test has its turn: the place of its file in LONGEST_FIRST, behind all of them if it is in none."""
    return next((turn for turn, start in enumerate(LONGEST_FIRST) if nodeid.startswith(start)), len(LONGEST_FIRST))


class TogetherOnOneWorker(LoadScopeScheduling):  # type: ignore[misc]
    """Whole files go where there is room, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first, then the others as they were collected."""
    items.sort(key=lambda item: turn_of(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return TogetherOnOneWorker(config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault_round" in metafunc.fixturenames:
        metafunc.parametrize("fault_round", range(1, metafunc.config.getoption("--rounds") + 1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Show what the processes of the running stacks said, when a test fails."""
    report = yield
    if report.failed:
        for active in ACTIVE:
            for name, tail in active.log_tails().items():
                report.sections.append((f"log of {name}", tail))
    return report


@pytest.fixture(scope="module", autouse=True)
def own_threads() -> Iterator[None]:
    """Hold each module to ending its threads: what they say later would be in ``caplog`` of tests of other modules.

    Of a module's fixtures pytest sets up this one first, since no test asks for it and this file is the outermost. It
    ends them in the opposite order: when this one looks, the others are gone. Those of the session come before it.
    """
    before = threading.enumerate()
    yield
    if left := threads_left(before, THREADS_END_S):
        pytest.fail("threads that the module began still run: " + "; ".join(map(described, left)))


@pytest.fixture(scope="session")
def broker_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerPool]:
    with BrokerPool(lambda: tmp_path_factory.mktemp("kafka") / "kafka") as pool:
        yield pool


@pytest.fixture(scope="module")
def lease_kafka(broker_pool: BrokerPool) -> Iterator[Callable[[], LocalKafka]]:
    with ExitStack() as leased:

        def lease() -> LocalKafka:
            kafka = broker_pool.lease()
            leased.callback(broker_pool.give_back, kafka)
            return kafka

        yield lease


@pytest.fixture(scope="module")
def kafka_broker(lease_kafka: Callable[[], LocalKafka]) -> LocalKafka:
    return lease_kafka()


@pytest.fixture(scope="module")
def make_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LocalKafka]]:
    with ExitStack() as started:

        def make(*, brokers: int = 1) -> LocalKafka:
            folder = tmp_path_factory.mktemp("kafka") / "kafka"
            return started.enter_context(LocalKafka(folder, brokers=brokers))

        yield make


@pytest.fixture(scope="module")
def make_stack(
    tmp_path_factory: pytest.TempPathFactory, lease_kafka: Callable[[], LocalKafka]
) -> Iterator[Callable[..., TestStack]]:
    with ExitStack() as started:

        def make(*, nodes: int = 3, **settings: Any) -> TestStack:
            folder = tmp_path_factory.mktemp("stack")
            return started.enter_context(TestStack(folder, nodes=nodes, kafka=lease_kafka(), **settings))

        yield make


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, make_stack: Callable[..., TestStack]) -> TestStack:
    return make_stack(**request.module.STACK)
