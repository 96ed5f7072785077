"""Records that no client of ours writes, and any other may: through a real broker, which takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

BATCH_BYTES = 1 << 20
TIMEOUT_MS = 10_000


class NoText(str):
    """The name of a header that is no UTF-8."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:
        return b"\xff\xfe"


def append_with_bad_header(bootstrap_servers: str, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """Append values as one batch whose last record has a header with a name that is no UTF-8."""
    builder: Any = _DefaultRecordBatchBuilderPy(2, 0, False, -1, -1, -1, BATCH_BYTES)
    for number, value in enumerate(values):
        headers = [(NoText("name"), b"x")] if number == len(values) - 1 else []
        builder.append(number, 1, None, value, headers)
    asyncio.run(_send(bootstrap_servers, topic, partition, bytes(builder.build())))


def append_broken(bootstrap_servers: str, topic: str, partition: int, value: bytes) -> None:
    """Append a batch of one value whose checksum is not its own. Only the broker in memory takes it."""
    builder: Any = _DefaultRecordBatchBuilderPy(2, 0, False, -1, -1, -1, BATCH_BYTES)
    builder.append(0, 1, None, value, [])
    batch = bytearray(builder.build())
    batch[-2] ^= 1
    asyncio.run(_send(bootstrap_servers, topic, partition, bytes(batch)))


async def _send(bootstrap_servers: str, topic: str, partition: int, batch: bytes) -> None:
    producer: Any = AIOKafkaProducer(bootstrap_servers=bootstrap_servers)
    await producer.start()
    try:
        await producer.partitions_for(topic)
        node = producer.client.cluster.leader_for_partition(TopicPartition(topic, partition))
        request: Any = ProduceRequest(None, -1, TIMEOUT_MS, [(topic, [(partition, batch)])])
        answer = await producer.client.send(node, request)
        error = answer.topics[0][1][0][1]
        assert error == 0, f"the broker refuses the batch: error {error}"
    finally:
        await producer.stop()
