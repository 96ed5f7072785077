"""Names of keys that lie in a snapshot: ``.snapshot/NAME/KEY``, as in Ozone.

A key of a snapshot is named in this way wherever it is asked for and wherever it is shown. So the name that a listing
gave is the name to read the key by, and to go on with the listing after.
"""

from __future__ import annotations

from om_processors.namespace.names import SNAPSHOT_INDICATOR
from schemas.records.record import record


@record
class SnapshotPlace:
    """A place in a snapshot: the snapshot's name, and the rest, which is a key's name or the beginning of some."""

    snapshot: str
    rest: str


def is_reserved(name: str) -> bool:
    """Say whether a name lies below ``.snapshot/``, where no key of the bucket itself can be.

    >>> is_reserved(".snapshot"), is_reserved(".snapshot/s1"), is_reserved(".snapshots"), is_reserved("a/.snapshot/b")
    (True, True, False, False)
    """
    return name == SNAPSHOT_INDICATOR or name.startswith(SNAPSHOT_INDICATOR + "/")


def place_of(name: str) -> SnapshotPlace | None:
    """Return the place in a snapshot that a key's name means; None if it means none.

    A name without a snapshot's name (``.snapshot``, ``.snapshot/``) gives a place whose ``snapshot`` is empty.

    >>> place_of(".snapshot/s1/dir/a")
    SnapshotPlace(snapshot='s1', rest='dir/a')
    >>> place_of("dir/a") is None
    True
    """
    if not is_reserved(name):
        return None
    snapshot, _, rest = name.removeprefix(SNAPSHOT_INDICATOR).removeprefix("/").partition("/")
    return SnapshotPlace(snapshot=snapshot, rest=rest)


def beginning(snapshot: str) -> str:
    """Return how the names of all keys of a snapshot begin.

    >>> beginning("s1")
    '.snapshot/s1/'
    """
    return f"{SNAPSHOT_INDICATOR}/{snapshot}/"


def after_in(snapshot: str, start_after: str) -> str | None:
    """Return the key of a snapshot after which a listing goes on, from the name after which it goes on.

    Names are in the order of their UTF-8. An empty text stands for the first key, None for no key at all.

    >>> after_in("s1", ".snapshot/s1/dir/a"), after_in("s1", ""), after_in("s1", ".snapshot/s2/a") is None
    ('dir/a', '', True)
    """
    first = beginning(snapshot)
    if start_after.startswith(first):
        return start_after.removeprefix(first)
    return "" if start_after.encode() < first.encode() else None
