"""A second service on ``replicated_db``: a ledger of accounts, two replicas, one Kafka partition as the replicated log.

python examples/inside/ledger.py [BROKERS]

It needs only a broker: it makes a topic of its own, and deletes it. Run it from the repository. In an installed wheel
the same packages are below ``stratolog`` (``stratolog.replicated_db``).
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from replicated_db.core.applying.replica import Identity
from replicated_db.core.tables.merge import ADD_INT64, decode_int64, encode_int64
from replicated_db.shell.database.embedded import EmbeddedDatabase
from replicated_db.shell.kafka.kafka_log import KafkaLog
from replicated_db.shell.rocks import RocksStore
from replicated_db.shell.startup import check_topics
from schemas.kafka.client_settings import client_settings
from schemas.topics import LOG_SETTINGS

NODES = ("north", "south")
FAMILIES = ("owners", "balances")
WAIT_S = 30.0


@contextmanager
def own_topic(brokers: str) -> Iterator[str]:
    """Make a log topic of one partition, with the settings that a log must have."""
    admin = AdminClient(client_settings(brokers, {"log_level": 5}))
    topic = f"examples-ledger-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, config=dict(LOG_SETTINGS))])[topic].result(WAIT_S)
    try:
        yield topic
    finally:
        admin.delete_topics([topic])[topic].result(WAIT_S)


def replica(node: str, brokers: str, topic: str, folder: Path) -> EmbeddedDatabase:
    """Open one replica: its rows are in RocksDB, its log is the topic's partition 0."""
    log = KafkaLog(brokers, topic, 0, check_topics(brokers, topic, ()).log_topic_id)
    return EmbeddedDatabase.open(
        Identity(cluster=topic, shard=0, shards=1, node=node),
        FAMILIES,
        [ADD_INT64],
        store=lambda families: RocksStore(folder / node, families.names),
        log=log,
        replicas=NODES,
    )


def balance(database: EmbeddedDatabase, account: str) -> int:
    """Return an account's balance as this replica has it now."""
    return decode_int64(database.get("balances", account.encode()))


def transfer(database: EmbeddedDatabase, source: str, target: str, cents: int) -> int:
    """Move money, both sides or neither; return the managed index of the request."""
    legs = ((source, -cents), (target, cents))
    operations = [
        database.merge("balances", account.encode(), "add_int64", encode_int64(change)) for account, change in legs
    ]
    return database.submit(operations).result(WAIT_S)


def main(brokers: str = "127.0.0.1:9092") -> int:
    """Open two accounts, move money, lose the leader, move more, and compare the replicas."""
    with tempfile.TemporaryDirectory() as scratch, own_topic(brokers) as topic:
        with closing(replica("south", brokers, topic, Path(scratch))) as south:
            with closing(replica("north", brokers, topic, Path(scratch))) as north:
                north.lead()
                for account, owner in (("a-1", "Ada"), ("a-2", "Bert")):
                    key = account.encode()
                    north.submit(
                        [north.put("owners", key, owner.encode()), north.put("balances", key, encode_int64(10_000))]
                    ).result(WAIT_S)
                print(f"north leads: the transfer has index {transfer(north, 'a-1', 'a-2', 2_500)}")
            # North is gone. South claims the shard, and continues at the end of the log.
            south.lead()
            print(f"south leads: the transfer has index {transfer(south, 'a-1', 'a-2', 2_500)}")
            with closing(replica("north", brokers, topic, Path(scratch))) as north:
                north.await_index(south.replica.position.index, WAIT_S)
                print(f"Ada {balance(north, 'a-1')}, Bert {balance(north, 'a-2')}")
                equal = north.replica.digests.total() == south.replica.digests.total()
                print("the replicas are equal" if equal else "the replicas DIFFER")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
