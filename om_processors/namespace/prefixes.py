"""Rows of prefixTable: access control lists of prefixes of keys' names, and what new objects inherit. Pure.

A prefix's key is ``/volume/bucket/prefix``, as a key's. The row of its bucket says how many there are: without any, no
request looks for one.
"""

from __future__ import annotations

from om_processors.namespace.context import ReadView, RowTransaction
from om_processors.namespace.tables import bucket_prefix, key_key, prefix_stop
from schemas.access.acl import DEFAULT, inherited
from schemas.codecs.codec import decode_as, encode
from schemas.column_families import PREFIX_TABLE
from schemas.records.identity import PrefixInfo
from schemas.records.rows import Acl, BucketInfo

MAX_PREFIX_BYTES = 255
"""Most bytes of a prefix in UTF-8: it bounds how many rows a key's name may have to be looked for under."""
MAX_PREFIXES_PER_BUCKET = 1_000
"""Most prefixes of a bucket with a list: they are removed with the bucket, in one request."""


def get_prefix(view: ReadView, volume: str, bucket: str, prefix: str) -> PrefixInfo | None:
    """Return a row of prefixTable, or None."""
    value = view.get(PREFIX_TABLE, key_key(volume, bucket, prefix))
    return None if value is None else decode_as(PrefixInfo, value)


def put_prefix(tx: RowTransaction, info: PrefixInfo) -> None:
    """Write a row of prefixTable."""
    tx.put(PREFIX_TABLE, key_key(info.volume, info.bucket, info.prefix), encode(info))


def prefixes_of(view: ReadView, bucket: BucketInfo, key: str) -> list[PrefixInfo]:
    """Return the rows of the prefixes that a key's name begins with, longest first."""
    if not bucket.prefixes:
        return []
    head = key.encode()[:MAX_PREFIX_BYTES]
    found: list[PrefixInfo] = []
    end = head.rfind(b"/")
    while end >= 0:
        # A cut through a character is behind the last slash, so what is before it is UTF-8.
        info = get_prefix(view, bucket.volume, bucket.bucket, head[: end + 1].decode())
        if info is not None:
            found.append(info)
        end = head.rfind(b"/", 0, end)
    return found


class BucketPrefixes:
    """The prefixes of one bucket that have a list, read once: names of many slashes then cost many keys little.

    One row is looked for at each slash of a name otherwise, and a name may have MAX_PREFIX_BYTES of them.
    """

    def __init__(self, view: ReadView, volume: str, bucket: str) -> None:
        base = bucket_prefix(volume, bucket)
        self._rows = {row[len(base) :]: value for row, value in view.iterate(PREFIX_TABLE, base, prefix_stop(base))}
        self._lengths = sorted({len(name) for name in self._rows}, reverse=True)

    def nearest(self, key: str) -> PrefixInfo | None:
        """Return the row of the longest prefix that a key's name begins with, as ``prefixes_of`` finds it; or None."""
        head = key.encode()[:MAX_PREFIX_BYTES]
        found = next((name for length in self._lengths if (name := head[:length]) in self._rows), None)
        return None if found is None else decode_as(PrefixInfo, self._rows[found])


def acls_of_new_key(view: ReadView, bucket: BucketInfo, key: str) -> list[Acl]:
    """Return what a new key inherits: of the longest prefix that has DEFAULT entries, or else of its bucket."""
    if not bucket.prefixes and not bucket.acls:
        return []
    for info in prefixes_of(view, bucket, key):
        if any(acl.scope == DEFAULT for acl in info.acls):
            return inherited(info.acls, passes_on=False)
    return inherited(bucket.acls, passes_on=False) if bucket.acls else []
