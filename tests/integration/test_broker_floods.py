"""Floods of those who have not logged in, at a secure broker, beside a user whose requests go on; and a supervised stack."""

from __future__ import annotations

import itertools
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from producers import Client
from schemas.access.credentials import operator_credentials
from stratolog.local import stack, state
from stratolog.local.kafka import HEAP_MIB
from stratolog.local.processes import Process, wait_until
from stratolog.nodes.readiness import is_led
from stratolog.supervision.telling import is_left_alone, read_restarts
from tests.support.local.at_work import at_work
from tests.support.local.secure_stack import SecureStack, secure_settings

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
FLOOD = 1_200
MEASURED_S = 6.0
BESIDE_HEAP_MIB = 350
"""What a broker may hold beside its heap."""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureStack]:
    found = SecureStack.start(tmp_path_factory.mktemp("flooded"), auth="signed", datanodes=())
    yield found
    found.close()


def flooding(address: str, context: ssl.SSLContext | None, said: bytes, ended: threading.Event) -> None:
    """Hold as many connections as a share of the flood has; each says its word, and no more. What is closed is made anew."""
    host, _, port = address.rpartition(":")
    held: list[socket.socket] = []
    while not ended.is_set():
        try:
            sock = socket.create_connection((host, int(port)), 0.5)
            sock.settimeout(0.5)
            made = sock if context is None else context.wrap_socket(sock, server_hostname=host)
            made.sendall(said)
            held.append(made)
        except OSError:
            ended.wait(0.01)
        if len(held) >= FLOOD // 6:
            held.pop(0).close()
    for one in held:
        one.close()


def client_of(secure: SecureStack, user: str, **times_ms: Any) -> Client:
    """Return the client of a user at the brokers, who signs as the operator."""
    return Client(
        secure.servers, kafka=secure.user(user), tls=secure.tls(user),
        credentials=operator_credentials(secure.settings.secret()), **times_ms,
    )  # fmt: skip


def test_a_flood_without_a_login_ends_no_broker_and_halves_nobodys_rate(secure: SecureStack) -> None:
    """1,200 at a time: some announce half a MiB, some are silent behind their handshake, some in the middle of one."""
    broker = psutil.Process(secure.member("broker-1").process.pid)
    context = ssl.create_default_context(cafile=secure.authority.ca_file)
    announced = (500_000).to_bytes(4, "big") + b"\0\x12\0\3\0\0\0\1"
    floods = [
        (secure.servers, context, announced), (secure.servers, context, announced), (secure.servers, context, b""),
        (secure.servers, None, b"\x16\x03\x01\x07\0\1\0"), (secure.node_servers, None, b"\x16\x03\x01\x07\0\1\0"),
        (secure.node_servers, context, (2**31 - 1).to_bytes(4, "big")),
    ]  # fmt: skip
    numbers = itertools.count()
    with client_of(secure, "alice", deadline_ms=60_000) as client:
        client.create_volume("flooded")
        client.create_bucket("flooded", "bucket")

        def rate() -> int:
            ends_s, done = time.monotonic() + MEASURED_S, 0
            while time.monotonic() < ends_s:
                client.put_key("flooded", "bucket", f"k{next(numbers)}", b"x" * 100)
                done += 1
            return done

        rate()
        before = rate()
        most_mib = 0
        with at_work(*(partial(flooding, *one) for one in floods)):
            during = []
            for _ in range(5):
                during.append(rate())
                most_mib = max(most_mib, broker.memory_info().rss >> 20)
    assert broker.is_running()
    assert secure.member("broker-1").process.is_running()
    assert sum(during) / len(during) >= before / 2, (before, during)
    assert most_mib < HEAP_MIB[1] + BESIDE_HEAP_MIB
    with client_of(secure, "bob", deadline_ms=200_000, connect_timeout_ms=200_000) as client:
        client.put_key("flooded", "bucket", "afterwards", b"x")


def test_records_that_grow_end_no_broker(secure: SecureStack) -> None:
    """A user's compressed records: topics are uncompressed, so the broker unpacks what it takes."""
    broker = secure.member("broker-1").process
    with client_of(secure, "alice", deadline_ms=120_000) as client:
        client.create_volume("grown")
        client.create_bucket("grown", "bucket")
        numbers = itertools.count()

        def work(ended: threading.Event) -> None:
            while not ended.wait(0.05):
                client.put_key("grown", "bucket", f"k{next(numbers)}", b"x")

        bob = secure.user("bob")
        command = [
            sys.executable, "-m", "tests.support.faults.zip_bombs", secure.servers, str(bob["ssl.ca.location"]), "bob",
            str(bob["sasl.password.file"]), "om.requests", "2",
        ]  # fmt: skip
        with at_work(work):
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=400,
                env={**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"},
            )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout) == {"claim": 0, "one": 0, "many": 0}
        assert secure.member("broker-1").process == broker
        assert broker.is_running()
        before = next(numbers)
        assert before > 20
        client.put_key("grown", "bucket", "afterwards", b"x")


def is_another(kept: SecureStack, name: str, before: Process) -> bool:
    """Say whether a member is another process than before."""
    return kept.member(name).process != before


def test_what_dies_in_a_secure_stack_is_started_again_and_down_ends_the_supervisor(tmp_path: Path) -> None:
    settings = stack.up(secure_settings(tmp_path / "kept", datanodes=()))
    kept = SecureStack(settings)
    supervisor: Process | None = None
    try:
        assert wait_until(lambda: state.supervisor_of(settings.data_dir) is not None, 30)
        supervisor = state.supervisor_of(settings.data_dir)
        for name in ("om1", "broker-1"):
            before = kept.member(name).process
            before.kill()
            assert wait_until(partial(is_another, kept, name, before), 60), name
            assert wait_until(lambda: is_led(settings), 120), name
        assert {name: one.times for name, one in read_restarts(settings.data_dir).items()} == {"om1": 1, "broker-1": 1}
        told = kept.stratolog("status").stdout
        assert "om1 died at " in told
        assert "was started again 1 time" in told
        assert kept.stratolog("admin", "stop-node", "om1", "--kill").returncode == 0
        stopped = kept.member("om1").process
        time.sleep(3)  # three looks
        assert kept.member("om1").process == stopped
        assert kept.stratolog("admin", "start-node", "om1").returncode == 0
        assert not kept.member("om1").is_stopped
    finally:
        with suppress(Exception):
            assert not is_left_alone(settings.data_dir)
        kept.close()
        if supervisor is not None:
            assert not supervisor.is_running()
            supervisor.kill()
    assert not (settings.data_dir).exists() or os.listdir(settings.data_dir) == []
