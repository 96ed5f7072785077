"""Queries: one object's information, and listings; pure functions of a consistent view.

A listing holds the names that start with ``prefix``, after ``start_after`` (exclusive, need not exist), in the byte
order of UTF-8, at most ``limit`` of them. It says whether more follow (``truncated``), and then after which name
(``next_after``). It ends early once its rows have MAX_PAGE_BYTES, but has at least one entry. Listed keys come without
their blocks (an empty list), which are most of a large key's row: key_info has them.

Illegal input and missing objects raise OMError. Answers are JSON-ready dicts (``views.py``); the node adds positions.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import asdict

from om_processors.errors import OMError
from om_processors.namespace import quota, snapshots, tables
from om_processors.namespace.access import Caller, may_see_volume
from om_processors.namespace.context import ReadView
from om_processors.namespace.names import check_bucket_name, check_key_name, check_text, check_volume_name, shown
from om_processors.serving.views import Json, bucket_json, key_json, listed_key_json, snapshot_json, volume_json
from schemas.column_families import BUCKET_TABLE, KEY_TABLE, SNAPSHOT_TABLE, VOLUME_TABLE
from schemas.records.rows import ACTIVE, SnapshotInfo
from schemas.result_codes import FILE_NOT_FOUND, INVALID_REQUEST, KEY_NOT_FOUND

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Most bytes of a listing's rows, keys and values as stored. It bounds the work to decode and send them."""
BEHIND_DELETED = "#~"
"""Where the names of active snapshots begin: rows of deleted ones are called ``#`` and a number."""


def volume_info(view: ReadView, volume: str) -> Json:
    """Return a volume with its usage; raises OMError INVALID_VOLUME_NAME, VOLUME_NOT_FOUND."""
    check_volume_name(volume)
    return volume_json(view, tables.require_volume(view, volume))


def usage(view: ReadView, volume: str, bucket: str, pause: Callable[[], None]) -> Json:
    """Return what a bucket's counters say and what its keys amount to; of a volume and its buckets without a bucket.

    Raises OMError INVALID_*_NAME, VOLUME_NOT_FOUND, BUCKET_NOT_FOUND.
    """
    check_volume_name(volume)
    if bucket:
        check_bucket_name(bucket)
    return asdict(quota.count(view, volume, bucket, pause))


def bucket_info(view: ReadView, volume: str, bucket: str) -> Json:
    """Return a bucket with its usage; raises OMError INVALID_*_NAME, VOLUME_NOT_FOUND, BUCKET_NOT_FOUND."""
    check_volume_name(volume)
    check_bucket_name(bucket)
    return bucket_json(view, tables.require_bucket(view, volume, bucket))


def key_info(view: ReadView, volume: str, bucket: str, key: str, *, with_bytes: bool = False) -> Json:
    """Return a committed key; raises OMError INVALID_*_NAME, VOLUME_, BUCKET_ or KEY_NOT_FOUND.

    With ``with_bytes`` it also has ``data``: the bytes in base64 if the key is inline, else None.
    """
    check_volume_name(volume)
    check_bucket_name(bucket)
    check_key_name(key)
    tables.require_bucket(view, volume, bucket)
    info = tables.get_key(view, tables.key_key(volume, bucket, key))
    if info is None:
        raise OMError(KEY_NOT_FOUND, f"no key /{volume}/{bucket}/{shown(key)}")
    if not with_bytes:
        return key_json(info)
    data = tables.get_inline(view, info)
    return {**key_json(info), "data": None if data is None else b64encode(data).decode()}


def open_key_blocks(view: ReadView, volume: str, bucket: str, key: str, session_id: int) -> Json:
    """Return the blocks that were given to the session of a key that is being written.

    Raises OMError as :func:`key_info` does.
    """
    tables.require_bucket(view, volume, bucket)
    info = tables.get_open_key(view, tables.open_key_key(volume, bucket, key, session_id))
    if info is None:
        raise OMError(KEY_NOT_FOUND, f"no open key /{volume}/{bucket}/{shown(key)} in session {session_id}")
    return {"blocks": key_json(info)["blocks"]}


def find_snapshot(view: ReadView, volume: str, bucket: str, snapshot: str) -> SnapshotInfo:
    """Return an active snapshot's row; raises OMError as :func:`bucket_info` does, and FILE_NOT_FOUND."""
    check_volume_name(volume)
    check_bucket_name(bucket)
    check_text("snapshot", snapshot)
    tables.require_bucket(view, volume, bucket)
    info = snapshots.require_snapshot(view, volume, bucket, snapshot)
    if info.state != ACTIVE:  # the key of a deleted snapshot's row was given as a name
        raise OMError(FILE_NOT_FOUND, f"no snapshot {shown(snapshot)} of bucket /{volume}/{bucket}")
    return info


def snapshot_info(view: ReadView, volume: str, bucket: str, snapshot: str) -> Json:
    """Return an active snapshot of a bucket; raises OMError as :func:`find_snapshot` does."""
    return snapshot_json(find_snapshot(view, volume, bucket, snapshot))


def list_volumes(
    view: ReadView, prefix: str = "", start_after: str = "", limit: int = DEFAULT_LIMIT,
    max_bytes: int = MAX_PAGE_BYTES, reader: Caller | None = None,
) -> Json:  # fmt: skip
    """List the volumes of one shard with their usage, those that ``reader`` may see (None: all).

    :func:`merge_listings` joins several shards'.
    """

    def seen(value: bytes) -> Json | None:
        info = tables.decode_volume(value)
        return volume_json(view, info) if reader is None or may_see_volume(reader, info) else None

    return _listing(view, VOLUME_TABLE, b"/", (prefix, start_after, limit, max_bytes), seen)


def list_buckets(
    view: ReadView, volume: str, prefix: str = "", start_after: str = "", limit: int = DEFAULT_LIMIT
) -> Json:
    """List a volume's buckets with their usage; raises OMError as :func:`volume_info` does."""
    check_volume_name(volume)
    tables.require_volume(view, volume)
    base = tables.volume_prefix(volume)
    return _listing(
        view, BUCKET_TABLE, base, (prefix, start_after, limit, MAX_PAGE_BYTES),
        lambda v: bucket_json(view, tables.decode_bucket(v)),
    )  # fmt: skip


def list_keys(
    view: ReadView, volume: str, bucket: str, prefix: str = "", start_after: str = "", limit: int = DEFAULT_LIMIT
) -> Json:
    """List a bucket's committed keys, without their blocks; raises OMError as :func:`bucket_info` does."""
    check_volume_name(volume)
    check_bucket_name(bucket)
    tables.require_bucket(view, volume, bucket)
    base = tables.bucket_prefix(volume, bucket)
    return _listing(
        view, KEY_TABLE, base, (prefix, start_after, limit, MAX_PAGE_BYTES),
        lambda v: listed_key_json(tables.decode_key(v)),
    )  # fmt: skip


def list_snapshots(
    view: ReadView, volume: str, bucket: str, prefix: str = "", start_after: str = "", limit: int = DEFAULT_LIMIT
) -> Json:
    """List a bucket's active snapshots by name; raises OMError as :func:`bucket_info` does."""
    check_volume_name(volume)
    check_bucket_name(bucket)
    check_text("start_after", start_after)
    tables.require_bucket(view, volume, bucket)
    after = max(start_after, BEHIND_DELETED, key=str.encode)
    return _listing(
        view, SNAPSHOT_TABLE, tables.bucket_prefix(volume, bucket), (prefix, after, limit, MAX_PAGE_BYTES),
        lambda v: snapshot_json(snapshots.decode_snapshot(v)),
    )  # fmt: skip


def merge_listings(listings: Iterable[Json], limit: int = DEFAULT_LIMIT) -> Json:
    """Join the shards' listings of volumes, each taken with the same arguments: a snapshot per shard only."""
    check_limit(limit)
    entries: list[Json] = []
    ends: list[bytes] = []
    for listing in listings:
        entries += listing["entries"]
        if listing["truncated"]:
            ends.append(listing["next_after"].encode())
    entries.sort(key=_volume_name)
    # After the end of a shard's page, that shard may have volumes that come before the rest.
    found = [entry for entry in entries if not ends or _volume_name(entry) <= min(ends)][:limit]
    if not ends and len(found) == len(entries):
        return _page(found)
    return _page(found, next_after=found[-1]["volume"])


def _volume_name(entry: Json) -> bytes:
    name: str = entry["volume"]
    return name.encode()


def check_limit(limit: int) -> None:
    """Raise OMError INVALID_REQUEST unless ``limit`` is in 1..MAX_LIMIT."""
    if not 1 <= limit <= MAX_LIMIT:
        raise OMError(INVALID_REQUEST, f"limit {limit} is not in 1..{MAX_LIMIT}")


def _page(entries: list[Json], *, next_after: str | None = None) -> Json:
    more = {} if next_after is None else {"next_after": next_after}
    return {"entries": entries, "truncated": bool(more), **more}


def _listing(
    view: ReadView, cf: str, base: bytes, page: tuple[str, str, int, int], to_json: Callable[[bytes], Json | None]
) -> Json:
    """List the rows under ``base`` whose names (rest of the key) fit ``page`` (prefix, start_after, limit, bytes).

    A row of which ``to_json`` makes None is not listed.
    """
    prefix, start_after, limit, max_bytes = page
    check_limit(limit)
    check_text("prefix", prefix)
    check_text("start_after", start_after)
    start = base + prefix.encode()
    stop = tables.prefix_stop(start)
    if start_after:
        start = max(start, base + start_after.encode() + b"\x00")
    entries: list[Json] = []
    size, last = 0, b""
    if start < stop:
        for key, value in view.iterate(cf, start, stop):
            if (entry := to_json(value)) is None:
                continue
            size += len(key) + len(value)
            if len(entries) == limit or (entries and size > max_bytes):
                return _page(entries, next_after=last.decode())
            entries.append(entry)
            last = key[len(base) :]
    return _page(entries)
