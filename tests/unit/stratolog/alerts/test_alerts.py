"""Which alerts stand, and how a webhook is told: a real server, a slow one, a deaf one."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from schemas.records.messages import Verdict
from spark_streaming.records.core.freshness import ReportedPartition
from stratolog.alerts import webhook
from stratolog.alerts.core.alert_book import ACTION, GONE_MS, SEVERITY, UNKNOWN_MS, AlertBook
from stratolog.alerts.webhook import MAX_ALERTS, MAX_PENDING, Webhook, body_of, plain
from stratolog.errors import UsageError
from transport.topics.core.latest_verdicts import MAX_SUBJECTS
from transport.waiting.core.backoff import Backoff

NOW = 1_700_000_000_000


def verdict(word: str, *, node: str = "om1", basis: str = "incremental", offset: int = 10, at_ms: int = NOW) -> Verdict:
    return Verdict(
        cluster="test", shard=0, node=node, barrier_offset=offset, index=offset, verdict=word, basis=basis,
        differences=[], differing_slots=0, evidence=None, reason="", decided_at_ms=at_ms, log="om.log", containers=[],
    )  # fmt: skip


def told(book: AlertBook, *verdicts: Verdict, now_ms: int = NOW, **more: Any) -> list[tuple[str, str, str]]:
    book.take(verdicts)
    found = book.changes(more.pop("silent_ms", {}), now_ms, **more)
    return [(one.state, one.subject.name, one.subject.node) for one in found]


def test_a_divergence_is_told_once_and_its_end_once() -> None:
    book = AlertBook()
    assert told(book, verdict("equal")) == []
    assert told(book, verdict("diverged", offset=20)) == [("firing", "ReplicaDiverged", "om1")]
    assert told(book, verdict("diverged", offset=30)) == []
    assert told(book, verdict("equal", offset=25)) == [], "an older barrier says nothing of a newer one"
    assert told(book, verdict("equal", node="om2", offset=40)) == []
    assert told(book, verdict("equal", offset=40)) == [("resolved", "ReplicaDiverged", "om1")]
    assert book.standing == ()


def test_what_a_full_scan_found_is_not_over_because_the_digest_is_right() -> None:
    """A flipped bit leaves the running digest as it was; and nobody may scan again for days."""
    book = AlertBook()
    assert told(book, verdict("diverged", basis="scrubbed")) == [("firing", "ReplicaDiverged", "om1")]
    for turn in range(1, 4):
        later = NOW + turn * GONE_MS
        assert told(book, verdict("equal", offset=10 + turn, at_ms=later), now_ms=later) == []
    assert told(book, verdict("equal", basis="scrubbed", offset=50)) == [("resolved", "ReplicaDiverged", "om1")]


def test_evidence_is_settled_by_a_later_verdict() -> None:
    book = AlertBook()
    assert told(book, verdict("diverged", basis="evidence", offset=-1)) == [("firing", "ReplicaDiverged", "om1")]
    assert told(book, verdict("equal", at_ms=NOW - 1)) == [], "it was decided before the evidence"
    assert told(book, verdict("equal", at_ms=NOW + 1, offset=11)) == [("resolved", "ReplicaDiverged", "om1")]


def test_a_replica_that_is_a_member_no_longer_is_let_go() -> None:
    book = AlertBook()
    told(book, verdict("diverged"), verdict("equal", node="om2"))
    assert told(book, verdict("equal", node="om2", offset=20, at_ms=NOW + GONE_MS - 1)) == []
    gone = told(book, verdict("equal", node="om2", offset=30, at_ms=NOW + GONE_MS))
    assert gone == [("resolved", "ReplicaDiverged", "om1")]


def test_unknown_is_told_when_it_lasts() -> None:
    book = AlertBook()
    assert told(book, verdict("unknown"), now_ms=NOW + UNKNOWN_MS - 1) == []
    assert told(book, now_ms=NOW + UNKNOWN_MS) == [("firing", "ReplicaUnknown", "om1")]
    assert told(book, verdict("diverged", offset=20), now_ms=NOW + UNKNOWN_MS) == [
        ("resolved", "ReplicaUnknown", "om1"), ("firing", "ReplicaDiverged", "om1"),
    ]  # fmt: skip


def test_silence_is_told() -> None:
    book = AlertBook()
    silent = {ReportedPartition("om.log", 0): 61_000}
    assert told(book, silent_ms=silent, dead_brokers=["a:1"]) == [
        ("firing", "AuditSilent", ""), ("firing", "BrokersSilent", ""),
    ]  # fmt: skip
    assert "61 s" in book.standing[0].summary
    assert "a:1" in book.standing[1].summary
    assert told(AlertBook(), silent_ms=dict.fromkeys(silent, 0)) == [("firing", "AuditSilent", "")]
    assert told(book, silent_ms=silent) == [("resolved", "BrokersSilent", "")]
    assert told(book) == [("resolved", "AuditSilent", "")]


def test_the_book_is_bounded() -> None:
    book = AlertBook()
    book.take(verdict("equal", node=f"om{number:05}") for number in range(MAX_SUBJECTS + 6))
    assert [one.node for one in book.verdicts][:2] == ["om00006", "om00007"]


def test_every_alert_has_a_severity_and_a_command() -> None:
    assert set(SEVERITY) == set(ACTION)
    assert all(words.startswith("stratolog ") for words in ACTION.values())


# -- the webhook -------------------------------------------------------------------------------------------------------


class Receiver:
    """A web server that notes what it is told and answers as it is told to."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.answers: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def firing(*nodes: str) -> AlertBook:
    book = AlertBook()
    book.take(verdict("diverged", node=node) for node in nodes)
    return book


def test_a_webhook_is_told_in_the_form_of_alertmanager(receiver: Receiver) -> None:
    book = firing("om1")
    with Webhook(receiver.url) as hook:
        hook.add(book.changes({}, NOW))
        assert hook.deliver() is None
        book.take([verdict("equal", offset=20)])
        hook.add(book.changes({}, NOW + 1500))
        assert hook.deliver() is None
    first, second = receiver.bodies
    assert (first["version"], first["status"], second["status"]) == ("4", "firing", "resolved")
    (began,), (ended,) = first["alerts"], second["alerts"]
    assert began["labels"] == {
        "alertname": "ReplicaDiverged", "severity": "page", "log": "om.log", "shard": "0", "node": "om1",
        "basis": "incremental",
    }  # fmt: skip
    assert (began["startsAt"], began["endsAt"]) == ("2023-11-14T22:13:20.000Z", "0001-01-01T00:00:00Z")
    assert (ended["startsAt"], ended["endsAt"]) == (began["startsAt"], "2023-11-14T22:13:21.500Z")
    assert began["fingerprint"] == ended["fingerprint"] != ""


@pytest.mark.parametrize("answer", [500, 404, 302])
def test_what_is_refused_is_told_again(receiver: Receiver, answer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect too: nobody but the address that was given is told."""
    monkeypatch.setattr(webhook, "RETRY", Backoff(first_s=1e-9, last_s=1.0))
    receiver.answers = [answer]
    with Webhook(receiver.url) as hook:
        hook.add(firing("om1").changes({}, NOW))
        assert str(answer) in str(hook.deliver())
        assert hook.pending == 1
        assert hook.deliver() is None
        assert hook.pending == 0
    assert receiver.bodies[0] == receiver.bodies[1]


def test_a_failed_delivery_is_not_tried_at_once(receiver: Receiver) -> None:
    receiver.answers = [500]
    with Webhook(receiver.url) as hook:
        hook.add(firing("om1").changes({}, NOW))
        assert hook.deliver() is not None
        assert hook.deliver() is None
        assert (hook.pending, len(receiver.bodies)) == (1, 1)


def test_while_a_receiver_is_away_only_the_last_change_is_kept(receiver: Receiver) -> None:
    book = firing("om1")
    with Webhook(receiver.url) as hook:
        hook.add(book.changes({}, NOW))
        book.take([verdict("equal", offset=20)])
        hook.add(book.changes({}, NOW + 1))
        assert hook.deliver() is None
    assert [one["status"] for one in receiver.bodies[0]["alerts"]] == ["resolved"]


def test_deliveries_and_what_waits_are_bounded(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PENDING >= MAX_ALERTS > 1
    monkeypatch.setattr(webhook, "MAX_PENDING", 5)
    monkeypatch.setattr(webhook, "MAX_ALERTS", 2)
    with Webhook(receiver.url) as hook:
        hook.add(firing(*(f"om{number}" for number in range(7))).changes({}, NOW))
        assert (hook.pending, hook.dropped) == (5, 2)
        assert hook.deliver() is None
    assert [len(body["alerts"]) for body in receiver.bodies] == [2, 2, 1]


def test_a_receiver_that_is_not_there_or_says_nothing_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with Webhook(address) as hook:
            hook.add(firing("om1").changes({}, NOW))
            assert hook.deliver()
            assert hook.pending == 1
    with Webhook(address) as hook:
        hook.add(firing("om1").changes({}, NOW))
        assert hook.deliver()
        assert hook.pending == 1


@pytest.mark.parametrize("url", ["", "ftp://a/b", "127.0.0.1:9000/x", "http://", "http://a:port/"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--webhook"):
        Webhook(url)


def test_an_alert_is_printed_flat() -> None:
    (one,) = firing("om1").changes({}, NOW)
    assert plain(one) == {
        "state": "firing", "summary": one.summary, "alert": "ReplicaDiverged", "log": "om.log", "shard": "0",
        "node": "om1", "basis": "incremental", "began_ms": NOW, "ended_ms": 0,
    }  # fmt: skip
    assert body_of([])["status"] == "resolved"
