"""What a key costs on the brokers, by topic, and what each codec would make of it.

    python -m benchmarks.log_bytes [--keys 20000] [--in-flight 500] [--codecs none lz4 zstd snappy gzip]

A real stack (one broker, one shard, three nodes) creates and commits keys. Then the records of each topic are read
back, and produced to topics of their own: once for each codec, with the linger of their real producer. Prints a table,
and one JSON object a line: `topic`, `codec`, `records_per_key`, `bytes_per_key` (of the broker's segment files),
`produce_us_per_key` and `read_us_per_key` (processor time of the client; the broker stores what it is sent). Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.admin import NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.om_write import BUCKET, Spec, System
from producers import Client
from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import Brokers
from schemas.topics import MAX_MESSAGE_BYTES, OM_AUDIT, OM_LOG, OM_REQUESTS, OM_RESPONSES
from tests.support.local.stack import LocalKafka, TestStack
from transport.topics.topic_tail import FIRST_RECORD, TopicTail
from transport.waiting.deadline import Deadline

TOPICS = (OM_REQUESTS, OM_LOG, OM_RESPONSES, OM_AUDIT)
CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
LINGER_MS: Mapping[str, int] = {OM_LOG: 0}
"""A leader's record leaves at once; the other producers wait for more."""
OTHER_LINGER_MS = 5
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One record as it is produced again."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


def segment_bytes(data: Path, topic: str) -> int:
    """Return the size of all segment files of a topic's partitions in bytes."""
    return sum(file.stat().st_size for folder in data.glob(f"{topic}-[0-9]*") for file in folder.glob("*.log"))


def messages_of(bootstrap_servers: Brokers, topic: str) -> Iterator[Message]:
    """Yield every message of a topic."""
    deadline = Deadline.after_s(PATIENCE_S)
    with TopicTail(bootstrap_servers, topic, FIRST_RECORD, deadline) as tail:
        for messages in tail.to_end(deadline):
            yield from messages


def records_of(bootstrap_servers: Brokers, topic: str) -> list[Stored]:
    """Return every record of a topic."""
    return [
        Stored(key=_bytes(m.key()), value=_bytes(m.value()), headers=[*(m.headers() or [])])
        for m in messages_of(bootstrap_servers, topic)
    ]  # fmt: skip


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else bytes(value)


class Codecs:
    """Produces the records of a topic again, compressed, and measures what comes of it."""

    def __init__(self, kafka: LocalKafka, keys: int) -> None:
        self.kafka = kafka
        self.keys = keys

    def measure(self, topic: str, records: Sequence[Stored], codec: str) -> dict[str, Any]:
        """Return the figures of one topic and codec."""
        copy = f"{topic}.{codec}"
        config = {"compression.type": "producer", "max.message.bytes": str(MAX_MESSAGE_BYTES)}
        self.kafka.admin.create_topics([NewTopic(copy, 1, 1, config=config)])[copy].result(PATIENCE_S)
        produced_s = self._produce(copy, records, codec, LINGER_MS.get(topic, OTHER_LINGER_MS))
        began_s = time.process_time()
        read = sum(1 for _ in messages_of(self.kafka.bootstrap_servers, copy))
        read_s = time.process_time() - began_s
        assert read == len(records), f"{copy}: {read} of {len(records)} records"
        return {
            "topic": topic, "codec": codec, "records_per_key": round(len(records) / self.keys, 3),
            "bytes_per_key": round(segment_bytes(data_of(self.kafka), copy) / self.keys, 1),
            "produce_us_per_key": round(produced_s / self.keys * 1e6, 1),
            "read_us_per_key": round(read_s / self.keys * 1e6, 1),
        }  # fmt: skip

    def _produce(self, topic: str, records: Sequence[Stored], codec: str, linger_ms: int) -> float:
        producer = Producer(
            client_settings(self.kafka.bootstrap_servers, {
                "enable.idempotence": True, "linger.ms": linger_ms,
                "compression.type": codec, "message.max.bytes": MAX_MESSAGE_BYTES,
            })
        )  # fmt: skip
        began_s = time.process_time()
        for record in records:
            producer.produce(topic, record.value, record.key, headers=record.headers)
            if not linger_ms:
                producer.flush(PATIENCE_S)  # as a leader: a batch in a record, a record in a batch
            producer.poll(0)
        producer.flush(PATIENCE_S)
        return time.process_time() - began_s


def data_of(kafka: LocalKafka) -> Path:
    """Return the folder with the first broker's partitions."""
    return kafka.cluster.folder / "broker-1" / "data"


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the figures for people."""
    table = Table("topic", "codec", "records/key", "bytes/key", "produce us/key", "read us/key")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(stderr=True).print(table)


def main() -> None:
    """Start the stack, load keys, measure each topic and codec, stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=CODECS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stratolog-bench-") as folder:
        kafka = LocalKafka(Path(folder) / "kafka", brokers=1)
        stack = TestStack(Path(folder), kafka=kafka, shards=1, brokers=1)
        with kafka, stack:
            system = System(stack)
            with Client(stack.settings.bootstrap_servers) as client:
                for volume in system.volumes:
                    client.create_volume(volume)
                    client.create_bucket(volume, BUCKET)
            system.measure(
                Spec(in_flight=arguments.in_flight, seconds=PATIENCE_S, warm_up_seconds=0, pairs=arguments.keys)
            )
            stack.wait_converged()
            rows = []
            codecs = Codecs(kafka, arguments.keys)
            for topic in TOPICS:
                stored = round(segment_bytes(data_of(kafka), topic) / arguments.keys, 1)
                rows.append({"topic": topic, "codec": "as it is", "records_per_key": "", "bytes_per_key": stored,
                             "produce_us_per_key": "", "read_us_per_key": ""})  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
                records = records_of(stack.settings.bootstrap_servers, topic)
                for codec in arguments.codecs:
                    rows.append(codecs.measure(topic, records, codec))
                    print(json.dumps(rows[-1]), flush=True)
        print_table(rows)


if __name__ == "__main__":
    main()
