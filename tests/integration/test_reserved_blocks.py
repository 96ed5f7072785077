"""Small files with reserved blocks on a whole stack, while leaders and datanodes are killed (decision 0085)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from producers import Client, OutcomeUnknown
from tests.support.local.stack import TestStack
from tests.support.sdk.small_files import SIZE_BYTES, THREADS, check_written
from tests.support.sdk.written import fresh_bytes

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

VICTIMS = ("leader", "datanode", "leader", "leader", "datanode", "leader")
FILES_BETWEEN = 150
"""Files that are closed before the next one is killed."""


@pytest.fixture(scope="module")
def stack(make_stack: Callable[..., TestStack]) -> TestStack:
    started = make_stack(nodes=3, datanodes=4, shards=1)
    started.wait_pipeline()
    return started


@pytest.fixture
def client(stack: TestStack) -> Iterator[Client]:
    nodes = [stack.address(name) for name in stack.names]
    with stack.client(nodes=nodes) as opened:
        opened.create_volume("vol1")
        opened.create_bucket("vol1", "bucket1")
        yield opened


def test_every_file_that_was_closed_is_there_after_kills(stack: TestStack, client: Client) -> None:
    written: dict[str, bytes] = {}
    counts = {"one request": 0, "unknown": 0}
    counting, done = threading.Lock(), threading.Event()

    def write(thread: int) -> None:
        number = 0
        while not done.is_set():
            path, data = f"/vol1/bucket1/{thread}-{number}", fresh_bytes(SIZE_BYTES + number)
            number += 1
            file = client.open(path, "wb")
            try:
                with file:
                    file.write(data)
            except OutcomeUnknown:
                counts["unknown"] += 1
                continue
            with counting:
                written[path] = data
                counts["one request"] += file.requests == 1

    def write_on() -> None:
        target = len(written) + FILES_BETWEEN
        stack.wait("writers go on", lambda: len(written) >= target or any(one.done() for one in writing))
        assert not any(one.done() for one in writing), [one.result() for one in writing if one.done()]

    with ThreadPoolExecutor(THREADS) as threads:
        writing = [threads.submit(write, thread) for thread in range(THREADS)]
        try:
            write_on()
            for number, victim in enumerate(VICTIMS):
                if victim == "leader":
                    name = stack.wait_leader(0)
                    stack.kill_node(name)
                    write_on()
                    stack.start_node(name)
                else:
                    name = sorted(stack.datanodes)[number % 3]
                    stack.kill_datanode(name)
                    write_on()
                    stack.start_datanode(name)
            write_on()
        finally:
            done.set()
        for one in writing:
            one.result()
    print(f"{len(written)} files closed, {counts}, {len(VICTIMS)} kills")
    assert counts["one request"] > FILES_BETWEEN
    check_written(client, written)
    stack.wait_converged()
