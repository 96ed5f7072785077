"""Ports that somebody else has: what a person wrote down is refused, a default moves, and it is said."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from schemas.settings.values import DatanodeAddress
from stratolog.commands.stack import _print_moved
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable
from stratolog.local.ports import Moved, free_ports, with_free_ports


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def defaults(**changes: object) -> Settings:
    """Return settings whose ports are free, none of them written down by anybody."""
    ports = free_ports(6)
    plain = load_settings(environment={})
    nodes = tuple(replace(node, port=port) for node, port in zip(plain.nodes, ports[1:4], strict=True))
    datanode = DatanodeAddress(name="dn1", host="127.0.0.1", port=ports[4], http_port=ports[5])
    settings = replace(plain, bootstrap_servers=f"127.0.0.1:{ports[0]}", nodes=nodes, datanodes=(datanode,))
    return replace(settings, **changes)  # type: ignore[arg-type]


def test_free_ports_stay() -> None:
    settings = defaults()
    assert with_free_ports(settings) == (settings, ())


def test_a_default_that_is_taken_moves_and_is_named(taken: int) -> None:
    settings = defaults(bootstrap_servers=f"127.0.0.1:{taken}")
    effective, moved = with_free_ports(settings)
    assert effective.bootstrap_servers != settings.bootstrap_servers
    (one,) = moved
    assert (one.name, one.wanted) == ("broker-1", taken)
    assert str(one.got) == effective.bootstrap_servers.rpartition(":")[2]
    assert "somebody else listens at" in str(one)


def test_nodes_and_datanodes_move_too(taken: int) -> None:
    settings = defaults()
    node = replace(settings.nodes[1], port=taken)
    datanode = replace(settings.datanodes[0], http_port=taken)
    settings = replace(settings, nodes=(settings.nodes[0], node, settings.nodes[2]), datanodes=(datanode,))
    effective, moved = with_free_ports(settings)
    assert [one.name for one in moved] == [node.name, "dn1"]
    assert {one.got for one in moved} == {effective.nodes[1].port, effective.datanodes[0].http_port}


@pytest.mark.parametrize("name", ["bootstrap_servers", "nodes", "datanodes"])
def test_what_a_person_wrote_down_is_refused(name: str, taken: int) -> None:
    """It moved without a word: his programs then talked to whoever listens there."""
    settings = defaults()
    changed = {
        "bootstrap_servers": f"127.0.0.1:{taken}",
        "nodes": (replace(settings.nodes[0], port=taken),),
        "datanodes": (replace(settings.datanodes[0], port=taken),),
    }
    settings = replace(settings, **{name: changed[name]}, explicit=frozenset({name}))  # type: ignore[arg-type]
    with pytest.raises(
        Unavailable, match=rf"somebody else listens at port {taken}, which the setting '{name}' gives to"
    ):
        with_free_ports(settings)


def test_the_number_of_datanodes_is_no_address(taken: int) -> None:
    """``up --datanodes 3`` says how many, and their ports are defaults all the same."""
    settings = load_settings(environment={}).with_values(datanodes="dn1=127.0.0.1:9901:10001")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 9901))
            probe.listen()
        except OSError:
            pass  # somebody else listens there: as good
        effective, moved = with_free_ports(replace(settings, nodes=defaults().nodes))
    assert "dn1" in {one.name for one in moved}
    assert effective.datanodes[0].port != 9901
    assert taken


def test_brokers_behind_the_last_port() -> None:
    settings = defaults(bootstrap_servers="127.0.0.1:65535", brokers=3)
    effective, moved = with_free_ports(settings)
    ports = [int(address.rpartition(":")[2]) for address in effective.bootstrap_servers.split(",")]
    assert len(set(ports)) == 3
    assert {one.wanted for one in moved} >= {65_536, 65_537}


def test_two_brokers_never_get_one_port() -> None:
    port = free_ports(1)[0]
    settings = defaults(bootstrap_servers=f"127.0.0.1:{port},127.0.0.1:{port},127.0.0.1:{port}", brokers=3)
    effective, moved = with_free_ports(settings)
    assert len(set(effective.bootstrap_servers.split(","))) == 3
    assert len(moved) == 2


def test_status_goes_on_saying_so(capsys: pytest.CaptureFixture[str]) -> None:
    member = {"kind": "broker", "name": "broker-1", "address": "127.0.0.1:23456", "running": True, "wanted_port": 9092}
    _print_moved([member, {**member, "kind": "node", "name": "om1", "wanted_port": None}])
    said = capsys.readouterr().out
    assert "broker-1 is at 127.0.0.1:23456, not at port 9092: somebody else listens there" in said
    assert "Programs must be given the address of Kafka above" in said
    assert "om1" not in said


def test_words() -> None:
    assert str(Moved(name="om1", wanted=1, got=2)) == "om1 listens at port 2: somebody else listens at 1"
