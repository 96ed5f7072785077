"""A leader without a shard, a core and a store. ``python -m benchmarks.user.bare_relay``.

Arguments: brokers, the topic, a free port. It shows what a request takes at least. It takes frames over TCP on an event
loop, as the direct door does, and hands each to a thread, which produces it with ``acks=all``, waits until the brokers
have it, and has the loop answer: the steps of a request that no leader of this kind can leave out. It checks nothing,
executes nothing, applies nothing and answers with the frame itself. Nobody follows its topic.
"""

from __future__ import annotations

import asyncio
import queue
import struct
import sys
import threading
from typing import NamedTuple, cast

import uvloop
from confluent_kafka import KafkaError, Message, Producer

from schemas.kafka.client_settings import client_settings

LENGTH = struct.Struct(">I")
"""What a frame begins with: how many bytes follow."""
PRODUCER_SETTINGS = {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
REPORT_WAIT_S = 0.002


class Asked(NamedTuple):
    """A frame, and where its answer goes."""

    frame: bytes
    transport: asyncio.Transport


class Door(asyncio.Protocol):
    """Cuts frames out of what arrives."""

    def __init__(self, asked: queue.SimpleQueue[Asked]) -> None:
        self._asked = asked
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where answers go."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no asyncio.Transport by name

    def data_received(self, data: bytes) -> None:
        """Hand over every whole frame."""
        self._data += data
        while len(self._data) >= LENGTH.size and self._transport is not None:
            end = LENGTH.size + LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                return
            self._asked.put(Asked(self._data[:end], self._transport))
            self._data = self._data[end:]


def relay(brokers: str, topic: str, asked: queue.SimpleQueue[Asked], loop: asyncio.AbstractEventLoop) -> None:
    """Produce what is asked, one after the other, and answer; raises RuntimeError for what the brokers refuse."""
    producer = Producer(client_settings(brokers, {**PRODUCER_SETTINGS}))
    told: list[KafkaError | None] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        told.append(error)

    while True:
        one = asked.get()
        producer.produce(topic, one.frame, partition=0, on_delivery=on_delivery)
        while not told:
            producer.poll(REPORT_WAIT_S)
        if (error := told.pop()) is not None:
            raise RuntimeError(f"the brokers did not take a record: {error}")
        loop.call_soon_threadsafe(one.transport.write, one.frame)


async def serve(brokers: str, topic: str, port: int) -> None:
    """Relay until the process is ended."""
    asked: queue.SimpleQueue[Asked] = queue.SimpleQueue()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Door(asked), "127.0.0.1", port)
    threading.Thread(target=relay, args=(brokers, topic, asked, loop), daemon=True).start()
    print("open", flush=True)
    await server.serve_forever()


def main() -> None:
    """Relay until SIGTERM."""
    brokers, topic, port = sys.argv[1:]
    uvloop.run(serve(brokers, topic, int(port)))


if __name__ == "__main__":
    main()
