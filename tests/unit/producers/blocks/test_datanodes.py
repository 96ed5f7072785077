"""Requests to datanodes: to several at once, to one that hangs, and how many at a time."""

import socket
import threading
import time
from contextlib import closing

import pytest

from datanode_processors.errors import BlockError
from producers.blocks.datanodes import Datanodes
from producers.errors import UNREACHABLE, DatanodeError
from schemas.codecs.codec import encode
from schemas.records.datanode import BlockCommitted, BlockWatched, Member, WatchBlock
from schemas.records.packets import Kind, encode_frame
from schemas.stream_errors import BAD_FRAME, BLOCK_DELETED, OVERLOADED, TIMED_OUT
from tests.support.sdk.datanode_peer import OWN, said

SILENCE_MS = 60_000
WAIT_S, WAIT_MS = 30.0, 30_000
WATCH = WatchBlock(partition=1, container_id=257, local_id=1, length=1, bcs_id=0, timeout_ms=0)


def member_of(peer, name="dn1"):
    return Member(datanode=name, address=peer.address, http_address="", rack="/r")


@pytest.fixture
def members(make):
    """Three real datanodes, and their world."""
    world = make()
    return [member_of(node, node.name) for node in world.members()], world


@pytest.fixture
def datanodes():
    with closing(Datanodes(cluster="twin", silence_ms=SILENCE_MS)) as made:
        yield made


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


def test_several_are_asked_at_once_and_each_answers_for_itself(members, datanodes):
    asked, world = members

    def refuse(_):
        raise BlockError(BLOCK_DELETED, "as if")

    world.nodes["dn12"].pipelines.handle = refuse
    world.nodes["dn13"].stop()
    outcomes = datanodes.ask_all(asked, WATCH, BlockWatched, timeout_ms=WAIT_MS)
    assert set(outcomes) == {"dn11", "dn12", "dn13"}
    assert (outcomes["dn11"].datanode, outcomes["dn11"].satisfied) == ("dn11", False)
    assert [outcomes[name].status for name in ("dn12", "dn13")] == [BLOCK_DELETED, UNREACHABLE]
    assert outcomes["dn12"].doing == "WatchBlock"


def test_nobody_is_waited_for_once_the_answers_are_enough(members, datanodes, listens):
    (real, *_), _ = members
    silent = listens()
    outcomes = datanodes.ask_all(
        [real, member_of(silent)], WATCH, BlockWatched, timeout_ms=WAIT_MS, enough=lambda so_far: len(so_far) == 1
    )
    assert isinstance(outcomes[real.datanode], BlockWatched)
    left = outcomes["dn1"]
    assert (left.status, left.datanode, left.doing) == (TIMED_OUT, "dn1", "WatchBlock")
    assert "no answer in 30000" in str(left)
    silent.heard(1000)  # to its end: the connection is not kept, for the answer may still come


def test_another_answer_than_was_asked_for_is_a_bad_frame(datanodes, listens):
    peer = listens()
    committed = BlockCommitted(container_id=257, local_id=1, length=1, bcs_id=1, log_offset=1)

    def answer():
        assert peer.came.wait(WAIT_S)
        peer.heard(len(said(OWN) + encode_frame(Kind.REQUEST, encode(WATCH))))
        peer.say(encode_frame(Kind.REPLY, encode(committed), sequence=1))

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    with pytest.raises(DatanodeError, match="answered with a BlockCommitted") as caught:
        datanodes.ask(member_of(peer), WATCH, BlockWatched)
    answering.join(WAIT_S)
    assert caught.value.status == BAD_FRAME


def test_who_lives_is_told_from_who_does_not(members, datanodes):
    asked, world = members
    world.nodes["dn12"].stop()
    said: list[DatanodeError] = []
    assert datanodes.answers(asked, timeout_ms=5_000, still=said.append) == {"dn11", "dn13"}
    assert [error.datanode for error in said] == ["dn12"]


def test_a_datanode_that_took_anothers_address_gets_none_of_its_connections(members, datanodes):
    (first, *_), _ = members
    datanodes.kept.give_back(kept := datanodes.connect(first))
    stranger = Member(datanode="dn9", address=first.address, http_address="", rack="/r")
    with pytest.raises(DatanodeError, match="now the address of 'dn11', not of 'dn9'"):
        datanodes.ask(stranger, WATCH, BlockWatched)
    assert kept.fileno() < 0


def test_requests_wait_for_their_turn_and_one_that_waits_too_long_is_told():
    with closing(Datanodes(silence_ms=10, max_conversations=1)) as datanodes:
        with datanodes.turn():
            with pytest.raises(DatanodeError, match="too many requests to datanodes") as caught, datanodes.turn():
                pass
        assert caught.value.status == OVERLOADED
        with datanodes.turn():
            pass


def test_a_turn_that_fails_is_over():
    with closing(Datanodes(silence_ms=10, max_conversations=1)) as datanodes:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), datanodes.turn():
                raise ZeroDivisionError
