"""Topics and brokers are looked at before anything begins: which answers are a wrong setting, and which are waited out."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from replicated_db.core.ports import LogUnavailable
from replicated_db.shell import startup
from replicated_db.shell.startup import MIN_SESSION_TIMEOUT, WrongSetting, check_topics
from schemas.topics import LOG_SETTINGS

BROKER = {"auto.create.topics.enable": "false", MIN_SESSION_TIMEOUT: "6000"}


def done(answer: Any) -> Future[Any]:
    found: Future[Any] = Future()
    if isinstance(answer, Exception):
        found.set_exception(answer)
    else:
        found.set_result(answer)
    return found


class Brokers:
    """Two brokers, and what they say of topics and settings."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {"log": self.topic(3, replicas=3), "reports": self.topic(5, replicas=1)}
        self.configs: dict[str, dict[str, str]] = {
            "log": {**LOG_SETTINGS, "min.insync.replicas": "2"}, "reports": {}, "1": dict(BROKER), "2": dict(BROKER),
        }  # fmt: skip
        self.asked: list[list[str]] = []
        self.error: Exception | None = None

    @staticmethod
    def topic(partitions: int, replicas: int) -> SimpleNamespace:
        return SimpleNamespace(topic_id="id-1", partitions=[SimpleNamespace(replicas=range(replicas))] * partitions)

    def __call__(self, _: Any) -> Brokers:
        return self

    def list_topics(self, timeout: float) -> SimpleNamespace:
        assert timeout == startup.ADMIN_TIMEOUT_S
        if self.error is not None:
            raise self.error
        return SimpleNamespace(brokers={1: None, 2: None}, cluster_id="blue")

    def describe_topics(self, names: Any, *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == startup.ADMIN_TIMEOUT_S
        return {name: done(self.topics[name]) for name in names.topic_names}

    def describe_configs(self, resources: list[Any], *, request_timeout: float) -> dict[Any, Future[Any]]:
        assert request_timeout == startup.ADMIN_TIMEOUT_S
        self.asked.append([resource.name for resource in resources])
        return {
            resource: done({name: SimpleNamespace(name=name, value=value) for name, value in self.configs[resource.name].items()})
            for resource in resources
        }  # fmt: skip

    def poll(self, _: float) -> int:
        return 0


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(startup, "AdminClient", made)
    monkeypatch.setattr(startup, "TopicCollection", lambda names: SimpleNamespace(topic_names=names))
    return made


def checked(**more: Any) -> Any:
    return check_topics("127.0.0.1:1", "log", ["reports"], **more)


def test_what_is_as_it_should_be_is_told(brokers: Brokers) -> None:
    brokers.configs["2"][MIN_SESSION_TIMEOUT] = "9000"
    found = checked()
    assert (found.log_topic_id, found.partitions) == ("id-1", {"log": 3, "reports": 5})
    assert found.brokers_id == "blue"
    assert found.min_session_timeout_ms == 9_000, "what the strictest broker takes"
    assert brokers.asked == [["log"], ["1"], ["2"]], "each broker is asked for its own"
    del brokers.configs["1"][MIN_SESSION_TIMEOUT], brokers.configs["2"][MIN_SESSION_TIMEOUT]
    assert checked().min_session_timeout_ms == 0


def test_a_topics_settings_are_compared(brokers: Brokers) -> None:
    setting = next(iter(LOG_SETTINGS))
    brokers.configs["log"][setting] = "another"
    with pytest.raises(WrongSetting, match=f"topic log: {setting} must be"):
        checked()
    brokers.configs["log"] = {**LOG_SETTINGS, "min.insync.replicas": "2"}
    brokers.configs["reports"] = {"retention.ms": "5"}
    with pytest.raises(WrongSetting, match="topic reports: retention.ms must be -1, not 5"):
        checked(settings={"reports": {"retention.ms": "-1"}})


def test_the_logs_replicas_must_be_in_sync_but_for_no_other_topic(brokers: Brokers) -> None:
    brokers.configs["log"]["min.insync.replicas"] = "1"
    with pytest.raises(WrongSetting, match="min.insync.replicas must be at least 2 with 3 replicas"):
        checked()
    brokers.topics["log"].partitions[:] = [SimpleNamespace(replicas=range(count)) for count in (3, 2)]
    checked()  # the partition with the fewest counts
    brokers.topics["reports"] = Brokers.topic(1, replicas=3)
    brokers.configs["reports"] = {"min.insync.replicas": "1"}
    checked(settings={"reports": {}})


@pytest.mark.parametrize("value", ["true", None])
def test_brokers_must_not_create_topics_by_themselves(brokers: Brokers, value: str | None) -> None:
    if value is None:
        del brokers.configs["2"]["auto.create.topics.enable"]
    else:
        brokers.configs["2"]["auto.create.topics.enable"] = value
    with pytest.raises(WrongSetting, match="2: auto.create.topics.enable must be false"):
        checked()


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, WrongSetting, "^topic reports: "),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, LogUnavailable, "^topic reports: .*: this process may not use it$"),
        (KafkaError._TRANSPORT, LogUnavailable, "^(?!topic)"),
        (KafkaError._TIMED_OUT, LogUnavailable, "^(?!topic)"),
    ],
)
def test_a_topic_that_is_missing_is_a_wrong_setting_and_a_right_may_come_later(
    brokers: Brokers, code: int, kind: type[Exception], said: str
) -> None:  # fmt: skip
    brokers.topics["reports"] = KafkaException(KafkaError(code))
    with pytest.raises(kind, match=said) as refused:
        checked()
    assert type(refused.value) is kind


def test_brokers_that_do_not_answer_are_waited_out(brokers: Brokers) -> None:
    brokers.error = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with pytest.raises(LogUnavailable):
        checked()
