"""The faults that there are, by name: a new one is a module of ``tests.chaos.faults`` with a ``FAULT``, and a line here.

A fault that a drill inflicts too has its name from the drills' catalogue. A drill beside the stack is a campaign of its own:
``DRILLS`` has those by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratolog.drills.kit import catalogue
from stratolog.drills.kit.catalogue import Drill, DrillPlace
from tests.chaos.campaign import Fault
from tests.chaos.faults import (
    all_brokers,
    broker_kill,
    broker_partition,
    client_kill,
    follower_kill,
    full_disk,
    leader_kill,
    leader_pause,
    log_corruption,
    mixed,
    node_partition,
    sst_bit_flip,
    wal_truncation,
)

FAULTS: Mapping[str, Fault] = {
    module.FAULT.name: module.FAULT
    for module in (
        leader_kill, leader_pause, broker_kill, mixed, follower_kill, client_kill, all_brokers,
        node_partition, broker_partition, full_disk, log_corruption, sst_bit_flip, wal_truncation,
    )
}  # fmt: skip

DRILLS: Mapping[str, Drill] = {name: catalogue.find(name) for name in catalogue.names_at(DrillPlace.BESIDE)}
