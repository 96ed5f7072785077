"""The log's port on a broker in this process: what every log promises, and what a reader and an appender say of errors.

``tests/integration/test_ports_kafka.py`` runs the same suite on a real broker, with what this one does not have.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from replicated_db.core.errors import BrokenLog
from replicated_db.core.ports import AppendRefused, DeliveryReport, Log, LogUnavailable, OffsetOutOfRange
from replicated_db.shell.kafka import fresh_consumer, kafka_log
from replicated_db.shell.kafka.fresh_consumer import FreshConsumer
from replicated_db.shell.kafka.kafka_log import QUEUE_MAX_MESSAGES, KafkaLog, consumer_settings
from tests.support.local.memory_broker import MemoryBroker, memory_broker
from tests.support.replicated.port_suites import LogSuite, read_all, read_until_refused, settle

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: MemoryBroker) -> str:
    name = f"log-{next(_numbers)}"
    broker.create(name)
    return name


@pytest.fixture
def log(broker: MemoryBroker, topic: str) -> Iterator[KafkaLog]:
    log = KafkaLog(broker.bootstrap_servers, topic, 0, f"id of {topic}")
    yield log
    log.close()


class TestKafkaLog(LogSuite):
    """The suite. This broker keeps no append times, so reports and records are compared without them."""

    def test_reports_carry_token_offset_and_append_time(self, log: Log):
        reports = self.append(log, b"a", b"b", b"c")
        assert [(report.token, report.offset, report.error) for report in reports] == [
            (1, 0, None), (2, 1, None), (3, 2, None),
        ]  # fmt: skip
        assert all(report.timestamp_ms > 0 for report in reports)
        assert all(entry.timestamp_ms > 0 for entry in read_all(log, 0, 3))


def test_records_have_the_headers_that_are_given_for_them_and_others_none(broker: MemoryBroker, topic: str):
    """They are beside the value: a log that knows nothing of headers reads the same."""
    given = [[("traceparent", b"1"), ("traceparent", b"2")], [], [("traceparent", b"3")]]
    log = KafkaLog(broker.bootstrap_servers, topic, 0, "id", headers=iter(given).__next__)
    appender = log.appender()
    for token, value in enumerate((b"a", b"b", b"c")):
        appender.append(token, value)
    reports: list[DeliveryReport] = []
    while len(reports) < 3:
        reports += appender.poll(1)
    assert [(report.offset, report.error) for report in reports] == [(0, None), (1, None), (2, None)]
    assert [message.headers() or [] for message in broker.read(topic, 3, 0)] == given
    assert [entry.value for entry in read_all(log, 0, 3)] == [b"a", b"b", b"c"]
    appender.close()
    log.close()


def test_a_log_that_rests_fetches_nothing_and_reads_on(broker: MemoryBroker, topic: str, log: KafkaLog):
    broker.append(topic, b"a", b"b", b"c")
    assert [entry.value for entry in read_all(log, 0, 1)] == [b"a"]
    consumer = log._reader.consumer
    assert consumer.assignment() != []
    log.rest()
    log.rest()
    assert consumer.assignment() == []
    assert [entry.value for entry in read_all(log, 1, 2)] == [b"b", b"c"]


def test_another_partition_is_another_log(broker: MemoryBroker, topic: str):
    for partition in (0, 1):
        broker.append(topic, b"partition %d" % partition, partition=partition)
    for partition in (0, 1):
        log = KafkaLog(broker.bootstrap_servers, topic, partition, "id")
        assert [entry.value for entry in read_all(log, 0, 1)] == [b"partition %d" % partition]
        log.close()


def test_a_record_without_a_value_is_an_empty_one(broker: MemoryBroker, topic: str, log: KafkaLog):
    broker.append(topic, None, b"x")
    assert [(entry.offset, entry.value) for entry in read_all(log, 0, 2)] == [(0, b""), (1, b"x")]


def test_what_a_read_leaves_is_read_next(broker: MemoryBroker, topic: str, log: KafkaLog):
    """Reading goes on without a new assignment where the last read ended, whatever its limit was."""
    broker.append(topic, *(b"%d" % number for number in range(9)))
    seen: list[int] = []
    while len(seen) < 9:
        found = log.read(len(seen), 2, 5)
        assert 1 <= len(found) <= 2
        seen += [int(entry.value) for entry in found]
    assert seen == list(range(9))


def test_an_offset_that_is_refused_says_where(topic: str, log: KafkaLog):
    with pytest.raises(OffsetOutOfRange, match=rf"^{topic}/0: offset 7: "):
        read_until_refused(log, 7)


def test_without_a_broker_the_log_is_unavailable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kafka_log, "REQUEST_TIMEOUT_S", 0.05)
    log = KafkaLog("127.0.0.1:1", "log", 0, "id")
    with pytest.raises(LogUnavailable):
        log.bounds()
    log.close()


def test_an_appender_that_has_no_room_refuses_and_a_closed_one_reports_what_it_dropped(topic: str):
    """What was queued when a claim was abandoned must not go out later under its nonce."""
    log = KafkaLog("127.0.0.1:1", topic, 0, "id")
    appender = log.appender()
    for token in range(QUEUE_MAX_MESSAGES):
        appender.append(token, b"x")
    with pytest.raises(AppendRefused, match=f"^{QUEUE_MAX_MESSAGES} records wait for the broker$"):
        appender.append(QUEUE_MAX_MESSAGES, b"x")
    appender.close()
    reports = settle(appender, QUEUE_MAX_MESSAGES)
    assert {report.token for report in reports} == set(range(QUEUE_MAX_MESSAGES))
    assert {(report.offset, report.timestamp_ms) for report in reports} == {(-1, 0)}
    assert all(report.error for report in reports)
    log.close()


def test_a_record_that_is_too_large_is_refused_at_once(log: KafkaLog):
    appender = log.appender()
    with pytest.raises(AppendRefused, match="too large"):
        appender.append(1, bytes(kafka_log.FETCH_MAX_BYTES + 1))
    appender.close()


# The consumer below it.


def test_a_reader_that_hears_nothing_is_made_anew_and_goes_on_where_it_was(
    broker: MemoryBroker, topic: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fresh_consumer, "SILENT_BROKER_MS", 20)
    reader = FreshConsumer(consumer_settings(broker.bootstrap_servers))
    reader.assign(TopicPartition(topic, 0, 0))
    seen = []
    for number in range(3):
        broker.append(topic, b"%d" % number)
        monkeypatch.setattr(fresh_consumer, "SILENT_BROKER_MS", 10**9)
        assert [message.value() for message in reader.consume(1, 10)] == [b"%d" % number]
        before = reader.consumer
        assert reader.consume(1, 0.01) == []
        assert reader.consumer is before, "silence is counted from the first time that nothing came"
        monkeypatch.setattr(fresh_consumer, "SILENT_BROKER_MS", 5)
        assert reader.consume(1, 0.01) == []
        seen.append(before)
        assert reader.consumer is not before
    assert len(set(map(id, seen))) == 3
    reader.close()
    reader.close()


def test_a_record_ends_the_silence(broker: MemoryBroker, topic: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fresh_consumer, "SILENT_BROKER_MS", 0)
    reader = FreshConsumer(consumer_settings(broker.bootstrap_servers))
    reader.assign(TopicPartition(topic, 0, 0))
    first = reader.consumer
    broker.append(topic, b"x")
    assert reader.consume(1, 10)
    assert reader.consume(1, 0) == []
    assert reader.consumer is first
    reader.assign(TopicPartition(topic, 0, 1))
    assert reader.consume(1, 0) == []
    assert reader.consumer is first, "a new assignment begins a new silence"
    reader.close()


def test_a_reader_that_was_never_placed_is_made_anew_all_the_same(broker: MemoryBroker):
    reader = FreshConsumer(consumer_settings(broker.bootstrap_servers))
    first = reader.consumer
    reader.renew()
    assert reader.consumer is not first
    reader.close()


class Told:
    """A message as librdkafka hands it over: a record, or an error."""

    def __init__(self, offset: int | None, code: int | None = None) -> None:
        self._offset = offset
        self._code = code

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code, "why")

    def offset(self) -> int | None:
        return self._offset

    def value(self) -> bytes:
        return b"value"

    def timestamp(self) -> tuple[int, int]:
        return (1, 77)


def reading(log: KafkaLog, monkeypatch: pytest.MonkeyPatch, *messages: Told) -> list[str]:
    """Have a log read these messages; return what it does to its reader."""
    done: list[str] = []
    answers = iter([list(messages[:1]), list(messages[1:])])
    monkeypatch.setattr(log._reader, "assign", lambda where: done.append(f"assign {where.offset}"))
    monkeypatch.setattr(log._reader, "renew", lambda: done.append("renew"))
    monkeypatch.setattr(log._reader, "consume", lambda *_: next(answers))
    return done


def test_records_before_an_error_are_taken_and_the_rest_is_read_afresh(log: KafkaLog, monkeypatch: pytest.MonkeyPatch):
    done = reading(log, monkeypatch, Told(5), Told(6), Told(None, KafkaError._TRANSPORT), Told(8))
    assert [(entry.offset, entry.timestamp_ms) for entry in log.read(5, 10, 0)] == [(5, 77), (6, 77)]
    reading(log, monkeypatch, Told(7))
    again = reading(log, monkeypatch, Told(7))
    assert [entry.offset for entry in log.read(7, 1, 0)] == [7]
    assert (done, again) == (["assign 5"], ["assign 7"])
    on = reading(log, monkeypatch, Told(8))
    assert [entry.offset for entry in log.read(8, 1, 0)] == [8]
    assert on == [], "it goes on by itself"


@pytest.mark.parametrize("code", [KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET])
def test_an_offset_out_of_range_is_asked_of_another_broker_next(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch, code: int
):
    done = reading(log, monkeypatch, Told(5), Told(None, code))
    with pytest.raises(OffsetOutOfRange, match="offset 5: why"):
        log.read(5, 10, 0)
    assert done == ["assign 5", "renew"]


@pytest.mark.parametrize(("at", "said"), [(7, "7"), (None, "5")])
def test_a_record_that_is_damaged_is_named(log: KafkaLog, monkeypatch: pytest.MonkeyPatch, at: int | None, said: str):
    reading(log, monkeypatch, Told(at, KafkaError._BAD_MSG))
    with pytest.raises(BrokenLog, match=rf"\b{said}\b"):
        log.read(5, 10, 0)


def test_a_batch_with_a_wrong_checksum_is_named_and_not_read(broker: MemoryBroker, topic: str, log: KafkaLog):
    broker.append_damaged(topic, b"a text that says something. " * 20)
    with pytest.raises(BrokenLog, match=r"at offset 0 fails .*CRC32C"):
        log.read(0, 10, 30.0)


READING = """
from replicated_db.shell.kafka.kafka_log import KafkaLog
from tests.support.local.memory_broker import memory_broker
with memory_broker() as broker:
    broker.create("log")
    broker.append_damaged("log", bytes(600))
    print("read:", KafkaLog(broker.bootstrap_servers, "log", 0, "id").read(0, 10, 30.0))
"""


def test_a_batch_of_zeros_with_a_wrong_checksum_is_never_read():
    """librdkafka 2.16 reports it, goes on at another place of the answer than behind the batch, takes zeros there for a
    batch of the first format, and ends the process by an assertion: confluent-kafka-python's issue 689."""
    ended = subprocess.run([sys.executable, "-c", READING], capture_output=True, text=True, timeout=120, check=False)
    assert "read:" not in ended.stdout
    if ended.returncode == -signal.SIGABRT:
        assert "rd_slice_narrow_copy: Assertion" in ended.stderr
    else:
        assert "BrokenLog: log/0: the record at offset 0 fails" in ended.stderr, ended.stderr


def test_any_other_error_is_of_the_brokers(log: KafkaLog, monkeypatch: pytest.MonkeyPatch):
    reading(log, monkeypatch, Told(None, KafkaError._TRANSPORT))
    with pytest.raises(LogUnavailable, match="^why$"):
        log.read(5, 10, 0)


def test_a_partition_that_is_new_is_looked_for_afresh(broker: MemoryBroker, topic: str, log: KafkaLog):
    """A consumer that looked before would look again half a minute later."""
    before = log._reader.consumer
    unknown = KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
    other = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    for error, is_renewed in ((other, False), (unknown, True)):

        class Asked:
            """The reader's consumer, as a broker answers it that does not know the partition."""

            def get_watermark_offsets(self, *_: object, error: Exception = error, **__: object) -> None:
                raise error

            def close(self) -> None:
                pass

        consumer: Any = Asked()
        log._reader._consumer = consumer
        with pytest.raises(LogUnavailable):
            log.bounds()
        assert (log._reader.consumer is not consumer) is is_renewed
    before.close()
    assert log.bounds() == (0, 0)
