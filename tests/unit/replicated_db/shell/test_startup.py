"""Checks before a process takes part in a log: the replica's position against the log's end and records."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from replicated_db.core.errors import AheadOfLog, NeedsCheckpoint
from replicated_db.core.log.log_reads import END_BEHIND_WAIT_S
from replicated_db.core.ports import Entry, LogBounds, LogUnavailable, OffsetOutOfRange
from replicated_db.shell import startup
from replicated_db.shell.startup import WrongSetting, check_beginning, check_replica, check_topics
from schemas.topics import LOG_SETTINGS, UNCOMPRESSED
from tests.support.local.memory_broker import memory_broker
from tests.support.replicated.kit import Node, Shard, put


class Log:
    """The log of a shard, seen from ``low`` to ``high``; a record that is not there cannot be read."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.low, self.high = 0, len(shard.log.entries)
        self.identity = shard.log.topic_id()
        self.error: Exception | None = None
        self.rested = 0

    def topic_id(self) -> str:
        return self.identity

    def bounds(self) -> LogBounds:
        return LogBounds(self.low, self.high)

    def read(self, offset: int, limit: int, wait_s: float) -> Sequence[Entry]:
        assert (limit, wait_s) == (1, startup.ADMIN_TIMEOUT_S)
        if self.error is not None:
            raise self.error
        return self.shard.log.entries[offset : offset + 1]

    def rest(self) -> None:
        self.rested += 1


class Case:
    """A replica that has applied some records, and has started again."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.shard.do(put(b"a", b"1"))
        self.shard.catch_up()
        self.node: Node = self.shard.nodes["n1"].restart()
        self.log = Log(self.shard)
        self.notes: list[str] = []
        self.now_s = 0.0
        self.grows_at_s: float | None = None

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.grows_at_s is not None and self.now_s >= self.grows_at_s:
            self.log.high = len(self.shard.log.entries)

    def check(self) -> None:
        log: object = self.log
        check_replica(self.node.replica, log, self.notes.append, now_s=lambda: self.now_s, sleep=self.sleep)  # type: ignore[arg-type]


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_replica_whose_record_is_in_the_log_may_begin(case: Case):
    case.check()
    assert case.notes == []


def test_a_fresh_replica_takes_the_topic_as_it_is(case: Case):
    case.node = Node(log=case.shard.log, name="n3")
    case.log.high = 0
    case.check()
    assert case.node.replica.position.topic_id == case.log.identity


def test_another_record_at_its_position_stops_the_replica(case: Case):
    offset = case.node.replica.position.offset
    case.shard.log.entries[offset] = case.shard.log.entries[offset - 1]
    with pytest.raises(AheadOfLog):
        case.check()


def test_a_topic_that_was_made_anew_stops_the_replica(case: Case):
    case.log.identity = "another topic"
    with pytest.raises(AheadOfLog):
        case.check()


def test_a_position_before_the_first_record_needs_a_checkpoint(case: Case):
    offset = case.node.replica.position.offset
    case.log.low = offset
    case.check()
    case.log.low = offset + 1
    wanted = f"shard 0: position {offset} lies before the log's first record {offset + 1}; .* needs a checkpoint"
    with pytest.raises(AheadOfLog, match=wanted):
        case.check()


def test_a_log_that_ends_before_the_position_is_waited_for(case: Case):
    """A broker that has just begun to lead may not know its own end yet."""
    offset = case.node.replica.position.offset
    case.log.high, case.grows_at_s = offset, 3.0
    case.check()
    assert case.notes == [f"shard 0: the log ends at {offset}, this replica is at {offset}; waiting"] * 3


def test_a_log_that_stays_shorter_stops_the_replica(case: Case):
    case.log.high = case.node.replica.position.offset
    with pytest.raises(AheadOfLog):
        case.check()
    assert case.now_s > END_BEHIND_WAIT_S


@pytest.mark.parametrize("error", [OffsetOutOfRange("gone"), None])
def test_a_record_that_cannot_be_read_is_no_proof(case: Case, error: Exception | None):
    offset = case.node.replica.position.offset
    case.log.error = error
    del case.shard.log.entries[offset:]
    with pytest.raises(LogUnavailable, match=f"shard 0: offset {offset} could not be read"):
        case.check()


@pytest.mark.parametrize(
    ("replication", "in_sync", "refused"),
    [
        (1, "1", False),
        (2, "1", False),
        (3, "1", True),
        (3, None, True),
        (5, "1", True),
        (3, "2", False),
        (3, "3", False),
    ],
)
def test_with_three_replicas_two_must_be_in_sync(replication: int, in_sync: str | None, refused: bool):
    config = {} if in_sync is None else {"min.insync.replicas": in_sync}
    if not refused:
        startup._check_in_sync("log", config, replication)
        return
    wanted = f"topic log: min.insync.replicas must be at least 2 with {replication} replicas"
    with pytest.raises(WrongSetting, match=wanted):
        startup._check_in_sync("log", config, replication)


@pytest.mark.parametrize("setting", LOG_SETTINGS)
def test_a_wrong_setting_is_named_with_its_right_value(setting: str):
    startup._check("topic log", LOG_SETTINGS, LOG_SETTINGS)
    for wrong in ("another", None):
        with pytest.raises(WrongSetting) as refusal:
            startup._check("topic log", {**LOG_SETTINGS, setting: wrong}, LOG_SETTINGS)  # type: ignore[dict-item]
        assert f"topic log: {setting} must be {LOG_SETTINGS[setting]}, not {wrong}" in str(refusal.value)
        assert ("'stratolog topics ensure' sets it" in str(refusal.value)) is (setting in UNCOMPRESSED)


def test_an_empty_replica_needs_the_logs_first_record(case: Case):
    log: object = case.log
    empty = Node(log=case.shard.log, name="n3").replica
    check_beginning(empty, log)  # type: ignore[arg-type]
    case.log.low = 1
    with pytest.raises(NeedsCheckpoint, match="shard 0: this replica is empty, and the log's first record is 1"):
        check_beginning(empty, log)  # type: ignore[arg-type]
    check_beginning(case.node.replica, log)  # type: ignore[arg-type]


def test_without_brokers_nothing_is_checked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(startup, "ADMIN_TIMEOUT_S", 0.1)
    with pytest.raises(LogUnavailable):
        check_topics("127.0.0.1:1", "log", ["others"])


def test_a_controller_that_does_not_answer_is_no_wrong_setting(monkeypatch: pytest.MonkeyPatch):
    """The broker in memory has none. A wrong setting would end the process; this is waited out."""
    monkeypatch.setattr(startup, "ADMIN_TIMEOUT_S", 0.5)
    with memory_broker() as broker:
        broker.create("there")
        with pytest.raises(LogUnavailable):
            check_topics(broker.bootstrap_servers, "there", [])
