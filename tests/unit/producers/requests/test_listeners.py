"""A client against brokers that are not there, or are none: an answer in words, soon, and nothing on standard error."""

import logging
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaError

from producers import Client
from producers.errors import NotConnected, OutcomeUnknown
from producers.reads.leaders_group import find_nodes
from producers.requests.core.calls import Policy
from producers.requests.listeners import check_listening
from producers.requests.transport import _BrokersDown
from tests.support.sdk.memory import MemoryCluster, client_to
from transport.waiting.deadline import Deadline


@pytest.fixture
def listener():
    """A port where somebody accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_one_listener_of_several_will_do(listener):
    check_listening(f"{free_address()}, PLAINTEXT://{listener},", Deadline.after_s(5))


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.0.0.1:port", "127.0.0.1:99999999", "[::1", "127.0.0.1:1,:,", "\x00"]
)
def test_where_nobody_listens_is_told_with_the_addresses(address):
    with pytest.raises(NotConnected) as caught:
        check_listening(address, Deadline.after_s(0.1))
    assert f"nobody listens at {address}" in str(caught.value)


def test_a_port_that_is_too_large_is_none_although_the_system_would_take_its_last_bits(listener):
    host, _, port = listener.rpartition(":")
    check_listening(listener, Deadline.after_s(5))
    with pytest.raises(NotConnected, match="nobody listens"):
        check_listening(f"{host}:{int(port) + 65_536}", Deadline.after_s(0.1))


@pytest.fixture
def silent():
    """A listener that takes no more connections: packets to it get no answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as queued:
        address = server.getsockname()
        try:
            for _ in range(16):
                queued.enter_context(socket.create_connection(address, 0.2))
        except TimeoutError:
            pass
        else:
            pytest.skip("this system takes more connections than it was told to")
        yield f"127.0.0.1:{address[1]}"


def test_a_broker_that_is_slow_to_answer_is_not_taken_for_none(silent):
    check_listening(silent, Deadline.after_s(0.5))
    check_listening(f"{free_address()},{silent}", Deadline.after_s(5))


def test_a_client_of_a_slow_broker_takes_the_time_that_it_was_given(silent):
    """It gave up after a second, whatever ``connect_timeout_ms`` said."""
    with pytest.raises(NotConnected, match=f"brokers {silent}"):
        Client(silent, connect_timeout_ms=2_500)


def test_a_name_that_nobody_knows_is_told():
    with pytest.raises(NotConnected, match="nobody listens at no.such.host.invalid"):
        check_listening("no.such.host.invalid:9092", Deadline.after_s(0.1))


def test_a_listener_that_is_just_starting_is_found():
    address = free_address()
    host, _, port = address.partition(":")
    servers = []

    def start():
        time.sleep(0.3)
        servers.append(socket.create_server((host, int(port))))

    thread = threading.Thread(target=start)
    thread.start()
    try:
        check_listening(address, Deadline.after_s(10))
    finally:
        thread.join()
        servers[0].close()


def test_a_client_of_nobody_leaves_nothing_on_standard_error():
    code = f"""
from stratolog import Client, NotConnected
try:
    Client({free_address()!r})
except NotConnected as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("NOT_CONNECTED: nobody listens at 127.0.0.1:")


def test_that_all_brokers_are_down_is_told_once_in_a_while(caplog):
    tell = _BrokersDown()
    with caplog.at_level(logging.WARNING):
        for code in (KafkaError._TRANSPORT, *[KafkaError._ALL_BROKERS_DOWN] * 20):
            tell(KafkaError(code))
    assert caplog.messages == ["no broker can be reached; trying on"]


def test_finding_nodes_where_nobody_listens_is_told_soon():
    address = free_address()
    with pytest.raises(NotConnected, match=f"nobody listens at {address}"):
        find_nodes(address, 0.2)


def test_what_listens_and_is_no_broker_is_told(listener, caplog, monkeypatch):
    monkeypatch.setattr("producers.waiting.WORD_AFTER_MS", 100)
    monkeypatch.setattr("producers.requests.transport.ASK_S", 0.3)
    with caplog.at_level(logging.WARNING), pytest.raises(NotConnected, match=f"brokers {listener}"):
        Client(listener, connect_timeout_ms=1_500)
    assert f"connecting to {listener} takes" in caplog.text


def test_a_shard_without_a_leader_is_told_meanwhile_and_at_the_deadline(caplog, monkeypatch):
    monkeypatch.setattr("producers.waiting.WORD_AFTER_MS", 100)
    client, connection = client_to(MemoryCluster(shards=1), Policy(deadline_ms=1_000))
    connection.lost = lambda _sent: True
    with caplog.at_level(logging.WARNING), pytest.raises(OutcomeUnknown, match="no leader of shard 0 answers"):
        client.create_volume("v")
    assert "no leader answers" in caplog.text
    client.close()
