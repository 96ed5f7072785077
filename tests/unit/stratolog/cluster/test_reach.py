"""Whether anybody listens, and what is amiss while a command waits."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratolog.cluster.reach import (
    Seen,
    amiss,
    await_broker,
    check_brokers,
    check_leaders,
    check_log,
    check_nodes,
    listening,
)
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable
from stratolog.local.ports import free_ports
from stratolog.local.processes import Process
from stratolog.local.state import StackMember, StackState, write_state

HEALTHY = {"datanode": "dn1", "address": "x:1", "health": "HEALTHY", "silent_ms": 100, "free_bytes": 10**12}


@pytest.fixture
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def settings_in(folder: Path, **variables: str) -> Settings:
    return load_settings(environment={"STRATOLOG_DATA_DIR": str(folder), **variables})


def seen(**changes: Any) -> Seen:
    view = {"shard": 0, "role": "leader", "prepared": None, "flagged": False}
    given: dict[str, Any] = {
        "brokers": ["b:1"], "listening_brokers": ["b:1"], "statuses": {"om1": {"shards": [view]}}, "shards": 1,
        "datanodes": [HEALTHY], "pipelines": [{"usable": True}],
    }  # fmt: skip
    return Seen(**(given | changes))


def views(**changes: Any) -> dict[str, Any]:
    return {"om1": {"shards": [{"shard": 0, "role": "leader", "prepared": None, "flagged": False} | changes]}}


def test_those_where_somebody_listens_in_their_order(listener: str) -> None:
    silent = f"127.0.0.1:{free_ports(1)[0]}"
    assert listening([silent, listener, silent, "no.such.host.invalid:1"]) == [listener]
    assert listening([]) == []
    assert listening(["." * 70 + ":1"]) == []


def test_many_silent_addresses_take_no_longer_than_one() -> None:
    begun_s = time.monotonic()
    assert listening(["192.0.2.1:9"] * 8) == []  # TEST-NET-1: nobody answers, or the network refuses at once
    assert time.monotonic() - begun_s < 8


def test_a_node_that_is_started_before_its_brokers_says_that_it_waits() -> None:
    """It logged 970 lines of its Kafka client in 66 s, and ended as a defect."""
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{late.getsockname()[1]}"
        told: list[str] = []

        def tell(text: str) -> None:
            told.append(text)
            late.listen()

        await_broker([address], tell)
    assert told == [f"nobody listens at {address}: waiting for a broker, for 60 s more"]
    with pytest.raises(Unavailable, match=rf"nobody listens at {address}, in 0 s"):
        await_broker([address], told.append, timeout_s=0)


def test_nobody_listens_and_no_stack_runs(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    settings = settings_in(tmp_path, STRATOLOG_BOOTSTRAP_SERVERS=address, STRATOLOG_NODES=f"om1={address}")
    for check, place in ((check_brokers, address), (check_nodes, rf"{address} \(om1\)")):
        with pytest.raises(Unavailable, match=rf"nobody listens at {place}, and no stack .* 'stratolog up'"):
            check(settings)


@pytest.mark.parametrize(("brokers", "remedy"), [(1, "'stratolog up'"), (3, "'stratolog down', then 'stratolog up'")])
def test_a_stack_without_its_broker_is_named(brokers: int, remedy: str, tmp_path: Path) -> None:
    """A stack that runs in part made commands wait for what nobody was going to start."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    here = Process.of(os.getpid())
    assert here is not None
    gone = Process(pid=os.getpid(), started="long ago")
    members = [
        StackMember(kind="broker", name=f"broker-{n}", address=address, log=tmp_path, process=gone, extra={})
        for n in range(1, brokers + 1)
    ]
    node = StackMember(kind="node", name="om1", address=address, log=tmp_path, process=here, extra={})
    write_state(tmp_path, StackState(members=(*members, node)))
    with pytest.raises(Unavailable, match=rf"nobody listens at {address}: broker-1.* not run; {remedy}"):
        check_brokers(settings_in(tmp_path, STRATOLOG_BOOTSTRAP_SERVERS=address))


@pytest.mark.parametrize(("kind", "check"), [("broker", check_log), ("node", check_leaders)])
def test_a_stack_of_which_a_whole_kind_has_ended(kind: str, check: Callable[[Settings], None], tmp_path: Path) -> None:
    """Reads waited for 20 s for brokers that nobody was going to start, writes as long for nodes."""
    here = Process.of(os.getpid())
    assert here is not None
    gone = Process(pid=os.getpid(), started="long ago")

    def members(*processes: Process) -> list[StackMember]:
        return [
            StackMember(kind=kind, name=f"{kind}-{n}", address="x:1", log=tmp_path, process=process, extra={})
            for n, process in enumerate(processes, start=1)
        ]

    other = StackMember(kind="datanode", name="dn1", address="x:1", log=tmp_path, process=here, extra={})
    settings = settings_in(tmp_path)
    check(settings)  # no stack of ours: who knows
    write_state(tmp_path, StackState(members=(*members(gone, here), other)))
    check(settings)
    write_state(tmp_path, StackState(members=(*members(gone, gone), other)))
    with pytest.raises(Unavailable, match=f"no {kind} runs.*{kind}-1, {kind}-2 of the stack in .* do not run"):
        check(settings)
    elsewhere = settings_in(tmp_path, STRATOLOG_BOOTSTRAP_SERVERS="x:1", STRATOLOG_NODES="om1=x:1")
    check(elsewhere)


def test_only_the_node_that_is_asked_counts(listener: str, tmp_path: Path) -> None:
    silent = f"127.0.0.1:{free_ports(1)[0]}"
    settings = settings_in(tmp_path, STRATOLOG_NODES=f"om1={listener},om2={silent}")
    check_nodes(settings)
    check_nodes(settings, {"om1"})
    with pytest.raises(Unavailable, match=rf"nobody listens at {silent} \(om2\)"):
        check_nodes(settings, {"om2"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"listening_brokers": []}, ["no broker listens at b:1"]),
        ({"statuses": {"om1": None}}, ["no node answers: om1"]),
        ({"statuses": {**views(), "om2": None}}, ["no answer from om2"]),
        ({"statuses": views(role="follower")}, ["shard 0 has no leader"]),
        (
            {"statuses": views(prepared="p1")},
            ["shard 0 is prepared for an upgrade and refuses writes until 'stratolog admin prepare --cancel'"],
        ),
        (
            {"statuses": views(flagged=True)},
            ["1 of 1 replicas of shard 0 are flagged: see 'stratolog audit --once'"],
        ),
        (
            {"datanodes": [HEALTHY | {"health": "STALE", "silent_ms": 9000}]},
            ["datanode dn1 is STALE, last heard of 9 s ago"],
        ),
        ({"silent_datanodes": ["dn1"]}, ["datanode dn1 does not answer"]),
        (
            {"datanodes": [HEALTHY | {"free_bytes": 7}]},
            ["the disk of datanode dn1 has 7 bytes left above its reserve (setting 'datanode_reserve_bytes')"],
        ),
        ({"pipelines": [{"usable": False}]}, ["no pipeline takes blocks"]),
        ({"pipelines": []}, ["no pipeline takes blocks"]),
        ({"pipelines": [], "datanodes": []}, []),
    ],
)  # fmt: skip
def test_what_is_amiss_in_words(changes: dict[str, Any], words: list[str]) -> None:
    assert amiss(seen(**changes)) == words
