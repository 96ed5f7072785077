"""Whole files into keys and back, for a command or an ingest of many files.

What belongs here: copying with a SHA-256 of the copied bytes, and progress. A key is written from a file's content at
that moment; it becomes visible once all of it is durable. A local file appears under its name once it is complete.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from transport.files.durable_files import sync_folder

if TYPE_CHECKING:
    from producers.client import Client
    from producers.files.key_files import KeyInput, KeyOutput

COPY_BYTES = 1024 * 1024
"""Bytes that are copied at once."""

Progress = Callable[[int], None]
"""Called with the number of bytes copied since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Result of a copy; ``sha256`` in hexadecimal."""

    bytes: int
    sha256: str
    seconds: float

    @property
    def mb_per_second(self) -> float:
        """Millions of bytes per second."""
        return self.bytes / max(self.seconds, 1e-9) / 1e6


def put_file(
    client: Client, path: str, local: str | os.PathLike[str], *, metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Copied:  # fmt: skip
    """Write one local file as the key ``/volume/bucket/key``.

    Raises OSError if the file cannot be read, one of ``producers.errors`` if the key cannot be written. In that case
    there is no key, or the previous one.

    >>> put_file(client, "/vol1/bucket1/a.txt", "a.txt").bytes  # doctest: +SKIP
    5
    """
    with Path(local).open("rb") as source:
        size = os.fstat(source.fileno()).st_size
        with client.open(path, "wb", size=size, metadata=metadata) as key:
            return copy(source, key, progress)


def get_file(key: KeyInput, local: str | os.PathLike[str], *, progress: Progress | None = None) -> Copied:
    """Write a key's bytes, from its file's position on, into a local file, which is replaced if it exists.

    When this returns, the file survives a power failure. Until then its name has the previous content, or none. Raises
    OSError if the file cannot be written, one of ``producers.errors`` if the key cannot be read.

    >>> with client.open("/vol1/bucket1/a.txt") as key:  # doctest: +SKIP
    ...     get_file(key, "a.txt")
    """
    final = Path(local)
    # A name of its own for each call: two threads may write one file, and in another container a process may have
    # the same number.
    partial = final.with_name(f".{secrets.token_hex(8)}.part")
    with partial.open("xb") as target:
        try:
            copied = copy(key, target, progress)
            target.flush()
            os.fsync(target.fileno())
            partial.replace(final)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    with suppress(PermissionError):  # the folder may be writable and not readable: then it cannot be synced
        sync_folder(final.parent)
    return copied


def copy(source: BinaryIO | KeyInput, target: BinaryIO | KeyOutput, progress: Progress | None = None) -> Copied:
    """Copy the rest of ``source``; the time is that of the copy, without the closing of ``target``."""
    digest = hashlib.sha256()
    total = 0
    begun_s = time.monotonic()
    while data := source.read(COPY_BYTES):
        target.write(data)
        digest.update(data)
        total += len(data)
        if progress is not None:
            progress(len(data))
    return Copied(bytes=total, sha256=digest.hexdigest(), seconds=time.monotonic() - begun_s)
