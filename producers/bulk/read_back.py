"""Reading keys back from each of their replicas, and comparing the bytes with the SHA-256 in the key's metadata.

What belongs here: the comparison at the end of the demo. The bytes of an inline key come with its row, and are read
once: whether the nodes hold the same rows is what their digests say. Another key's first replica consists of its blocks
on their first members, and so on. Each replica is read by itself, without falling back on another, so that a wrong or
missing one is seen. A few threads read replicas; listings are read page by page, so memory does not grow with the
number of keys.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.bulk.listing import SHA256
from producers.bulk.tree_layout import TreeLayout
from producers.errors import StratologError
from producers.files.inline_keys import InlineReader
from producers.files.key_reader import KeyReader
from schemas.records.rows import KeyInfo

if TYPE_CHECKING:
    from producers.client import Client

READERS = 8
"""Default for the number of replicas that are read at the same time."""
NAMED_FAULTS = 20
"""Most wrong replicas that are named; all are counted."""
READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongReplica:
    """A replica of a key that could not be read, or has other bytes."""

    path: str
    replica: int
    reason: str


@dataclass(slots=True, kw_only=True)
class ReadBack:
    """Result of the reading; ``bytes`` over all replicas, ``fewest_replicas`` of any key with blocks.

    ``inline`` counts the keys whose bytes are in the nodes' tables; each counts as one of ``replicas``.
    """

    keys: int = 0
    inline: int = 0
    replicas: int = 0
    bytes: int = 0
    fewest_replicas: int | None = None
    wrong_replicas: int = 0
    wrong: list[WrongReplica] = field(default_factory=list)


def read_back(
    client: Client, layout: TreeLayout, *, readers: int = READERS, progress: Callable[[ReadBack], None] | None = None
) -> ReadBack:
    """Read every key in a layout's volumes from each of its replicas.

    ``progress`` is called on the calling thread now and then. Raises one of ``producers.errors`` if keys cannot be
    listed, ValueError for an illegal ``readers``. The result holds the faults of single replicas.

    >>> read_back(client, TreeLayout()).wrong_replicas  # doctest: +SKIP
    0
    """
    if readers < 1:
        raise ValueError(f"readers must be at least 1, not {readers}")
    found, lock = ReadBack(), threading.Lock()
    pending: set[Future[None]] = set()
    with ThreadPoolExecutor(max_workers=readers, thread_name_prefix="read-back") as pool:
        for listed in _keys(client, layout):
            info = client.key_info(listed.volume, listed.bucket, listed.key).info
            replicas = _replicas(client, info)
            found.keys += 1
            if replicas is not None:
                fewest = found.fewest_replicas
                found.fewest_replicas = replicas if fewest is None else min(replicas, fewest)
            found.inline += info.inline
            # A key that has bytes and names nobody who has them is read once, to be found wrong.
            for replica in range(1 if info.inline else replicas or min(info.size, 1)):
                pending.add(pool.submit(_read, client, info, replica, found, lock))
            if len(pending) > 4 * readers:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                _raise_from(done)
                if progress is not None:
                    progress(found)
        _raise_from(wait(pending).done)
    return found


def _raise_from(done: set[Future[None]]) -> None:
    for future in done:
        future.result()


def _keys(client: Client, layout: TreeLayout) -> Iterator[KeyInfo]:
    names = set(layout.volume_names())
    for volume in client.list_volumes(prefix=f"{layout.prefix}-"):
        for bucket in client.list_buckets(volume.volume) if volume.volume in names else ():
            yield from client.list_keys(volume.volume, bucket.bucket)


def _replicas(client: Client, info: KeyInfo) -> int | None:
    """Return the number of a key's replicas; None if it has no bytes."""
    members = [len(client.streams.directory.pipeline(block.pipeline).members) for block in info.blocks]
    return min(members) if members else None


def _reader(client: Client, info: KeyInfo, replica: int) -> KeyReader | InlineReader:
    if info.inline:
        _, data = client.reads.key_with_bytes(info.volume, info.bucket, info.key)
        return InlineReader(data or b"")
    tokens = client.streams.tokens_to_read((info.volume, info.bucket, info.key))
    return KeyReader(client.streams, info.blocks, replica=replica, tokens=tokens, size=info.size)


def _read(client: Client, info: KeyInfo, replica: int, found: ReadBack, lock: threading.Lock) -> None:
    reader: KeyReader | InlineReader | None = None
    digest, read, reason = hashlib.sha256(), 0, ""
    try:
        reader = _reader(client, info, replica)
        while read < reader.size:
            part = reader.next_bytes(read, min(READ_BYTES, reader.size - read))[: reader.size - read]
            digest.update(part)
            read += len(part)
        if (read, digest.hexdigest()) != (info.size, info.metadata.get(SHA256)):
            reason = f"{read} bytes with SHA-256 {digest.hexdigest()}, written were {info.size} with {info.metadata.get(SHA256)}"
    except StratologError as error:
        reason = str(error)
    finally:
        if reader is not None:
            reader.close()
    with lock:
        found.replicas += 1
        found.bytes += read
        if reason:
            found.wrong_replicas += 1
            if len(found.wrong) < NAMED_FAULTS:
                path = f"/{info.volume}/{info.bucket}/{info.key}"
                found.wrong.append(WrongReplica(path=path, replica=replica, reason=reason))
