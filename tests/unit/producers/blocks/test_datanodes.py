"""Requests to datanodes: how long one that hangs is waited for."""

import socket
import time
from contextlib import closing

from producers.blocks.datanodes import Datanodes
from producers.errors import DatanodeError
from schemas.records.datanode import BlockWatched, Member, WatchBlock
from schemas.stream_errors import TIMED_OUT

SILENCE_MS = 60_000


def test_a_request_waits_no_longer_for_hello_than_for_its_answer():
    """A datanode that is stopped still accepts connections: its kernel does."""
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        member = Member(datanode="dn1", address=address, http_address="", rack="/r")
        request = WatchBlock(partition=1, container_id=257, local_id=1, length=1, bcs_id=1, timeout_ms=100)
        began = time.monotonic()
        with closing(Datanodes(cluster="test", silence_ms=SILENCE_MS)) as datanodes:
            outcome = datanodes.ask_all([member], request, BlockWatched, timeout_ms=100)["dn1"]
        assert isinstance(outcome, DatanodeError)
        assert outcome.status == TIMED_OUT
        assert time.monotonic() - began < SILENCE_MS / 1000 / 2
