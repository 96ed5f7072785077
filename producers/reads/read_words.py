"""Reads in the user's words: "key 'x' in bucket /v/b" instead of a path of the HTTP API.

What belongs here: the way from a path of ``producers.reads.reads`` and its parameters to words, and to the name of the
thing that an error reports as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from producers.requests.arguments import shown

ROOT = "/v1/volumes"


def asked(path: str, parameters: Mapping[str, str]) -> str:
    """Return the subject of a read in words; the path itself if it is not a volume, bucket or key.

    >>> asked("/v1/volumes/v/buckets/b/key", {"name": "a/b"}), asked("/v1/volumes/v/buckets", {}), asked("/status", {})
    ("key 'a/b' in bucket /v/b", 'buckets of volume /v', 'GET /status')
    """
    match _names(path):
        case []:
            return "volumes"
        case [volume]:
            return f"volume /{volume}"
        case [volume, "buckets"]:
            return f"buckets of volume /{volume}"
        case [volume, "buckets", bucket]:
            return f"bucket /{volume}/{bucket}"
        case [volume, "buckets", bucket, "keys"]:
            return f"keys of bucket /{volume}/{bucket}"
        case [volume, "buckets", bucket, "key"]:
            return f"key {shown(parameters.get('name', ''))} in bucket /{volume}/{bucket}"
        case [volume, "buckets", bucket, "snapshot-diffs"]:
            to = shown(parameters["to"]) if "to" in parameters else "now"
            return f"difference between {shown(parameters.get('from', ''))} and {to} of bucket /{volume}/{bucket}"
        case [volume, "buckets", bucket, "snapshots"]:
            return f"snapshots of bucket /{volume}/{bucket}"
        case [volume, "buckets", bucket, "snapshots", snapshot]:
            return f"snapshot {shown(snapshot)} of bucket /{volume}/{bucket}"
    return f"GET {path}"


def missing(status: str, path: str, parameters: Mapping[str, str]) -> str | None:
    """Return the thing that a code reports as missing, None for another code.

    >>> missing("BUCKET_NOT_FOUND", "/v1/volumes/v/buckets/b/key", {"name": "a"})
    'bucket /v/b'
    >>> missing("FILE_NOT_FOUND", "/v1/volumes/v/buckets/b/key", {"name": ".snapshot/snap1/a"})
    "snapshot 'snap1' of bucket /v/b"
    """
    names = _names(path) or []
    if status == "VOLUME_NOT_FOUND" and names:
        return f"volume /{names[0]}"
    if status == "BUCKET_NOT_FOUND" and len(names) > 2:
        return f"bucket /{names[0]}/{names[2]}"
    if status == "KEY_NOT_FOUND" and names[3:] == ["key"]:
        return asked(path, parameters)
    if status == "FILE_NOT_FOUND" and len(names) > 2 and (snapshot := _snapshot(names[3:], parameters)):
        return f"snapshot {shown(snapshot)} of bucket /{names[0]}/{names[2]}"
    return None


def _snapshot(names: list[str], parameters: Mapping[str, str]) -> str | None:
    """Return the name of the snapshot that a read asked for, by its path below the bucket, or by a key's name."""
    match names:
        case ["snapshots", snapshot]:
            return snapshot
        case ["key"] | ["keys"]:
            first, *rest = parameters.get("name" if names == ["key"] else "prefix", "").split("/")
            return rest[0] if first == ".snapshot" and rest else None
    return None


def _names(path: str) -> list[str] | None:
    """Return the parts of a path below ROOT, None for another path."""
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        return None
    return [unquote(part) for part in path.removeprefix(ROOT).split("/")[1:]]
