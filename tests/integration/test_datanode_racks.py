"""Bytes per link: four datanodes in two racks, each on a host of its own, and one link between the racks whose counters are the kernel's.

Hosts are network namespaces (``tests.support.faults.netns``). The bridge of that module is the switch of the first rack, a second bridge that of
the other, and a pair of veth devices the link between them.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from producers.blocks.core.topology import spanning_tree
from schemas.settings.table import SHAPES
from stratolog.local.kafka import Listener
from stratolog.local.ports import free_ports
from stratolog.local.processes import spawn
from tests.support.datanodes import datanodes as support
from tests.support.datanodes.datanodes import Datanodes
from tests.support.datanodes.racks import cross_rack_hops
from tests.support.faults.netns import Host, Network, ip, why_not
from tests.support.local.stack import LocalKafka
from tests.support.sdk.key_world import MIB

pytestmark = pytest.mark.integration

RACKS = {"dn1": "/one", "dn2": "/one", "dn3": "/two", "dn4": "/two"}
DATA_BYTES = 8 * MIB
OVERHEAD = 1.15
"""Headers of packets, acknowledgements of the other direction, HELLO; the log's records of the second rack, which has no broker."""


class Racks:
    """A network with two racks; ``crossed`` counts what went over the link between them."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.hosts: dict[str, Host] = {}
        tag = network.machine_bridge
        self._second, self._up, self._down = f"{tag}b", f"{tag}u", f"{tag}d"
        ip("link", "add", self._second, "type", "bridge")
        ip("link", "add", self._up, "type", "veth", "peer", "name", self._down)
        ip("link", "set", self._up, "master", tag)
        ip("link", "set", self._down, "master", self._second)
        for device in (self._second, self._up, self._down):
            ip("link", "set", device, "up")
        for name, rack in RACKS.items():
            self.hosts[name] = network.add(name)
            if rack == "/two":
                ip("link", "set", network.device_of(name), "master", self._second)

    def close(self) -> None:
        ip("link", "del", self._up)
        ip("link", "del", self._second)

    def crossed(self) -> dict[str, int]:
        """Return the bytes that have entered each rack from the other."""
        counters = Path("/sys/class/net") / self._up / "statistics"
        return {
            "/two": int((counters / "tx_bytes").read_text()),
            "/one": int((counters / "rx_bytes").read_text()),
        }


class HostedDatanodes(Datanodes):
    """Datanodes that run on the hosts of their names."""

    def __init__(self, folder: Path, kafka: LocalKafka, hosts: dict[str, Host]) -> None:
        super().__init__(folder, kafka, count=len(hosts), racks=RACKS)
        self._hosts = hosts

    def config(self, name: str) -> dict[str, Any]:
        return {**super().config(name), "host": self._hosts[name].address}

    def address(self, name: str) -> str:
        return f"{self._hosts[name].address}:{self.ports[name]}"

    def http_address(self, name: str) -> str:
        return f"{self._hosts[name].address}:{self.http_ports[name]}"

    def start(self, name: str, *, wait: bool = True) -> None:
        process = [sys.executable, str(support.PROCESS), json.dumps(self.config(name))]
        command = [*self._hosts[name].launcher, *process]
        environment = {**os.environ, "PYTHONPATH": str(support.ROOT)}
        self.processes[name] = spawn(command, log=self.log_file(name), detached=False, env=environment)
        if wait:
            self.wait_up(name)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Racks, HostedDatanodes]]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as started:
        network = started.enter_context(Network())
        racks = Racks(network)
        started.callback(racks.close)
        client_port, controller_port = free_ports(2)
        listener = Listener(broker=client_port, controller=controller_port, host=network.machine.address)
        kafka = started.enter_context(LocalKafka(tmp_path_factory.mktemp("kafka") / "kafka", listeners=(listener,)))
        nodes = HostedDatanodes(tmp_path_factory.mktemp("datanodes"), kafka, racks.hosts)
        started.enter_context(nodes)
        nodes.open_pipeline(0)
        yield racks, nodes


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("primary", list(RACKS))
def test_bytes_cross_between_racks_exactly_once(
    cluster: tuple[Racks, HostedDatanodes], shape: Any, primary: str
) -> None:
    racks, nodes = cluster
    block = nodes.block(0, 1 + list(RACKS).index(primary) + 10 * SHAPES.index(shape))
    data = random.Random(block.local_id).randbytes(DATA_BYTES)
    routes = spanning_tree(nodes.members(), primary, shape)
    assert cross_rack_hops(routes, nodes.members()) == 1
    before, sent_before = racks.crossed(), _sent(nodes)
    nodes.send(block, data, primary=primary, routes=routes)
    crossed = {rack: count - before[rack] for rack, count in racks.crossed().items()}
    sent = {pair: count - sent_before.get(pair, 0) for pair, count in _sent(nodes).items()}
    # The client stands in the first rack: what goes to a primary in the second one crosses there, too, the other way.
    away = "/two" if RACKS[primary] == "/one" else "/one"
    assert DATA_BYTES < crossed[away] < DATA_BYTES * OVERHEAD, crossed
    home = DATA_BYTES if away == "/one" else 0
    assert home <= crossed[RACKS[primary]] < home + DATA_BYTES * (OVERHEAD - 1), crossed
    # Hop by hop, as the datanodes count: each one of the tree carries everything once, and no other carries anything.
    hops = {(route.datanode, child) for route in routes for child in route.children}
    for pair, count in sent.items():
        if pair in hops:
            assert DATA_BYTES < count < DATA_BYTES * OVERHEAD, pair
        elif pair[1] in RACKS:
            assert count < DATA_BYTES * (OVERHEAD - 1), pair
    nodes.commit(block, data)
    assert all(one.satisfied for one in nodes.watch(block, len(data)))
    for name in nodes.names:
        assert nodes.read(name, block, len(data)) == data


def _sent(nodes: Datanodes) -> dict[tuple[str, str], int]:
    return {
        (name, peer): count
        for name in nodes.names
        for peer, count in nodes.get(name, "/status")["streams"]["bytes_out"].items()
    }
