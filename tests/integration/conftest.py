"""Fixtures that several modules here share. What they ask for, ``stack`` or ``nodes``, is each module's own.

=================  ========================================================================================
``client``         module: the SDK's client of the module's ``stack``
``all_nodes_run``  before each test, all nodes of ``stack`` run and its shards are led
``everything``     module: all that was acknowledged by the module's ``nodes``
``ledger``         the same, for a test: all datanodes run when it begins, everything is compared when it has passed
=================  ========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from producers import Client
from tests.support.datanodes.datanodes import Datanodes
from tests.support.faults.datanode_faults import Ledger, settle
from tests.support.local.stack import TestStack

# What 'stratolog up' starts here is down again before Java's second compiler has paid: half of such a broker's processor time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="module")
def client(stack: TestStack) -> Iterator[Client]:
    found = stack.client(caller="tester")
    yield found
    found.close(timeout_ms=1000)


@pytest.fixture
def all_nodes_run(stack: TestStack) -> None:
    for name in stack.names:
        if name not in stack.nodes:
            stack.start_node(name)
    stack.wait_led()


@pytest.fixture(scope="module")
def everything(nodes: Datanodes) -> Ledger:
    return Ledger(nodes)


@pytest.fixture
def ledger(nodes: Datanodes, everything: Ledger) -> Iterator[Ledger]:
    settle(nodes)
    yield everything
    everything.check()
