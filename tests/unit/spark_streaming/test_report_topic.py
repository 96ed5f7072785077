"""Reports that were held back, read again from a broker; and what the sinks send to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException

from schemas.codecs.codec import encode
from schemas.topics import OM_AUDIT, OM_VERDICTS
from spark_streaming.records import sender
from spark_streaming.records.logs import KNOWN_LOGS
from spark_streaming.records.report_times import ReportTimes
from spark_streaming.records.sender import Sender
from spark_streaming.records.sources import kafka_options, log_source, reports_source
from spark_streaming.verdicts import report_topic
from spark_streaming.verdicts.report_topic import KafkaReportTopic
from tests.support.local.memory_broker import PARTITIONS, MemoryBroker, memory_broker
from tests.support.logs.logbuilder import ordinary_log
from tests.support.logs.pipelinelog import ordinary_pipeline


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with memory_broker() as broker:
        yield broker


def test_reports_are_read_again_in_their_order_from_one_offset_to_another(broker: MemoryBroker):
    """Reports of stored bytes and what is no report are left out: the operator has had them."""
    log, pipeline = ordinary_log(), ordinary_pipeline()
    sent = log.all_reports()
    blocks = encode(pipeline.block_report(pipeline.barriers[-1], "dn1"))
    broker.append(OM_AUDIT, *map(encode, sent[:3]), b"nonsense", None, blocks, *map(encode, sent[3:6]), partition=2)
    found = list(KafkaReportTopic(broker.bootstrap_servers, OM_AUDIT, 2).read(1, 8))
    assert [one.offset for one in found] == [1, 2, 6, 7]
    wanted = [sent[1], sent[2], sent[3], sent[4]]
    assert [(one.node, one.barrier_offset, one.basis, list(one.sums)) for one in found] == [
        (one.node, one.barrier_offset, one.basis, one.sums) for one in wanted
    ]
    assert {one.partition for one in found} == {2}


def test_a_topic_that_has_lost_its_end_gives_what_it_has(broker: MemoryBroker):
    """It ends at the topic's end, and waits for nothing."""
    broker.append(OM_AUDIT, encode(ordinary_log().all_reports()[0]))
    assert [one.offset for one in KafkaReportTopic(broker.bootstrap_servers, OM_AUDIT, 0).read(0, 10**6)] == [0]
    assert list(KafkaReportTopic(broker.bootstrap_servers, OM_AUDIT, 1).read(0, 5)) == []


def test_brokers_that_do_not_serve_reports_fail_the_micro_batch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report_topic, "READ_SECONDS", 0.3)
    monkeypatch.setattr(report_topic, "POLL_SECONDS", 0.1)
    with pytest.raises(KafkaException):
        list(KafkaReportTopic("127.0.0.1:1", OM_AUDIT, 0).read(0, 1))


# What is sent.


def test_records_are_sent_in_order_and_a_key_stays_in_its_partition(broker: MemoryBroker):
    """Also from one producer to the next."""
    for start in (0, 50):
        values = [b"%d" % n for n in range(start, start + 50)]
        Sender(broker.bootstrap_servers, OM_VERDICTS).send([(b"0", value) for value in values])
    counts = [broker.count(OM_VERDICTS, partition) for partition in range(PARTITIONS)]
    assert sorted(counts) == [0] * (PARTITIONS - 1) + [100]
    found = broker.read(OM_VERDICTS, 100, counts.index(100))
    assert [message.value() for message in found] == [b"%d" % n for n in range(100)]


def test_records_that_the_brokers_do_not_take_fail_the_micro_batch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender, "SEND_SECONDS", 0.5)
    with pytest.raises(KafkaException):
        Sender("127.0.0.1:1", OM_VERDICTS).send([(b"k", b"v")])
    Sender("127.0.0.1:1", OM_VERDICTS).send([])


# When replicas reported.


def test_brokers_that_do_not_say_when_replicas_reported_are_no_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spark_streaming.records.report_times.ANSWER_SECONDS", 0.1)
    times = ReportTimes("127.0.0.1:1")
    assert times.newest_ms() == {}
    assert times.newest_ms() == {}, "they are asked again after a while"


# What is read.


def test_lost_reports_do_not_stop_the_audit_and_lost_records_of_a_log_do():
    """Downtime past the retention of om.audit stopped the audit for ever."""
    logs, reports = (kafka_options(make("here", KNOWN_LOGS)) for make in (log_source, reports_source))
    assert (logs["failOnDataLoss"], reports["failOnDataLoss"]) == ("true", "false")


def test_topics_that_are_made_later_are_found():
    """A pattern names them all; a dot in it is a dot."""
    assert kafka_options(log_source("here", KNOWN_LOGS))["subscribePattern"] == r"om\.log|dn\.log"
