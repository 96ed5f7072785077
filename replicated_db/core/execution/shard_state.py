"""How a shard is run, according to its log: members, feature level, prepared or not, modes of requests. Pure.

What belongs here: the value that Genesis and the control records (Members, FeatureLevel, Prepared, Mode) lead to, and
nothing that a service stores. Every reader of the log has the same value at the same index. A leader's value is further
ahead: it includes records that the leader itself has appended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from replicated_db.core.errors import Refused, UpgradeNeeded
from schemas import features
from schemas.codecs.codec import encode_at
from schemas.records.log import LATE_MODE, FeatureLevel, Genesis, LogRecord, Members, Mode, Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """How a shard is run at one point of its log.

    ``prepared`` is the name of the checkpoint of a Prepare in force, else None. ``late`` holds the request types in
    LATE_MODE.
    """

    replicas: tuple[str, ...] = ()
    feature_level: int = features.INITIAL
    prepared: str | None = None
    late: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOperation:
    """A control record that a request asks for: its type, and its fields after ``index``.

    The record is appended right before the batch whose first request this is.
    """

    record: type[Any]
    fields: dict[str, Any]

    def with_header(self, **header: Any) -> Any:
        """Return the record."""
        return self.record(**header, **self.fields)

    def effect_on(self, state: ShardState) -> ShardState:
        """Return the state that the record will lead to.

        Raises Unencodable for fields that no record can hold, Refused for a feature level that this software does not
        know.
        """
        record = self.with_header(term=0, nonce=bytes(16), seq=0, prev_chain=bytes(32), index=0)
        try:
            after = state_after(state, record)
        except UpgradeNeeded as error:  # the level was asked for, not read from the log: it is the asker's mistake
            raise Refused(str(error)) from error
        encode_at(record, after.feature_level)
        return after


def state_after(state: ShardState, record: LogRecord) -> ShardState:
    """Return the state after a record that counts.

    Raises UpgradeNeeded for a feature level that this software does not know.
    """
    if isinstance(record, Genesis):
        _check_level(record.feature_level)
        return replace(state, replicas=tuple(record.replicas), feature_level=record.feature_level)
    if isinstance(record, Members):
        return replace(state, replicas=tuple(record.replicas))
    if isinstance(record, FeatureLevel):
        _check_level(record.level)
        return replace(state, feature_level=record.level)
    if isinstance(record, Prepared):
        return replace(state, prepared=record.checkpoint if record.prepared else None)
    if isinstance(record, Mode):
        kind = {record.request_type}
        return replace(state, late=state.late | kind if record.mode == LATE_MODE else state.late - kind)
    return state


def _check_level(level: int) -> None:
    if level > features.LATEST:
        raise UpgradeNeeded(
            f"the log is at feature level {level}, this software knows up to {features.LATEST}: upgrade this node"
        )
