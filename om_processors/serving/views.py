"""Rows for people and programs: JSON-ready dicts of a row's fields, with its usage where it has counters."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from om_processors.namespace import quota, tables
from om_processors.namespace.context import ReadView
from schemas.records.rows import BlockLocation, BucketInfo, KeyInfo, SnapshotInfo, VolumeInfo

Json = dict[str, Any]

_NOT_SHOWN = frozenset({"acls", "prefixes"})
"""Lists of access control are read by a page of their own: they need a right of their own."""


def _shown(row: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(row) if field.name not in _NOT_SHOWN)


_VOLUME_FIELDS = _shown(VolumeInfo)
_BUCKET_FIELDS = _shown(BucketInfo)
_KEY_FIELDS = _shown(KeyInfo)
_BLOCK_FIELDS = tuple(field.name for field in fields(BlockLocation))
_SNAPSHOT_FIELDS = tuple(field.name for field in fields(SnapshotInfo))


def volume_json(view: ReadView, info: VolumeInfo) -> Json:
    """Return a volume's fields, and ``usage``: number of buckets, sum of their byte quotas."""
    row: Json = {name: getattr(info, name) for name in _VOLUME_FIELDS}
    row["usage"] = {
        "used_namespace": quota.read(view, tables.used_buckets_key(info.volume)),
        "allotted_bytes": quota.read(view, tables.allotted_bytes_key(info.volume)),
    }
    return row


def bucket_json(view: ReadView, info: BucketInfo) -> Json:
    """Return a bucket's fields, and ``usage``: committed bytes, number of keys."""
    row: Json = {name: getattr(info, name) for name in _BUCKET_FIELDS}
    row["usage"] = {
        "used_bytes": quota.read(view, tables.used_bytes_key(info.volume, info.bucket)),
        "used_namespace": quota.read(view, tables.used_keys_key(info.volume, info.bucket)),
    }
    return row


def listed_key_json(info: KeyInfo) -> Json:
    """Return a key's fields for a listing: without blocks."""
    row: Json = {name: getattr(info, name) for name in _KEY_FIELDS}
    row["blocks"] = []
    row["metadata"] = dict(info.metadata)
    return row


def key_json(info: KeyInfo) -> Json:
    """Return a key's fields, its blocks as a list of dicts."""
    row: Json = {name: getattr(info, name) for name in _KEY_FIELDS}
    row["blocks"] = [{name: getattr(block, name) for name in _BLOCK_FIELDS} for block in info.blocks]
    row["metadata"] = dict(info.metadata)
    return row


def snapshot_json(info: SnapshotInfo) -> Json:
    """Return a snapshot's fields."""
    row: Json = {name: getattr(info, name) for name in _SNAPSHOT_FIELDS}
    row["properties"] = dict(info.properties)
    return row
