"""Encoded requests of one shard, and their places in the topic."""

from __future__ import annotations

from dataclasses import replace

from xxhash import xxh3_128_digest

from schemas.codecs.codec import encode
from schemas.records.log import RequestPosition
from schemas.records.messages import CreateVolume
from tests.support.om.om_world import request_of

SHARD = 1
WAIT_S = 5.0


def request(name: str, call_id: int = 1) -> bytes:
    return encode(replace(request_of(CreateVolume(volume=name)), call_id=call_id, reply_partition=3))


def position(offset: int, value: bytes) -> RequestPosition:
    return RequestPosition(offset=offset, leader_epoch=-1, hash=xxh3_128_digest(value))
