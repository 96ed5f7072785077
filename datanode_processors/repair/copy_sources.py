"""Whom to ask about a copy: addresses of datanodes that may hold its container, the latest named first.

Rules:
    - Addresses come with FetchContainer: the sources of the fetch, and those that the Object Manager names later. An
      address is never forgotten for silence, only for newer ones beyond MAX_SOURCES.
    - Addresses are kept in a file, so that a datanode that starts can ask at once. The file is a hint: if it is lost,
      old or unreadable, the datanode waits until the Object Manager names the sources again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock

from transport.files.durable_files import write_durably

SOURCES_FILE = "copy-sources.json"
"""The file's name in a datanode's folder."""
MAX_SOURCES = 16
"""Addresses that are kept for one container."""


def merged(known: Iterable[str], named: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses that were named, then those that were known, each once, MAX_SOURCES at most.

    >>> merged(["a:1", "b:1"], ["b:1", "c:1"])
    ('b:1', 'c:1', 'a:1')
    """
    return tuple(dict.fromkeys([*named, *known]))[:MAX_SOURCES]


class CopySources:
    """For many threads. Bounded by the copies that are here: ``save`` forgets the others."""

    def __init__(self, path: Path) -> None:
        """Read the file, as far as it can be understood."""
        self._path = path
        self._lock = Lock()
        self._writing = Lock()
        self._sources = _read(path)
        self._changed = False
        self._named: set[int] = set()
        """Containers that were named since the writing of the file began, or before."""

    def add(self, container_id: int, addresses: Iterable[str]) -> bool:
        """Take note of who may hold a container; return whether any of them is new."""
        with self._lock:
            self._named.add(container_id)
            known = self._sources.get(container_id, ())
            found = merged(known, addresses)
            if found == known:
                return False
            self._sources[container_id] = found
            self._changed = True
            return True

    def of(self, container_id: int) -> tuple[str, ...]:
        """Return whom to ask about a container."""
        with self._lock:
            return self._sources.get(container_id, ())

    def save(self, is_here: Callable[[int], bool]) -> None:
        """If anything has changed, forget containers that are not here and replace the file. Raises OSError."""
        with self._writing:
            self._save(is_here)

    def _save(self, is_here: Callable[[int], bool]) -> None:
        with self._lock:
            if not self._changed:
                return
            known = list(self._sources)
            self._named.clear()
        gone = {one for one in known if not is_here(one)}  # outside the lock, because it asks the disk
        with self._lock:
            self._sources = {
                one: found for one, found in self._sources.items() if one not in gone or one in self._named
            }
            self._changed = False
            listed = {str(container_id): list(found) for container_id, found in sorted(self._sources.items())}
        try:
            write_durably(self._path, json.dumps(listed), aside=self._path.with_suffix(".new"))
        except OSError:
            with self._lock:
                self._changed = True
            raise


def _read(path: Path) -> dict[int, tuple[str, ...]]:
    try:
        found = json.loads(path.read_text("utf-8"))
        return {int(number): merged((), map(str, addresses)) for number, addresses in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
