"""Fixtures for all tests: real brokers, real stacks, repeated faults.

Topic names are fixed by the contract, so what must not share topics does not share brokers: a quiet broker starts in two
or three seconds.

=================  ========================================================================================
``kafka_broker``   session: one broker without our topics, for tests that make topics of their own names
``make_kafka``     module: a factory of brokers of the module's own, ``make_kafka(brokers=3)``
``make_stack``     module: a factory of whole stacks, ``make_stack(nodes=3, shards=2, barrier_interval_ms=200)``
``fault_round``    number of the round; a test that asks for it runs ``--rounds`` times
=================  ========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support import stack
from tests.support.stack import LocalKafka, TestStack

# The machine is shared and noisy: how long an example takes says nothing, neither of the code nor of its strategy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

STACK_FOLDERS = ("tests/integration/", "tests/linearizability/", "tests/chaos/")
SPARK_TESTS = "tests/integration/test_audit_"
"""These share one Spark session and one quiet broker, and wait for none of the stacks."""
DATANODE_TESTS = ("tests/integration/test_datanode_", "tests/integration/test_block_store_faults")
"""These have processes of their own, and mostly wait for them."""
STACK, DATANODES, SPARK = "stack", "datanodes", "spark"
ORDER = {STACK: 0, DATANODES: 1, SPARK: 2}
"""Scopes go to the workers in the order of collection (:func:`pytest_collection_modifyitems`): the longest first."""
PROCESS_WORKERS = ("gw0", "gw1")
"""Those that get the first two scopes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="how often each fault is injected (default 1)")


def pytest_configure() -> None:
    # Of `make test`'s three workers two start processes and wait for them; the third, with Spark's and the fast tests, makes way.
    if os.environ.get("PYTEST_XDIST_WORKER", PROCESS_WORKERS[0]) not in PROCESS_WORKERS:
        os.nice(5)


def scope_of(nodeid: str) -> str:
    """Return what a test is kept together with on one worker: the stack's tests, the datanodes', Spark's, else its own file's."""
    if nodeid.startswith(SPARK_TESTS):
        return SPARK
    if nodeid.startswith(DATANODE_TESTS):
        return DATANODES
    return STACK if nodeid.startswith(STACK_FOLDERS) else nodeid.partition("::")[0]


class TogetherOnOneWorker(LoadScopeScheduling):  # type: ignore[misc]
    """All that needs a stack runs on one worker, one test at a time; the datanodes' tests on another, and Spark's on a third.

    The other tests go where there is room, file by file.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest scopes first, then the others as they were collected."""
    items.sort(key=lambda item: ORDER.get(scope_of(item.nodeid), len(ORDER)))


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
        for active in stack.ACTIVE:
            for name, tail in active.log_tails().items():
                report.sections.append((f"log of {name}", tail))
    return report


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with LocalKafka(tmp_path_factory.mktemp("kafka") / "kafka") as kafka:
        yield kafka


@pytest.fixture(scope="module")
def make_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LocalKafka]]:
    with ExitStack() as started:

        def make(*, brokers: int = 1) -> LocalKafka:
            folder = tmp_path_factory.mktemp("kafka") / "kafka"
            return started.enter_context(LocalKafka(folder, brokers=brokers))

        yield make


@pytest.fixture(scope="module")
def make_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., TestStack]]:
    with ExitStack() as started:

        def make(*, nodes: int = 3, **settings: Any) -> TestStack:
            folder = tmp_path_factory.mktemp("stack")
            return started.enter_context(TestStack(folder, nodes=nodes, **settings))

        yield make
