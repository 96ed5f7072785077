"""Steps that all writers of keys share: creating places, reading results from answers, and the blocks of a commit.

What belongs here: only what the clients, the load generator and the ingest have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from producers.errors import RequestFailed
from producers.requests.core.calls import Done
from schemas.records.messages import (
    AllocatedBlock,
    CreateBucket,
    CreatedSnapshot,
    CreateVolume,
    KeySession,
    RequestBody,
    Response,
)
from schemas.records.rows import NEVER_WRITTEN, BlockLocation
from schemas.result_codes import BUCKET_ALREADY_EXISTS, VOLUME_ALREADY_EXISTS


class Requester(Protocol):
    """What the writer of one key needs of :class:`producers.Client`."""

    def submit(self, body: RequestBody) -> Future[Response]:
        """Send a request and return the future of its response."""


class Submitter(Protocol):
    """What a writer needs of :class:`producers.Client`."""

    @property
    def client_id(self) -> bytes:
        """The client's 16 random bytes."""

    def submit(self, body: RequestBody) -> Future[Response]:
        """Send a request and return the future of its response."""

    def submit_with(self, body: RequestBody, done: Done) -> None:
        """Send a request; ``done`` is called with its outcome."""


def ensure_places(client: Submitter, places: Iterable[tuple[str, str]]) -> int:
    """Create the volumes and buckets of ``(volume, bucket)`` pairs, except those that exist; return the number of
    requests.

    First come the volumes, all in flight together, then the buckets. Raises one of ``producers.errors``.

    >>> ensure_places(client, {("vol1", "bucket1"), ("vol1", "bucket2")})  # doctest: +SKIP
    3
    """
    ordered = sorted(set(places))
    volumes = [CreateVolume(volume=volume) for volume in sorted({volume for volume, _ in ordered})]
    _create_all(client, volumes, VOLUME_ALREADY_EXISTS)
    _create_all(
        client, [CreateBucket(volume=volume, bucket=bucket) for volume, bucket in ordered], BUCKET_ALREADY_EXISTS
    )
    return len(volumes) + len(ordered)


def _create_all(client: Submitter, bodies: Sequence[RequestBody], exists: str) -> None:
    for future in [client.submit(body) for body in bodies]:
        try:
            future.result()
        except RequestFailed as error:
            if error.status != exists:
                raise


def fit_blocks(blocks: Sequence[BlockLocation], size: int) -> list[BlockLocation]:
    """Return the blocks that would hold ``size`` bytes, the last one shortened: for a commit of metadata alone.

    The blocks are marked as never written (NEVER_WRITTEN). Raises ValueError if the blocks together are shorter than
    ``size``.

    >>> block = BlockLocation(container_id=1, local_id=2, offset=0, length=100, pipeline="p1")
    >>> [fitted.length for fitted in fit_blocks([block], 30)]
    [30]
    """
    fitted: list[BlockLocation] = []
    left = size
    for block in blocks:
        if left <= 0:
            break
        length = min(block.length, left)
        fitted.append(
            BlockLocation(
                container_id=block.container_id,
                local_id=block.local_id,
                offset=size - left,
                length=length,
                pipeline=block.pipeline,
                bcs_id=NEVER_WRITTEN,
            )
        )
        left -= length
    if left > 0:
        raise ValueError(f"blocks for {size - left} bytes were allocated, {size} are needed")
    return fitted


def session_of(response: Response) -> KeySession:
    """Return the result of a CreateKey; raises TypeError if the server answered with another."""
    if not isinstance(response.result, KeySession):
        raise TypeError(f"a CreateKey was answered with {response.result!r}")
    return response.result


def block_of(response: Response) -> BlockLocation:
    """Return the result of an AllocateBlock; raises TypeError if the server answered with another."""
    if not isinstance(response.result, AllocatedBlock):
        raise TypeError(f"an AllocateBlock was answered with {response.result!r}")
    return response.result.block


def snapshot_of(response: Response) -> CreatedSnapshot:
    """Return the result of a CreateSnapshot; raises TypeError if the server answered with another."""
    if not isinstance(response.result, CreatedSnapshot):
        raise TypeError(f"a CreateSnapshot was answered with {response.result!r}")
    return response.result
