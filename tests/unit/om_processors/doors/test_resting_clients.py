"""Clients of the direct door that rest: they make room for others when all places are taken, and lose nothing by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from om_processors.doors import direct_door, door_connection
from om_processors.doors.core import room
from producers import Client
from schemas.codecs.codec import decode_as, encode
from schemas.door.frames import UPGRADE, DoorKind, door_frame
from schemas.records.datanode import StreamError
from schemas.records.messages import CreateVolume, Response
from tests.support.local.waiting import eventually
from tests.support.om.door_site import DoorSite
from tests.support.om.om_world import request_of
from tests.support.om.raw_door import DoorClosed, RawDoor

WAIT_S = 30.0
PLACES = 3
REST_S = 0.3
REQUEST = door_frame(DoorKind.REQUESTS, encode(request_of(CreateVolume(volume="v"))))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[DoorSite]:
    monkeypatch.setattr(direct_door, "MAX_DOOR_CONNECTIONS", PLACES)
    monkeypatch.setattr(direct_door, "LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr(room, "REST_S", REST_S)
    with DoorSite() as found:
        yield found


def raw(site: DoorSite) -> RawDoor:
    return RawDoor(site.address, timeout_s=WAIT_S)


def served(door: RawDoor) -> bool:
    door.send(REQUEST)
    return decode_as(Response, door.hear(DoorKind.ANSWERS).payload).status == "OK"


def resting(site: DoorSite) -> int:
    """Return how many connections have rested long enough to make room."""

    async def count() -> int:
        now_s = site.loop.time()
        return sum(now_s - since_s >= REST_S for _, since_s in site.door._resting())

    return int(site.do(count()))


def refused(site: DoorSite) -> bool:
    answer = httpx.get(f"http://{site.address}/v1/door", headers={"Upgrade": UPGRADE}, trust_env=False)
    return (answer.status_code, answer.json()["error"]) == (503, "OVERLOADED")


def client(site: DoorSite) -> Client:
    return Client(nodes=[site.address], deadline_ms=20_000)


def test_who_has_rested_longest_is_told_and_makes_room(site: DoorSite):
    site.lead()
    with raw(site) as first, raw(site) as second, raw(site) as third:
        assert served(second)
        assert served(third)
        assert served(first)
        eventually(lambda: resting(site) == PLACES)
        with raw(site) as new:
            assert served(new)
            error = decode_as(StreamError, second.hear(DoorKind.ERROR).payload)
            assert error.code == "OVERLOADED"
            assert error.message == (
                "3 direct connections are open at om1; this one has rested longest, and makes room for another one"
            )
            assert second.sock.recv(1) == b""
            assert served(first)
            assert served(third)
            eventually(lambda: site.door.connections == PLACES)
            assert not site.door._leaving
    eventually(lambda: site.door.connections == 0)


def test_who_has_just_worked_does_not_make_room(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "REST_S", 1_000.0)
    site.lead()
    with raw(site) as one, raw(site) as two, raw(site) as three:
        assert all(refused(site) for _ in range(5))
        assert all(served(door) for door in (one, two, three))


def test_who_waits_for_an_answer_or_sends_a_frame_never_makes_room(site: DoorSite):
    leader = site.lead()
    leader.holds = True
    with raw(site) as waiting, raw(site) as sending, raw(site) as resting_one:
        waiting.send(REQUEST)
        sending.send(REQUEST[:-1])
        eventually(lambda: len(leader.executed) == 1)
        eventually(lambda: resting(site) == 1)
        with raw(site) as new:
            assert "rested longest" in resting_one.refusal()
            new.send(REQUEST[:5])
            eventually(lambda: site.door.connections == PLACES and not resting(site))
            time.sleep(2 * REST_S)
            assert all(refused(site) for _ in range(20))
        site.depose()
        assert decode_as(Response, waiting.hear(DoorKind.ANSWERS).payload).status == "NOT_LEADER"
        sending.send(REQUEST[-1:])
        assert decode_as(Response, sending.hear(DoorKind.ANSWERS).payload).status == "NOT_LEADER"


def test_connections_in_a_loop_end_nobody_who_is_at_work(site: DoorSite):
    site.lead()
    with raw(site) as busy, ExitStack() as opened:
        until_s = time.monotonic() + 6 * REST_S
        taken = 0
        while time.monotonic() < until_s:
            assert served(busy)
            with suppress(DoorClosed):
                opened.enter_context(raw(site))
                taken += 1
        assert taken >= PLACES, "they end each other"


def test_a_client_finds_a_place_though_all_are_taken_and_the_one_that_lost_it_calls_as_before(site: DoorSite):
    site.lead()
    with client(site) as early:
        early.create_volume("a")
        with raw(site) as second, raw(site):
            eventually(lambda: resting(site) == PLACES)
            with client(site) as late:
                late.create_volume("b")
                eventually(lambda: resting(site) == PLACES)
                early.create_volume("c")
                assert "rested longest" in second.refusal(), "the early client had made room, and has come again"
                late.create_volume("d")


def test_clients_without_a_place_leave_the_others_in_peace_until_they_want_something(site: DoorSite):
    site.lead()
    with ExitStack() as opened:
        clients = [opened.enter_context(client(site)) for _ in range(PLACES)]
        eventually(lambda: resting(site) == PLACES)
        clients += [opened.enter_context(client(site)) for _ in range(PLACES)]
        eventually(lambda: resting(site) == PLACES)
        before = set(site.door._connections)
        time.sleep(5 * REST_S)
        assert site.door._connections == before, "who made room stays away"
        for number, one in enumerate(clients):
            one.create_volume(f"v{number}")


def test_more_clients_than_places_lose_no_call(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "REST_S", 0.02)
    leader = site.lead()
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with client(site) as one:
                for count in range(8):
                    one.create_volume(f"v{number}-{count}")
                    time.sleep(0.05)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(PLACES + 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not failed
    assert {request.body.volume for request in leader.executed if isinstance(request.body, CreateVolume)} == {
        f"v{number}-{count}" for number in range(PLACES + 2) for count in range(8)
    }


def test_who_has_not_said_hello_does_not_rest(site: DoorSite, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door_connection, "GREETING_S", 1_000.0)
    with ExitStack() as opened:
        for _ in range(PLACES):
            opened.enter_context(RawDoor(site.address, hello=b"", timeout_s=WAIT_S))
        time.sleep(2 * REST_S)
        assert refused(site)
