"""Records that grow: compressed batches that few bytes make, and that a broker unpacks.

    AIOKAFKA_NO_EXTENSIONS=1 python -m tests.support.faults.zip_bombs SERVERS CA USER PASSWORD_FILE TOPIC TIMES

Kinds: ``claim``, a record whose length says two gigabytes and that is not there; ``one``, a gigabyte of zeros in one record;
``many``, the same in records of a MiB. Prints how many of each were taken, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka.record.default_records as records
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

KINDS = ("claim", "one", "many")
GIB, MIB = 2**30, 2**20
LARGER_THAN_PACKED = b"x" * 3 * MIB
"""What the client believes to send: it sends no batch that compression has made larger."""


def varint(number: int) -> bytes:
    number, out = number << 1, b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def pieces(kind: str) -> Iterator[bytes]:
    """Yield what is in a batch, before it is compressed."""
    if kind == "claim":
        yield varint(2**31 - 20) + b"\0" * 100
        return
    count, size = (1, GIB) if kind == "one" else (GIB // MIB, MIB)
    for number in range(count):
        head = b"\0" + varint(0) + varint(number) + b"\1" + varint(size)
        yield varint(len(head) + size + 1) + head
        for _ in range(size // MIB):
            yield bytes(MIB)
        yield b"\0"


def packed(kind: str) -> bytes:
    made = zlib.compressobj(9, wbits=31)
    return b"".join(map(made.compress, pieces(kind))) + made.flush()


async def main(servers: str, ca: str, user: str, password_file: str, topic: str, times: str) -> None:
    password = (await asyncio.to_thread(Path(password_file).read_text)).strip()
    producer: Any = AIOKafkaProducer(
        bootstrap_servers=servers, compression_type="gzip", max_request_size=8 * MIB, request_timeout_ms=20_000,
        security_protocol="SASL_SSL", ssl_context=ssl.create_default_context(cafile=ca), sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username=user, sasl_plain_password=password,
    )  # fmt: skip
    taken = dict.fromkeys(KINDS, 0)
    await producer.start()
    for kind in KINDS:
        data = packed(kind)
        records.gzip_encode = lambda _, data=data: data
        for _ in range(int(times)):
            try:
                await asyncio.wait_for(producer.send_and_wait(topic, LARGER_THAN_PACKED), 30)
                taken[kind] += 1
            except (KafkaError, TimeoutError):
                pass
    print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
