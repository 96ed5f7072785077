"""Modes of request types on a running cluster: executed by the leader, or validated late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from producers.client import Client


def request_types() -> tuple[str, ...]:
    """Return the names of the request types that have a mode."""
    from typing import get_args

    from schemas.records.messages import BATCH_BEGINNERS, RequestBody

    return tuple(body.__name__ for body in get_args(RequestBody) if body not in BATCH_BEGINNERS)


def set_modes(client: Client, shards: Iterable[int], types: Sequence[str], wanted: str) -> list[dict[str, Any]]:
    """Set the mode of request types on shards; return the index from which on each mode holds."""
    from schemas.records.messages import SetRequestMode

    done = []
    for shard in shards:
        for request_type in types:
            response = client.call(SetRequestMode(shard=shard, request_type=request_type, mode=wanted))
            done.append({"shard": shard, "request_type": request_type, "mode": wanted, "index": response.index})
    return done
