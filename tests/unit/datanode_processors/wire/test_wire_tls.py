"""The datanodes' protocol in TLS: the same bytes, and nobody in who is not who they must be."""

from __future__ import annotations

import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from datanode_processors.errors import BlockError
from datanode_processors.wire import wire_tls
from datanode_processors.wire.core.limits import WireLimits
from datanode_processors.wire.core.permits import MAY, check_request
from datanode_processors.wire.kept_peers import KeptPeers
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire import WireClosed, connect, read_error, read_record
from datanode_processors.wire.wire_tls import WireTls
from om_processors.fleet.datanode_client import ask
from schemas import stream_errors
from schemas.codecs.codec import encode
from schemas.conversation.conversation import own_hello
from schemas.records import datanode as requests
from schemas.records.datanode import (
    BlockId,
    BlocksWritten,
    ClosePipeline,
    DeleteBlocks,
    Forwarded,
    GetBlock,
    ReadBlock,
    Route,
)
from schemas.records.packets import Kind
from schemas.security.certificates import PeerIdentity, Role, WrongPeer
from schemas.security.tls import ProcessTls
from schemas.security.tls_socket import TlsSocket
from tests.support.datanodes.streams import (
    CELL,
    CLUSTER,
    CONTAINER,
    PARTITION,
    Client,
    Datanode,
    blocks_together,
    introduce,
    put_block,
)
from tests.support.local.forked import in_child
from tests.support.security.certified import Certified
from transport.datanodes.connection import DatanodeCaller, DatanodeConnection
from transport.datanodes.core.failures import BROKEN, DatanodeFailed
from transport.datanodes.dialing import dial
from transport.waiting.deadline import Deadline

DAY_S = 86_400


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certified = Certified(folder / "authority")
        self.nodes: list[Datanode] = []

    def tls(self, name: str, role: Role = Role.CLIENT) -> WireTls:
        return WireTls(self.certified.tls(name, role))

    def start(self, count: int, *, limits: WireLimits | None = None) -> list[Datanode]:
        for number in range(1, count + 1):
            name = f"dn{number}"
            tls = self.tls(name, Role.DATANODE)
            self.nodes.append(Datanode(name, self.folder, limits, tls=tls))
        introduce(self.nodes)
        return self.nodes

    def routes(self) -> list[Route]:
        nodes = self.nodes
        return [
            Route(datanode=node.name, address=node.address, children=[nodes[n + 1].name] if n + 1 < len(nodes) else [])
            for n, node in enumerate(nodes)
        ]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    for node in found.nodes:
        node.stop()


def write_block(address: str, routes: list[Route], data: bytes, *, tls: WireTls, block: int = 1, packet: int = CELL):
    """Stream a block and hear what comes back afterwards: a TLS connection is for one thread."""
    client = Client(address, tls=tls)
    client.open(routes, block=block)
    client.data(data, offset=0, packet=packet)
    client.send(Kind.END, encode(put_block(data, block)), offset=len(data))
    client.until_end()
    client.close()


def read(length: int, block: int = 1) -> ReadBlock:
    return ReadBlock(
        partition=PARTITION, container_id=CONTAINER, local_id=block, offset=0, length=length, bcs_id=0,
        committed_only=True,
    )  # fmt: skip


@pytest.mark.parametrize("packet", [1000, CELL, 3 * CELL + 7])
def test_bytes_arrive_on_every_replica_and_are_read_back(site: Site, packet: int):
    nodes = site.start(3)
    data = random.Random(1).randbytes(3 * 1024 * 1024 + 17)
    tls = site.tls("somebody")
    write_block(nodes[0].address, site.routes(), data, packet=packet, tls=tls)
    assert [node.bytes_of() == data for node in nodes] == [True] * 3
    with Peer(nodes[0].address, own="dn2", cluster=CLUSTER, timeout_s=10, tls=site.tls("dn2", Role.DATANODE)) as peer:
        assert b"".join(bytes(piece) for _, piece, _ in peer.read_block(read(len(data)))) == data


def test_two_streams_at_once_and_a_reader_that_is_slow(site: Site):
    nodes = site.start(2)
    data = os.urandom(8 * 1024 * 1024)
    tls = site.tls("somebody")
    threads = [
        threading.Thread(
            target=write_block,
            args=(nodes[0].address, site.routes(), data),
            kwargs={"block": n, "tls": tls},
        )
        for n in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nodes[1].bytes_of(1) == nodes[1].bytes_of(2) == data
    with Peer(nodes[0].address, own="dn2", cluster=CLUSTER, timeout_s=10, tls=site.tls("dn2", Role.DATANODE)) as peer:
        got = bytearray()
        for _, piece, _ in peer.read_block(read(len(data))):
            if not len(got) % (2 * 1024 * 1024):
                time.sleep(0.2)  # the server's socket fills: its records wait
            got += piece
    assert got == data


def test_the_clients_own_connection_speaks_it_too(site: Site):
    (node,) = site.start(1)
    data = os.urandom(300_000)
    write_block(node.address, site.routes(), data, tls=site.tls("somebody"))
    caller = DatanodeCaller(own_hello("client", CLUSTER), site.certified.tls("somebody", Role.CLIENT))
    connection = DatanodeConnection(node.address, caller, datanode="dn1")
    connection.send_request(read(len(data)))
    got = b""
    while len(got) < len(data):
        event = connection.receive(5_000)
        got += bytes(event.payload)  # type: ignore[union-attr]
    assert got == data
    connection.close()
    with pytest.raises(DatanodeFailed, match="is that of datanode dn1, not of datanode dn2"):
        DatanodeConnection(node.address, caller, datanode="dn2")


def test_a_plain_client_and_a_plain_server_are_refused(site: Site, tmp_path: Path):
    (node,) = site.start(1)
    with pytest.raises((WireClosed, BlockError)):
        Client(node.address)
    plain = Datanode("dn9", tmp_path / "plain")
    site.nodes.append(plain)
    with pytest.raises(WireClosed, match="TLS: "):
        Client(plain.address, tls=site.tls("somebody"))
    with pytest.raises(DatanodeFailed, match="TLS: "):
        DatanodeConnection(
            plain.address, DatanodeCaller(own_hello("client", CLUSTER), site.certified.tls("c", Role.CLIENT))
        )
    with pytest.raises(DatanodeFailed, match="TLS: "):
        ask(plain.address, get_block(), own="om1", cluster=CLUSTER, tls=site.certified.tls("om1", Role.OM))


def get_block() -> GetBlock:
    return GetBlock(partition=PARTITION, container_id=CONTAINER, local_id=1)


def read_all(sock: socket.socket) -> None:
    while sock.recv(1000):
        pass


def expired(site: Site, tmp_path: Path) -> WireTls:
    return WireTls(site.certified.tls("late", Role.CLIENT, now_s=int(time.time()) - 31 * DAY_S))


def foreign(site: Site, tmp_path: Path) -> WireTls:
    # It trusts the site's authority, and shows a certificate of its own one.
    other = Certified(tmp_path / "other").files("somebody", Role.CLIENT)
    files = site.certified.files("unused", Role.CLIENT)
    return WireTls(ProcessTls(type(files)(ca=files.ca, certificate=other.certificate)))


@pytest.mark.parametrize("stranger", [expired, foreign])
def test_a_stranger_says_nothing_that_is_heard(
    site: Site, tmp_path: Path, stranger: Callable[[Site, Path], WireTls]
) -> None:
    (node,) = site.start(1)
    with pytest.raises((WireClosed, BlockError)):
        Client(node.address, tls=stranger(site, tmp_path))
    assert node.server.snapshot().streams == 0
    Client(node.address, tls=site.tls("somebody")).close()


def test_a_peer_without_a_certificate_is_not_heard(site: Site):
    (node,) = site.start(1)
    context = ssl.create_default_context(cafile=site.certified.authority.ca_file)
    host, _, port = node.address.partition(":")
    with socket.create_connection((host, int(port)), 5) as sock, context.wrap_socket(sock, server_hostname=host) as tls:
        with pytest.raises(OSError, match="(?i)certificate required|reset"):
            read_all(tls)


def test_a_server_that_is_no_datanode_or_another_host_is_refused(site: Site, tmp_path: Path):
    wrong_role = Datanode("dn8", tmp_path / "om", tls=site.tls("om1", Role.OM))
    site.nodes.append(wrong_role)
    with pytest.raises(WireClosed, match="is that of om om1, not of datanode"):
        Client(wrong_role.address, tls=site.tls("somebody"))
    site.start(1)
    host, _, port = site.nodes[-1].address.partition(":")
    with socket.create_connection((host, int(port)), 5) as sock, pytest.raises(OSError, match="(?i)mismatch"):
        site.tls("somebody").client.wrap_socket(sock, server_hostname="elsewhere.example")


def test_hello_has_the_certificates_name(site: Site):
    (node,) = site.start(1)
    impostor = Client(node.address, tls=site.tls("dn3", Role.DATANODE), name="dn2")
    error = read_error(impostor.answer())
    assert (error.code, error.message) == (
        stream_errors.PERMISSION_DENIED, "HELLO is of 'dn2', the certificate is that of datanode dn3",
    )  # fmt: skip
    impostor.close()


def refusal_of(client: Client, request: object) -> tuple[str, str]:
    error = read_error(client.request(request))
    return error.code, error.message


def test_administration_is_for_object_managers_alone(site: Site):
    (node,) = site.start(1)
    close = ClosePipeline(partition=PARTITION, generation=1)
    for name, role in (("somebody", Role.CLIENT), ("dn2", Role.DATANODE), ("root", Role.ADMIN), ("a", Role.AUDIT)):
        client = Client(node.address, tls=site.tls(name, role), name=name)
        assert refusal_of(client, close) == (
            stream_errors.PERMISSION_DENIED, f"a ClosePipeline is not for {role} {name} to send",
        )  # fmt: skip
        client.close()
    with pytest.raises(DatanodeFailed, match="ClosePipeline is not for this datanode"):
        ask(
            node.address, close, own="om1", cluster=CLUSTER, datanode="dn1",
            tls=site.certified.tls("om1", Role.OM),
        )  # fmt: skip
    with pytest.raises(DatanodeFailed, match="is that of datanode dn1, not of datanode dn2"):
        ask(
            node.address, close, own="om1", cluster=CLUSTER, datanode="dn2",
            tls=site.certified.tls("om1", Role.OM),
        )  # fmt: skip


def test_a_datanode_that_is_no_member_forwards_nothing(site: Site):
    (node,) = site.start(1)
    inner = encode(DeleteBlocks(partition=PARTITION, blocks=[BlockId(container_id=1, local_id=1)]))
    stranger = Client(node.address, tls=site.tls("dn7", Role.DATANODE), name="dn7")
    code, message = refusal_of(stranger, Forwarded(by="dn7", request=inner))
    assert code == stream_errors.PERMISSION_DENIED
    assert message == "datanode dn7 is no member of the pipeline of partition 3: dn1, dn2, dn3 are"
    stranger.close()
    member = Client(node.address, tls=site.tls("dn2", Role.DATANODE), name="dn2")
    assert refusal_of(member, Forwarded(by="dn3", request=inner))[0] == stream_errors.PERMISSION_DENIED
    member.close()
    outsider = Client(node.address, tls=site.tls("dn7", Role.DATANODE), name="dn7")
    with pytest.raises(BlockError, match="dn7 is no member"):
        outsider.open(site.routes())
    outsider.close()


class Lure:
    """A port to which a client would have a datanode connect."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def was_called(self) -> bool:
        try:
            self._listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def lure() -> Iterator[Lure]:
    found = Lure()
    yield found
    found.close()


def test_a_datanode_calls_members_where_the_node_says_and_nobody_where_a_client_says(site: Site, lure: Lure):
    first, second = site.start(2)
    routes = [site.routes()[0], Route(datanode="dn2", address=lure.address, children=[])]
    tls = site.tls("somebody")
    write_block(first.address, routes, b"streamed", tls=tls)
    client = Client(first.address, tls=tls)
    together = read_record(client.request(blocks_together(routes, [(2, b"together")])))
    assert isinstance(together, BlocksWritten)
    assert [outcome.code for outcome in together.outcomes] == [""]
    assert [second.bytes_of(), second.bytes_of(2)] == [b"streamed", b"together"]
    routes = [
        Route(datanode="dn1", address=first.address, children=["dn9"]),
        Route(datanode="dn9", address=lure.address, children=[]),
    ]
    error = read_error(client.request(blocks_together(routes, [(3, b"together")])))
    assert (error.code, error.message) == (
        stream_errors.INVALID_REQUEST, "datanode dn9 is no member of pipeline-3",
    )  # fmt: skip
    with pytest.raises(BlockError, match="INVALID_REQUEST.*dn9 is no member of pipeline-3"):
        client.open(routes, block=4)
    client.close()
    assert not lure.was_called()
    assert not any(node.path(number).exists() for node in site.nodes for number in (3, 4))


def test_who_may_ask_for_what_is_told_for_every_request():
    records = {one for one in vars(requests).values() if isinstance(one, type) and one.__module__ == requests.__name__}
    sent = {one for one in records if one.__name__ in {
        "OpenPipeline", "ClosePipeline", "CloseContainer", "FetchContainer", "DeleteBlocks", "Forwarded", "OpenStream",
        "PutBlock", "WriteChunk", "WatchBlock", "GetBlock", "ReadBlock", "SalvageBlock", "ListContainer",
        "WriteBlocks", "WatchBlocks", "PutBlocks", "BlockTokenKeys",
    }}  # fmt: skip
    assert sent == set(MAY)
    for identity in (None, *(PeerIdentity(name="x", role=role) for role in Role)):
        with pytest.raises(BlockError, match="not for"):
            check_request(identity, object())
    with pytest.raises(BlockError, match="a DeleteBlocks is not for a peer without a certificate to send"):
        check_request(None, DeleteBlocks(partition=1, blocks=[]))


def test_a_silent_peer_and_one_of_garbage_delay_nobody(site: Site):
    (node,) = site.start(1, limits=WireLimits(handshake_timeout_s=1.0, stop_grace_s=0.2))
    host, _, port = node.address.partition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    garbage = random.Random(7)
    for sock in silent[10:]:
        sock.sendall(garbage.randbytes(garbage.randrange(1, 5000)))
    begun = time.monotonic()
    Client(node.address, tls=site.tls("somebody")).close()
    assert time.monotonic() - begun < 1.0
    for sock in silent:
        sock.settimeout(5)
        with suppress(OSError):
            read_all(sock)
        sock.close()
    assert not [note for note in node.notes if "defect" in note]


def test_a_stop_in_the_middle_says_nothing_in_clear(site: Site):
    nodes = site.start(2)
    client = Client(nodes[0].address, tls=site.tls("somebody"))
    client.open(site.routes())
    client.data(os.urandom(CELL), offset=0)
    while nodes[1].server.snapshot().streams == 0:
        time.sleep(0.01)
    threading.Thread(target=nodes[0].stop).start()
    codes = set()
    while True:
        frame = client.answer()
        if frame.header.kind is Kind.ERROR:
            codes.add(read_error(frame).code)
            break
    assert codes == {stream_errors.STOPPING}  # read in TLS: in clear it would not have been one
    client.close()


def test_a_renewed_certificate_is_shown_to_the_next_connection(site: Site):
    now_s = int(time.time())
    old = ProcessTls(site.certified.files("dn1", Role.DATANODE, now_s=now_s - 25 * DAY_S))
    node = Datanode("dn1", site.folder, tls=WireTls(old))
    site.nodes.append(node)
    tls = site.tls("somebody")
    before = Client(node.address, tls=tls)
    site.certified.files("dn1", Role.DATANODE, now_s=now_s)
    after = Client(node.address, tls=tls)
    ends = [client.wire.sock.certificate["notAfter"] for client in (before, after)]  # type: ignore[union-attr,index]
    assert ends[0] != ends[1]
    assert refusal_of(before, get_block())[0] == stream_errors.INVALID_REQUEST  # the older connection goes on
    before.close()
    after.close()


def test_a_certificate_that_names_nobody_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch):
    (node,) = site.start(1)
    tls = site.tls("somebody")

    def nobody(_: object) -> PeerIdentity:
        raise WrongPeer("the certificate names nobody")

    monkeypatch.setattr(wire_tls, "identity_of", nobody)
    with dial(node.address, Deadline.after_s(5), tls.client) as dialled:
        with pytest.raises(BlockError, match="names nobody") as caught:
            wire_tls.identity_on(dialled)
        assert caught.value.code == stream_errors.PERMISSION_DENIED
    with dial(node.address, Deadline.after_s(5)) as plain:
        assert wire_tls.identity_on(plain) is None, "nobody is known on a plain connection"


def test_a_caller_refuses_a_datanode_whose_hello_is_not_that_of_its_certificate(site: Site, tmp_path: Path):
    impostor = Datanode("dn2", tmp_path / "impostor", tls=site.tls("dn3", Role.DATANODE))
    site.nodes.append(impostor)
    named = "HELLO is of 'dn2', the certificate is that of datanode dn3"
    with pytest.raises(BlockError, match=named) as caught:
        Peer(impostor.address, own="dn1", cluster=CLUSTER, timeout_s=10, tls=site.tls("dn1", Role.DATANODE))
    assert caught.value.code == stream_errors.PERMISSION_DENIED
    with pytest.raises(DatanodeFailed, match=named) as failed:
        ask(impostor.address, get_block(), own="om1", cluster=CLUSTER, tls=site.certified.tls("om1", Role.OM))
    assert failed.value.status == stream_errors.PERMISSION_DENIED


def test_a_process_that_closes_inherited_connections_leaves_those_of_the_first_one_usable(site: Site):
    (node,) = site.start(1)
    with closing(KeptPeers(own="dn2", cluster=CLUSTER, timeout_s=10, tls=site.tls("dn2", Role.DATANODE))) as peers:

        def ask_once() -> None:
            with pytest.raises(BlockError) as refused:
                peers.begin("dn1", node.address, lambda peer: peer.begin(get_block())).answer()
            assert refused.value.code not in BROKEN

        ask_once()
        (kept,) = peers.pool.connections()
        assert in_child(lambda: peers.pool.take(node.address) is None and kept.fileno() < 0)
        ask_once()
        assert peers.pool.connections() == [kept]


def test_a_child_with_another_ones_certificate_is_named(site: Site, tmp_path: Path):
    (node,) = site.start(1)
    impostor = Datanode("dn2", tmp_path / "impostor", tls=site.tls("dn3", Role.DATANODE))
    site.nodes.append(impostor)
    introduce(site.nodes)
    client = Client(node.address, tls=site.tls("somebody"))
    with pytest.raises(BlockError, match="HELLO is of 'dn2', the certificate is that of datanode dn3") as caught:
        client.open(site.routes())
    assert (caught.value.code, caught.value.hint, caught.value.datanode) == (
        stream_errors.DOWNSTREAM_FAILED, stream_errors.PERMISSION_DENIED, "dn2",
    )  # fmt: skip
    client.close()


def test_small_frames_that_are_in_a_record_already_come_before_all_others(site: Site):
    """The kernel takes nothing more: a frame counts as sent if TLS is committed to it, and none is sent twice."""
    accepted: list[TlsSocket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            sock, _ = listener.accept()
            accepted.append(site.tls("dn2", Role.DATANODE).accept(sock, 30))

        accepting = threading.Thread(target=accept)
        accepting.start()
        wire = connect(f"127.0.0.1:{listener.getsockname()[1]}", 30, site.tls("dn1", Role.DATANODE))
        accepting.join()
    frames = [number.to_bytes(4, "big") * 250 for number in range(100_000)]
    sent = next(number for number, frame in enumerate(frames) if not wire.send_small(frame))
    assert not wire.send_small(frames[sent])
    expected = b"".join(frames[: sent + 1])
    heard = bytearray()

    def hear() -> None:
        space = bytearray(1 << 16)
        accepted[0].settimeout(30)
        while len(heard) < len(expected):
            heard.extend(space[: accepted[0].recv_into(space)])

    hearing = threading.Thread(target=hear)
    hearing.start()
    wire.wait_send(frames[sent], timeout_s=30)
    hearing.join(30)
    assert bytes(heard) == expected
    wire.close()
    accepted[0].close()
