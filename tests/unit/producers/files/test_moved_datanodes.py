"""Datanodes whose addresses change, and what listens where they were; commits that do not end; frames that trickle."""

import logging
import socket
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.server import StreamServer
from producers import waiting
from producers.blocks import datanode_directory
from producers.blocks.block_commit import BlockCommitter
from producers.blocks.block_writer import BlockWriter
from producers.blocks.datanodes import WORDS, Datanodes
from producers.errors import UNREACHABLE, DatanodeError, StratologError
from producers.files.key_reader import KeyReader
from producers.waiting import WORD_AFTER_MS
from schemas.codecs.codec import encode
from schemas.records.datanode import Hello, Member
from schemas.records.packets import MAX_HELLO_BYTES, MIN_VERSION, VERSION, Kind, encode_frame
from schemas.stream_errors import BAD_FRAME, TIMED_OUT
from tests.support.sdk.datanodes import CLUSTER, KIB
from tests.support.sdk.written import some_bytes
from transport.datanodes import connection as connection_module
from transport.datanodes.connection import DatanodeCaller, DatanodeConnection


def move(node, *, cluster=CLUSTER):
    """Have a datanode come back at another port; return the old address."""
    old = node.address
    node.server.stop()
    node.server = StreamServer(
        name=node.name, cluster=cluster, host="127.0.0.1", port=0, blocks=node.blocks.store, pipelines=node.pipelines,
        note=lambda message, **_: node.notes.append(message), limits=WireLimits(stop_grace_s=0.0, linger_s=0.2),
    )  # fmt: skip
    node.address = f"127.0.0.1:{node.server.port}"
    assert node.address != old
    return old


class Stranger:
    """Listens where a datanode was; answers with ``words`` each time, and then says no more."""

    def __init__(self, address, words=b""):
        host, port = address.split(":")
        self.words = words
        self.met = 0
        self._connections: list[socket.socket] = []
        self._server = socket.create_server((host, int(port)), reuse_port=False)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.met += 1
            self._connections.append(connection)
            if self.words:
                connection.sendall(self.words)

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)  # this wakes who accepts; closing does not
        self._thread.join(30)
        self._server.close()
        for connection in self._connections:
            connection.close()


def hello(peer, cluster=CLUSTER):
    greeting = Hello(
        peer=peer, cluster=cluster, min_version=MIN_VERSION, max_version=VERSION, max_payload_bytes=1 << 20
    )
    return encode_frame(Kind.HELLO, encode(greeting))


STRANGERS = {
    "nobody": None,
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 100,
    "another datanode": hello("dn99"),
    "another cluster": hello("dn11", "other"),
    "a newer datanode": encode_frame(Kind.HELLO, b"\xc3\x01newerver" + b"x" * 20),
}


@pytest.fixture(params=STRANGERS)
def stranger(request):
    opened = []

    def listen(address):
        if STRANGERS[request.param] is not None:
            opened.append(Stranger(address, STRANGERS[request.param]))

    yield listen
    for one in opened:
        one.close()


def test_a_key_is_read_where_its_datanodes_are_now(make, stranger):
    world = make()
    data = some_bytes(700 * KIB)
    world.put(data)
    assert world.get() == data
    for node in world.members():
        stranger(move(node))
    assert world.get() == data


def test_an_open_file_goes_on_where_its_datanodes_are_now(make, stranger):
    world = make()
    data = some_bytes(900 * KIB)
    world.put(data)
    with world.client.open("/v/b/k") as file:
        assert file.read(10 * KIB) == data[: 10 * KIB]
        for node in world.members():
            stranger(move(node))
        assert file.read() == data[10 * KIB :]


@pytest.mark.parametrize("way", [0, 1, 2, 3])
def test_a_block_goes_on_where_its_datanodes_are_now(make, stranger, way):
    world = make(commit_way=way)
    data = some_bytes(900 * KIB)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data[: 300 * KIB])
        file.flush()
        for node in world.members():
            stranger(move(node))
        file.write(data[300 * KIB :])
    found = file.statistics()
    assert (found.blocks, found.failed_blocks) == (1, 0)
    # A commit was under way: its watch may have done without one of them, which catches up later.
    assert world.get() == data


def test_a_commit_goes_where_the_datanodes_are_now(make, stranger):
    """The stream has ended, so nobody but the commit's own requests meets the change."""
    world = make()
    data = some_bytes(100 * KIB)
    world.put(data, "/v/b/before")
    moved: list[str] = []

    def refuse(_put):
        if not moved:
            for node in world.members():
                moved.append(move(node))
                stranger(moved[-1])

    world.logs[1].refuse = refuse
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data)
    assert file.statistics().failed_blocks == 0
    assert world.get() == data


def test_keys_after_it_know_the_new_addresses_at_once(make):
    world = make()
    data = some_bytes(100 * KIB)
    world.put(data)
    for node in world.members():
        move(node)
    world.put(data, "/v/b/k2")
    assert world.put(data, "/v/b/k3").resumed_streams == 0


def test_two_names_never_lead_to_one_datanode(make):
    """The list is stale: dn12 listens where dn11 was. A watch that asked it by both names would take one replica for a majority."""
    world = make()
    nodes = world.members()
    datanodes = Datanodes(cluster=CLUSTER)
    member = Member(datanode=nodes[0].name, address=nodes[1].address, http_address="", rack="/r")
    with closing(datanodes), pytest.raises(DatanodeError, match="is now the address of 'dn12'") as caught:
        datanodes.connect(member)
    assert caught.value.status == UNREACHABLE
    assert datanodes.answers([member], timeout_ms=1_000) == set()


def test_without_an_answer_of_the_object_manager_the_error_names_the_datanode(make, monkeypatch):
    monkeypatch.setattr(datanode_directory, "TRY_MS", 200)
    world = make(commit_timeout_ms=300)
    world.put(b"x" * 1000)
    for node in world.members():
        move(node)
    world.om.respond = lambda _target: (503, b'{"error": "NO_LEADER", "message": "nobody leads"}')
    reader = KeyReader(world.client.streams, world.key().blocks)
    with closing(reader), pytest.raises(DatanodeError, match=r"dn1\d: HELLO: 127.0.0.1:\d+: cannot connect"):
        reader.next_bytes(0, 10)


def test_a_wait_is_not_without_a_word(make, caplog, monkeypatch):
    assert WORD_AFTER_MS <= 2_000
    assert connection_module.SLOW_HELLO_MS <= 2_000
    monkeypatch.setattr(connection_module, "SLOW_HELLO_MS", 100)
    monkeypatch.setattr(waiting, "WORD_AFTER_MS", 100)
    world = make()
    world.client.streams._datanodes = Datanodes(cluster=CLUSTER, connect_timeout_ms=200)
    world.put(b"x" * 1000)
    addresses = [move(node) for node in world.members()]
    strangers = [Stranger(address) for address in addresses]
    for node, address in zip(world.members(), addresses, strict=True):
        node.address = address  # the Object Manager does not know it either
    with caplog.at_level(logging.WARNING, "stratolog.client"), pytest.raises(DatanodeError):
        world.get()
    for one in strangers:
        one.close()
    assert any("says no HELLO" in record.getMessage() for record in caplog.records)
    assert any("reading block" in record.getMessage() for record in caplog.records)


# -- HELLO


@pytest.mark.parametrize(
    "words",
    [
        encode_frame(Kind.HELLO, b"\xc3\x01newerver" + b"x"), encode_frame(Kind.HELLO, b""),
        encode_frame(Kind.HELLO, b"x" * (MAX_HELLO_BYTES + 1)), encode_frame(Kind.REPLY, b""),
    ],
    ids=["unknown", "empty", "large", "reply"],
)  # fmt: skip
def test_a_hello_that_cannot_be_read_is_an_error_of_that_datanode(words):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    member = Member(datanode="dn1", address=address, http_address="", rack="/r")
    with closing(Stranger(address, words)), closing(Datanodes(cluster="c")) as datanodes:
        with pytest.raises(DatanodeError, match="dn1: HELLO") as caught:
            datanodes.connect(member)
        assert caught.value.status == BAD_FRAME
        assert datanodes.answers([member], timeout_ms=1_000) == set()


def test_a_frame_that_trickles_is_not_waited_for_for_ever():
    silence_ms = 300
    ended = threading.Event()

    def trickle(server):
        connection, _ = server.accept()
        connection.sendall(hello("dn1"))
        for byte in encode_frame(Kind.REPLY, b"x" * 1000):
            if ended.wait(0.05):
                break
            connection.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=trickle, args=(server,), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        greeting = Hello(
            peer="client", cluster=CLUSTER, min_version=MIN_VERSION, max_version=VERSION, max_payload_bytes=1
        )
        connection = DatanodeConnection(
            address, DatanodeCaller(greeting, words=WORDS), datanode="dn1", silence_ms=silence_ms
        )
        with closing(connection), pytest.raises(DatanodeError, match="does not send a whole frame in time") as caught:
            connection.receive(silence_ms)
        assert caught.value.status == TIMED_OUT
        ended.set()


# -- commits that do not end


def test_a_commit_that_ends_after_its_block_was_given_up_changes_nothing(make, monkeypatch):
    """It ended between the two questions what of the block stays, and which bytes are left: some were in neither."""
    world = make(pipelines=2, commit_timeout_ms=200)
    data = some_bytes(900 * KIB)
    stuck, go_on = threading.Event(), threading.Event()
    real = BlockCommitter.make_durable

    def make_durable(self, length, checksums, **more):
        if not stuck.is_set():
            stuck.set()
            assert go_on.wait(60)
            more["timeout_ms"] = 60_000
        return real(self, length, checksums, **more)

    salvaged = BlockWriter.salvage

    def salvage(self, failure):
        found = salvaged(self, failure)
        if self.stuck:
            go_on.set()
            assert self._commits._under_way is not None
            self._commits._under_way.exception(60)  # it ends well right now
        return found

    monkeypatch.setattr(BlockCommitter, "make_durable", make_durable)
    monkeypatch.setattr(BlockWriter, "salvage", salvage)
    with world.client.open("/v/b/k", "wb") as file:
        file.write(data)
    assert go_on.is_set()
    assert file.statistics().failed_blocks == 1
    assert world.get() == data
    world.check_replicas(data)


def test_a_commit_that_never_ends_keeps_no_other_block_waiting(make, monkeypatch):
    world = make(pipelines=2, commit_timeout_ms=200)
    data = some_bytes(900 * KIB)
    stuck, at_last = threading.Event(), threading.Event()
    real = BlockCommitter.make_durable

    def make_durable(self, *arguments, **more):
        if not stuck.is_set():
            stuck.set()
            at_last.wait(60)
        return real(self, *arguments, **more)

    monkeypatch.setattr(BlockCommitter, "make_durable", make_durable)
    try:
        with world.client.open("/v/b/k", "wb") as file:
            file.write(data)
        assert world.get() == data
        assert not at_last.is_set()
    finally:
        at_last.set()


def commit_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("stratolog-commit")]


def until(condition):
    for _ in range(3_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to pass")


def test_a_stuck_commit_of_the_block_before_leaves_that_of_the_current_one_alone(make, monkeypatch):
    """Both ran on one thread, and rescuing the one block shut it down under the other."""
    world = make(pipelines=3, commit_timeout_ms=200, block_bytes=512 * KIB)
    data = some_bytes(1400 * KIB)
    stuck, at_last = threading.Event(), threading.Event()
    real = BlockCommitter.make_durable

    def make_durable(self, length, *arguments, **more):
        if (
            length == 512 * KIB and not stuck.is_set()
        ):  # that of a whole block, whose watch goes on while the next is written
            stuck.set()
            at_last.wait(60)
        return real(self, length, *arguments, **more)

    monkeypatch.setattr(BlockCommitter, "make_durable", make_durable)
    try:
        with world.client.open("/v/b/k", "wb") as file:
            for at in range(0, len(data), 50 * KIB):
                file.write(data[at : at + 50 * KIB])
        assert stuck.is_set()
        assert file.statistics().failed_blocks == 1
        assert world.get() == data
    finally:
        at_last.set()


@pytest.mark.parametrize("ends", ["close", "abort", "fails", "interrupted"])
def test_no_thread_of_a_block_outlives_it(make, ends):
    world = make(pipelines=2, block_bytes=256 * KIB, flush_bytes=64 * KIB, window_bytes=64 * KIB, commit_timeout_ms=300)
    before = set(commit_threads())
    file = world.client.open("/v/b/k", "wb")
    file.write(some_bytes(900 * KIB))
    if ends == "fails":
        for node in world.nodes.values():
            node.stop()
        with pytest.raises(DatanodeError):
            file.write(some_bytes(900 * KIB))
    elif ends == "interrupted":
        file.interrupt("enough")
        with pytest.raises(StratologError):
            file.close()
    else:
        # One for the block that is written, and one for that before it.
        until(lambda: len(set(commit_threads()) - before) <= 2)
        getattr(file, ends)()
    until(lambda: not set(commit_threads()) - before)


def test_a_datanode_that_is_known_to_be_dead_costs_no_read_a_question(make):
    world = make()
    data = some_bytes(1000)
    world.put(data)
    dead = world.members()[0]
    dead.stop()
    directory = world.client.streams.directory
    view = directory.pipeline("pipeline-1")
    gone = next(member for member in view.members if member.datanode == dead.name)
    asked = []
    real = world.om.respond

    def respond(target):
        asked.append(target)
        return real(target)

    world.om.respond = respond
    assert directory.whereabouts(view, gone, again=False) == gone
    assert len(asked) == 1
    for _ in range(20):
        assert world.client.open("/v/b/k").read() == data
        assert directory.whereabouts(view, gone, again=False) == gone
    assert not [target for target in asked[1:] if target.startswith(datanode_directory.PATH)]
    assert directory.whereabouts(view, gone, again=True) == gone
    assert len([target for target in asked if target.startswith(datanode_directory.PATH)]) == 2


def test_who_waits_to_ask_again_does_not_keep_others(make, monkeypatch):
    world = make()
    directory = world.client.streams.directory
    view = directory.pipeline("pipeline-1") if directory.cluster_name() else None
    held = []
    real = time.sleep

    def sleep(_seconds):
        held.append(directory._lock.locked())
        real(0.01)

    directory.refresh()
    monkeypatch.setattr(datanode_directory, "MIN_REFRESH_MS", 60_000)
    waiter = threading.Thread(target=directory.current, args=(view,), daemon=True)
    monkeypatch.setattr(datanode_directory, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    waiter.start()
    until(lambda: held)
    directory._asked_at_s = float("-inf")
    waiter.join(30)
    assert not waiter.is_alive()
    assert not any(held)


def test_who_may_ask_does_and_an_object_manager_that_just_failed_is_left_alone(make, monkeypatch):
    world = make()
    directory = world.client.streams.directory
    directory.cluster_name()
    monkeypatch.setattr(datanode_directory, "MIN_REFRESH_MS", 0)
    real, asked = world.om.respond, []

    def respond(target):
        asked.append(target)
        return real(target)

    world.om.respond = respond
    directory.try_refresh()
    assert len(asked) == 1

    def fail(target):
        asked.append(target)
        return 500, b"{}"

    world.om.respond = fail
    directory.try_refresh()
    assert len(asked) > 1
    del asked[1:]
    directory.try_refresh()
    assert len(asked) == 1, "it has just failed"
