"""Which names are legal: Ozone's rules (``HddsClientUtils.verifyResourceName`` in its strict S3 form, ``OmUtils``).

Volumes and buckets: 3 to 63 characters of ``a-z 0-9 . -``; no ``.`` or ``-`` at either end; none of ``..``, ``.-``,
``-.``; not digits and periods alone (an IPv4 address or a number).

Snapshots: the same rules as volumes and buckets, as in Ozone.

Keys: any text that is not empty, taken as it is (``/`` means nothing in the OBS layout, no normalization; Ozone's
check of characters is off by default). Two rules: at most :data:`MAX_KEY_NAME_BYTES` in UTF-8, and a new key must not
be ``.snapshot`` or lie under ``.snapshot/``, because snapshots are read there.
"""

from __future__ import annotations

import re
from functools import lru_cache

from om_processors.errors import OMError
from schemas.result_codes import (
    INVALID_BUCKET_NAME,
    INVALID_KEY_NAME,
    INVALID_REQUEST,
    INVALID_SNAPSHOT_ERROR,
    INVALID_VOLUME_NAME,
)

MIN_NAME_CHARACTERS = 3
MAX_NAME_CHARACTERS = 63
MAX_KEY_NAME_BYTES = 4096
"""Linux's PATH_MAX, so that any path can be a key. Ozone sets no limit; S3's is 1,024 bytes."""
NAME_CACHE_ENTRIES = 4096
SHOWN_CHARACTERS = 100
"""Most characters of an illegal name that an error message repeats."""
SNAPSHOT_INDICATOR = ".snapshot"
_INDICATOR_CHARACTERS = len(SNAPSHOT_INDICATOR)

_UNSUPPORTED = re.compile(r"[^a-z0-9.-]")
_NUMERIC = re.compile(r"[0-9.]*")
_ILLEGAL_PAIRS = ("..", "-.", ".-")


def _resource_name_fault(name: str) -> str | None:
    """Return the fault in a volume's or bucket's name, or None."""
    if not MIN_NAME_CHARACTERS <= len(name) <= MAX_NAME_CHARACTERS:  # not remembered: it may have a mebibyte
        return f"it has {len(name)} characters instead of {MIN_NAME_CHARACTERS} to {MAX_NAME_CHARACTERS}"
    return _character_fault(name)


@lru_cache(maxsize=NAME_CACHE_ENTRIES)
def _character_fault(name: str) -> str | None:
    if unsupported := _UNSUPPORTED.search(name):
        return f"{unsupported.group()!r} is not allowed: lowercase letters, digits, '.' and '-' are"
    if name[0] in ".-" or name[-1] in ".-":
        return "it starts or ends with '.' or '-'"
    for pair in _ILLEGAL_PAIRS:
        if pair in name:
            return f"it contains {pair!r}"
    if _NUMERIC.fullmatch(name):
        return "it is an IPv4 address or all numeric"
    return None


def shown(name: str) -> str:
    """Return ``name`` quoted for an error message, cut to :data:`SHOWN_CHARACTERS`."""
    return repr(name) if len(name) <= SHOWN_CHARACTERS else f"{name[:SHOWN_CHARACTERS]!r}…"


def check_volume_name(volume: str) -> None:
    """Raise OMError INVALID_VOLUME_NAME unless ``volume`` is a legal name."""
    if fault := _resource_name_fault(volume):
        raise OMError(INVALID_VOLUME_NAME, f"illegal volume name {shown(volume)}: {fault}")


def check_bucket_name(bucket: str) -> None:
    """Raise OMError INVALID_BUCKET_NAME unless ``bucket`` is a legal name."""
    if fault := _resource_name_fault(bucket):
        raise OMError(INVALID_BUCKET_NAME, f"illegal bucket name {shown(bucket)}: {fault}")


@lru_cache(maxsize=NAME_CACHE_ENTRIES)
def check_place(volume: str, bucket: str) -> None:
    """Raise OMError INVALID_VOLUME_NAME or INVALID_BUCKET_NAME for an illegal name. Legal ones are remembered."""
    check_volume_name(volume)
    check_bucket_name(bucket)


def check_snapshot_name(snapshot: str) -> None:
    """Raise OMError INVALID_SNAPSHOT_ERROR unless ``snapshot`` is a legal name."""
    if fault := _resource_name_fault(snapshot):
        raise OMError(INVALID_SNAPSHOT_ERROR, f"illegal snapshot name {shown(snapshot)}: {fault}")


def check_key_name(key: str) -> None:
    """Raise OMError INVALID_KEY_NAME unless ``key`` can be the name of a key."""
    if not key:
        raise OMError(INVALID_KEY_NAME, "illegal key name '': it is empty")
    try:
        size_bytes = len(key if key.isascii() else key.encode())
    except UnicodeEncodeError as error:
        raise OMError(INVALID_KEY_NAME, f"illegal key name {shown(key)}: it is no Unicode text: {error}") from error
    if size_bytes > MAX_KEY_NAME_BYTES:
        fault = f"it has {size_bytes} bytes, more than {MAX_KEY_NAME_BYTES}"
        raise OMError(INVALID_KEY_NAME, f"illegal key name {shown(key)}: {fault}")


def check_new_key_name(key: str) -> None:
    """Raise OMError INVALID_KEY_NAME unless a key may be created under this name."""
    check_key_name(key)
    # A slice, as nearly no name begins with it.
    if key[:_INDICATOR_CHARACTERS] == SNAPSHOT_INDICATOR and key[_INDICATOR_CHARACTERS:][:1] in ("", "/"):
        raise OMError(
            INVALID_KEY_NAME, f"illegal key name {shown(key)}: '{SNAPSHOT_INDICATOR}' is reserved for snapshots"
        )


def check_text(what: str, text: str) -> None:
    """Raise OMError INVALID_REQUEST unless ``text`` (an owner, a prefix) is Unicode text that can be stored."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OMError(INVALID_REQUEST, f"illegal {what} {shown(text)}: it is no Unicode text: {error}") from error
