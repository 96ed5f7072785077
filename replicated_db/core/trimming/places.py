"""What members and the audit say of themselves when the log is to be trimmed.

A member's *durable position* survives a loss of power: the member takes its position, then syncs its store, then
answers. So what it restarts from is that position or a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replicated_db.core.trimming.bases import MAX_BASES, Base
from schemas.records.log import CHAIN_BYTES

MAX_DIGESTS = 32
"""Barriers whose digests a replica remembers, so that members can be compared while the shard is written."""

MAX_HOLDS = 1024
"""Most offsets that one member may hold for transfers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlace:
    """A member's answer about one shard.

    ``offset``: its durable position, -1 if it has read nothing. ``keeps_from``: the first offset that it may read again
    (it compares the record at its position with the log, and a candidate reads again from its anchor). ``digests``:
    pairs of an index and the digest there. ``holds``: offsets from which transfers still need the log. ``record_hash``:
    of the record at ``offset``, in hexadecimal; empty if an earlier version answers.
    """

    node: str
    cluster: str
    shard: int
    offset: int
    keeps_from: int
    index: int
    flagged: bool
    members: tuple[str, ...]
    bases: tuple[Base, ...] = ()
    digests: tuple[tuple[int, str], ...] = ()
    holds: tuple[int, ...] = ()
    record_hash: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        return {
            "node": self.node, "cluster": self.cluster, "shard": self.shard, "offset": self.offset,
            "keeps_from": self.keeps_from, "index": self.index, "flagged": self.flagged, "members": list(self.members),
            "bases": [[base.offset, base.index, base.chain.hex()] for base in self.bases], "digests": [list(pair) for pair in self.digests],
            "holds": list(self.holds), "record_hash": self.record_hash,
        }  # fmt: skip

    @classmethod
    def from_json(cls, answer: Any) -> MemberPlace:
        """Restore an answer; raises ValueError naming what is wrong with it."""
        if not isinstance(answer, Mapping):
            raise ValueError(f"the answer is a {type(answer).__name__}")
        offset, keeps_from = _whole(answer, "offset", -1), _whole(answer, "keeps_from", 0)
        if keeps_from > max(offset, 0):
            raise ValueError(f"keeps_from {keeps_from} lies behind offset {offset}")
        flagged = answer.get("flagged")
        if not isinstance(flagged, bool):
            raise ValueError(f"flagged is {flagged!r}")
        return cls(
            node=_text(answer, "node"), cluster=_text(answer, "cluster"), shard=_whole(answer, "shard", 0),
            offset=offset, keeps_from=keeps_from, index=_whole(answer, "index", 0), flagged=flagged,
            members=tuple(_texts(answer, "members")),
            bases=tuple(_base(item) for item in _items(answer, "bases", MAX_BASES)),
            digests=tuple(_digest(item) for item in _items(answer, "digests", MAX_DIGESTS + 1)),
            holds=tuple(_numbers(_items(answer, "holds", MAX_HOLDS))),
            record_hash=_text(answer, "record_hash") if "record_hash" in answer else "",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlace:
    """How far the audit has come with one shard: the last barrier that it has judged ``equal``, and when it judged.

    ``offset`` is -1 if it has judged no barrier ``equal``. ``diverged`` names the nodes whose last verdict is so.
    """

    offset: int
    decided_at_ms: int
    diverged: tuple[str, ...] = ()


def agreeing(places: Iterable[MemberPlace]) -> tuple[int, tuple[str, ...]]:
    """Return the greatest group of unflagged members with one digest at one index: the index, and their names.

    Of groups of one size the one of the highest index is returned; (-1, ()) if nobody has a digest.
    """
    groups: dict[tuple[int, str], set[str]] = {}
    for place in places:
        if not place.flagged:
            for index, digest in place.digests:
                groups.setdefault((index, digest), set()).add(place.node)
    best = max(groups.items(), key=lambda group: (len(group[1]), group[0]), default=None)
    return (-1, ()) if best is None else (best[0][0], tuple(sorted(best[1])))


def _whole(answer: Mapping[str, Any], name: str, low: int) -> int:
    value = answer.get(name)
    if type(value) is not int or value < low:
        raise ValueError(f"{name} is {value!r}")
    return value


def _text(answer: Mapping[str, Any], name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}")
    return value


def _texts(answer: Mapping[str, Any], name: str) -> list[str]:
    values = answer.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} is {values!r}")
    return values


def _items(answer: Mapping[str, Any], name: str, limit: int) -> list[Any]:
    values = answer.get(name)
    if not isinstance(values, list) or len(values) > limit:
        raise ValueError(f"{name} is no list of up to {limit} items")
    return values


def _numbers(values: Any) -> Sequence[int]:
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"{values!r} are no offsets")
    return values


def _base(item: Any) -> Base:
    if not isinstance(item, list) or len(item) != 3 or not isinstance(item[2], str):
        raise ValueError(f"{item!r} is no base")
    offset, index = _numbers(item[:2])
    chain = bytes.fromhex(item[2])
    if len(chain) != CHAIN_BYTES:
        raise ValueError(f"{item!r} has a chain of {len(chain)} bytes")
    return Base(offset, index, chain)


def _digest(item: Any) -> tuple[int, str]:
    if not isinstance(item, list) or len(item) != 2 or type(item[0]) is not int or not isinstance(item[1], str):
        raise ValueError(f"{item!r} is no digest of an index")
    return item[0], item[1]
