"""Envelopes: many requests, or many responses, in one Kafka record.

A small record costs the client, the broker and the leader about as much as a large one, so messages that leave together
travel in one record (decision 0012). An envelope holds encoded messages of one client and adds nothing to them: each is
executed, answered, retried or rejected by itself. A single message travels bare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schemas.codecs.codec import HEADER_BYTES, Undecodable, decode_as, encode, header_of
from schemas.records.messages import Requests, Responses

MAX_ENVELOPE_MESSAGES = 500
"""Most messages in an envelope."""
MAX_ENVELOPE_BYTES = 512 * 1024
"""Most bytes of messages in an envelope; a larger message travels bare."""

_REQUESTS = header_of(Requests)
_RESPONSES = header_of(Responses)


def enveloped_requests(requests: Sequence[bytes]) -> list[bytes]:
    """Return record values that carry encoded requests, in order."""
    return [group[0] if len(group) == 1 else encode(Requests(requests=group)) for group in _groups(requests)]


def enveloped_responses(responses: Sequence[bytes]) -> list[bytes]:
    """Return record values that carry encoded responses, in order."""
    return [group[0] if len(group) == 1 else encode(Responses(responses=group)) for group in _groups(responses)]


def requests_in(value: bytes) -> list[bytes]:
    """Return the encoded requests that a record of ``om.requests`` carries.

    Raises Undecodable for a broken envelope and for one of more than MAX_ENVELOPE_MESSAGES requests.
    """
    if value[:HEADER_BYTES] != _REQUESTS:
        return [value]
    requests = decode_as(Requests, value).requests
    if len(requests) > MAX_ENVELOPE_MESSAGES:
        raise Undecodable(f"an envelope of {len(requests)} requests; at most {MAX_ENVELOPE_MESSAGES}")
    return requests


def responses_in(value: bytes) -> list[bytes]:
    """Return the encoded responses in a record of ``om.responses``; raises Undecodable for a broken envelope."""
    return decode_as(Responses, value).responses if value[:HEADER_BYTES] == _RESPONSES else [value]


def _groups(messages: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Cut messages into groups within the limits; a message beyond them is a group of its own."""
    group: list[bytes] = []
    room_bytes = MAX_ENVELOPE_BYTES
    for message in messages:
        if group and (len(group) == MAX_ENVELOPE_MESSAGES or len(message) > room_bytes):
            yield group
            group, room_bytes = [], MAX_ENVELOPE_BYTES
        group.append(message)
        room_bytes -= len(message)
    if group:
        yield group
