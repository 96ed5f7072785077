"""``lost-broker``: SIGKILL one of three brokers, the one that leads the shard's log.

Writes go on; the broker comes back into sync.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from schemas.kafka.client_settings import client_settings
from schemas.topics import OM_LOG
from stratolog.drills.core.report import CouldNotRun, StepFailed
from stratolog.drills.kit.aftermath import judged_load
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.core import write_findings
from stratolog.drills.kit.session import Session
from stratolog.local.processes import wait_until
from stratolog.local.state import BROKER

NEEDED_BROKERS = 3
WRITES = 30
METADATA_TIMEOUT_S = 5.0
IN_SYNC_TIMEOUT_S = 180.0


def run(session: Session, cluster: Cluster, shard: int) -> None:
    """Run the drill."""
    with session.step("check that the stack is whole, and has three brokers"):
        brokers = cluster.members().of(BROKER)
        if len(brokers) != NEEDED_BROKERS:
            raise CouldNotRun(
                f"the stack has {len(brokers)} broker: with one, losing it stops everything. Make a stack with "
                "three, in another data directory: 'stratolog up --brokers 3'"
            )
        cluster.check_whole()
        admin = AdminClient(client_settings(cluster.settings.connection, {"log_level": 0}))
        _await_in_sync(admin, 3)
    with judged_load(session, cluster, "lost-broker", shard) as (load, judge):
        number = _leader_of_log(admin, shard)
        with session.step(f"SIGKILL broker-{number}, which leads partition {shard} of {OM_LOG}"):
            killed_s = time.monotonic()
            start_again = cluster.kill_broker(session, number)
        with session.step("go on writing with two brokers") as found:
            load.wait_more(WRITES)
            pause_s = write_findings.pause_after(load.journal, killed_s)
            session.figures["longest_pause_s"] = pause_s
            found(f"longest pause {pause_s:.2f} s")
            during = _in_sync(admin)
        session.find(write_findings.written_without(number, WRITES, during.get(shard, 0)))
        with session.step(
            f"start broker-{number} again, wait until every partition of {OM_LOG} has three replicas in sync"
        ) as found:
            start_again()
            back_s = time.monotonic()
            _await_in_sync(admin, NEEDED_BROKERS)
            session.figures["back_in_sync_s"] = time.monotonic() - back_s
            session.find(write_findings.in_sync(_in_sync(admin), NEEDED_BROKERS))
        with session.step("write on with three brokers"):
            load.wait_more(WRITES)
            cluster.wait_led()
        judge()


def _in_sync(admin: AdminClient) -> dict[int, int]:
    """Return the number of replicas in sync of each partition of the log."""
    try:
        topic = admin.list_topics(OM_LOG, timeout=METADATA_TIMEOUT_S).topics[OM_LOG]
    except KafkaException:
        return {}
    return {number: len(partition.isrs) for number, partition in topic.partitions.items()}


def _await_in_sync(admin: AdminClient, number: int) -> None:
    def are_all_in_sync() -> bool:
        found = _in_sync(admin)
        return bool(found) and min(found.values()) >= number

    if not wait_until(are_all_in_sync, IN_SYNC_TIMEOUT_S):
        raise StepFailed(f"not every partition of {OM_LOG} has {number} replicas in sync: {_in_sync(admin)}")


def _leader_of_log(admin: AdminClient, shard: int) -> int:
    """Return the number of the broker that leads the shard's log, from 1, which is also its id."""
    try:
        return int(admin.list_topics(OM_LOG, timeout=METADATA_TIMEOUT_S).topics[OM_LOG].partitions[shard].leader)
    except KafkaException as error:
        raise StepFailed(f"{OM_LOG} cannot be described: {error}") from error
