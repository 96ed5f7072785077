"""The keys of a bucket that differs: from replicas' rows, over real sockets, however the replicas behave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from schemas.access.credentials import auditor_credentials
from schemas.access.signatures import Presented, presented
from schemas.privilege import ClusterSecret
from schemas.records.messages import Difference, Verdict
from schemas.topics import DN_LOG, OM_LOG
from spark_streaming.naming import key_naming, replica_rows
from spark_streaming.naming.core.row_differences import (
    NAMED_KEYS,
    BucketRows,
    Damage,
    Look,
    lasting,
    look,
    settled,
    words,
)
from spark_streaming.naming.key_naming import KeyNaming
from spark_streaming.naming.replica_rows import NoRows, ReplicaRows
from tests.support.local.waiting import eventually

TRUE = {b"a": 1, b"b": 2, b"c": -3}
BUCKET = Difference(cf="keyTable", bucket=7, log_sum=0, replica_sum=9)
INDEX = 5
VERDICT = Verdict(
    cluster="c", shard=0, node="om2", barrier_offset=10, index=INDEX, verdict="diverged", basis="scrubbed",
    differences=[BUCKET], differing_slots=1, evidence=None, reason="1 slots differ", decided_at_ms=1, log=OM_LOG,
)  # fmt: skip


def rows(found: dict[bytes, int], index: int = INDEX, *, is_whole: bool = True) -> BucketRows:
    return BucketRows(index=index, rows=found, is_whole=is_whole)


@pytest.mark.parametrize(
    ("own", "damage"),
    [
        ({**TRUE, b"b": 20}, {b"b": Damage.OTHER}),
        ({b"a": 1, b"c": -3}, {b"b": Damage.MISSING}),
        ({**TRUE, b"d": 4}, {b"d": Damage.EXTRA}),
        (TRUE, {}),
        ({}, dict.fromkeys(TRUE, Damage.MISSING)),
    ],
)
def test_each_kind_of_damage_is_named(own: dict[bytes, int], damage: dict[bytes, Damage]):
    assert look(rows(own), [rows(TRUE), rows(TRUE)], BUCKET, INDEX) == Look(damage, is_settled=True)


def test_who_has_the_logs_sum_is_right_against_a_majority():
    """Two of three replicas have the same wrong row."""
    wrong = {**TRUE, b"b": 20}
    assert look(rows(wrong), [rows(wrong), rows(TRUE)], BUCKET, INDEX).keys == {b"b": Damage.OTHER}
    almost = {**TRUE, b"b": TRUE[b"b"] ^ 1}
    assert look(rows(almost), [rows(almost), rows(TRUE)], BUCKET, INDEX).keys == {b"b": Damage.OTHER}, "each bit counts"
    later = [rows(wrong, 6), rows(TRUE, 6)]
    assert look(rows(wrong, 6), later, BUCKET, INDEX).keys == {}, "nobody can say who is right there"


def test_replicas_at_other_indexes_are_looked_at_again():
    """A key that is being written differs in one look; one that is damaged in each."""
    own = {**TRUE, b"b": 20}
    first = look(rows(own), [rows({**TRUE, b"w": 9}, 6)], BUCKET, INDEX)
    second = look(rows({**own, b"w": 9}, 6), [rows({**TRUE, b"w": 10}, 7)], BUCKET, INDEX)
    third = look(rows({**own, b"w": 10}, 7), [rows({**TRUE, b"w": 10}, 8)], BUCKET, INDEX)
    assert set(first.keys) == {b"b", b"w"}
    assert settled([first, second, third]) is None
    assert lasting([first, second, third]) == {b"b": Damage.OTHER}
    assert lasting([]) == {}
    fourth = look(rows(own, 8), [rows(TRUE, 8), rows({}, 7)], BUCKET, INDEX)
    assert settled([first, fourth]) == {b"b": Damage.OTHER}, "who is elsewhere is left out"


def test_of_a_part_of_the_rows_only_what_all_give_is_compared():
    part = rows({b"a": 1, b"b": 2}, is_whole=False)
    assert look(rows({**TRUE, b"b": 20}), [part], BUCKET, INDEX).keys == {b"b": Damage.OTHER}
    assert look(part, [rows(TRUE)], BUCKET, INDEX).keys == {}
    assert look(rows({}, is_whole=False), [rows(TRUE)], BUCKET, INDEX).keys == {}


def test_keys_are_told_as_text_and_counted():
    many = {b"%03d" % number: Damage.EXTRA for number in range(NAMED_KEYS + 2)}
    assert words(BUCKET, many).endswith("'007' (extra) and 2 more")
    del many[b"008"], many[b"009"]
    assert words(BUCKET, many).endswith("'007' (extra)"), "all are named"
    assert "'\\x00\\xff' (another value)" in words(BUCKET, {b"\0\xff": Damage.OTHER})
    assert len(words(BUCKET, {b"k" * 5000: Damage.OTHER})) < 300
    assert words(BUCKET, {}) == "keyTable bucket 7: the replicas hold the same rows now"


# Over HTTP.


class Replica:
    """A node's page of rows on a real socket; ``body`` is what it sends, by default its rows as a node does."""

    def __init__(self, found: dict[bytes, int], index: int = INDEX) -> None:
        self.asked: list[str] = []
        self.signed: Presented | None = None
        self.host = ""
        self.body: Callable[[BaseHTTPRequestHandler], None] | None = None
        self.found, self.index = found, index
        replica = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                replica.asked.append(self.path)
                replica.signed = presented(self.headers.get("Authorization"))
                replica.host = self.headers["Host"]
                if replica.body is not None:
                    replica.body(self)
                    return
                listed = [{"key": key.hex(), "hash": value} for key, value in replica.found.items()]
                sent(self, {"index": replica.index, "offset": 3, "rows": listed, "truncated": False})

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def sent(handler: BaseHTTPRequestHandler, answer: Any, status: int = 200) -> None:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


@pytest.fixture
def replicas() -> Iterator[dict[str, Replica]]:
    found = {"om1": Replica(TRUE), "om2": Replica({**TRUE, b"b": 20}), "om3": Replica(TRUE)}
    yield found
    for one in found.values():
        one.close()


def addresses(replicas: dict[str, Replica]) -> dict[str, dict[str, str]]:
    return {OM_LOG: {name: one.address for name, one in replicas.items()}}


class Named:
    """A KeyNaming that runs, and what it has named."""

    def __init__(self, replicas: dict[str, Replica]) -> None:
        self.verdicts: list[Verdict] = []
        self.naming = KeyNaming(ReplicaRows(addresses(replicas)), self.verdicts.append)
        self.naming.start()

    def wait(self, count: int = 1) -> Verdict:
        deadline = time.monotonic() + 30
        while len(self.verdicts) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.verdicts[count - 1]

    def close(self) -> None:
        self.naming.stop()


@pytest.fixture
def named(replicas: dict[str, Replica], monkeypatch: pytest.MonkeyPatch) -> Iterator[Named]:
    monkeypatch.setattr(key_naming, "LOOK_PAUSE_S", 0.01)
    with closing(Named(replicas)) as found:
        yield found


def test_the_keys_of_a_diverged_replica_are_named(replicas: dict[str, Replica], named: Named):
    assert named.naming.take(VERDICT) == VERDICT, "it is not held up"
    found = named.wait()
    assert found.reason == "1 slots differ; rows that differ: keyTable bucket 7: 'b' (another value)"
    assert replace(found, reason=VERDICT.reason, decided_at_ms=1) == VERDICT
    assert found.decided_at_ms > 1
    assert replicas["om1"].asked == ["/v1/shards/0/rows?cf=keyTable&bucket=7"]


def test_the_audit_signs_its_questions(replicas: dict[str, Replica]):
    """Nodes with ``auth = signed`` give rows to nobody else."""
    asked = replicas["om1"]
    for credentials in (auditor_credentials(ClusterSecret(b"s" * 32)), None):
        rows = ReplicaRows(addresses(replicas), credentials=credentials)
        with closing(rows):
            assert rows.ask(OM_LOG, "om1", 0, BUCKET).rows == TRUE
        if credentials is None:
            assert asked.signed is None
        else:
            assert asked.signed is not None
            assert asked.signed.name.text == "_audit:0"
            assert asked.signed.is_of(credentials, "GET", asked.host, asked.asked[-1])


def test_the_same_buckets_are_not_looked_at_for_each_verdict(
    replicas: dict[str, Replica], named: Named, monkeypatch: pytest.MonkeyPatch
):
    named.naming.take(VERDICT)
    told = named.wait().reason
    later = replace(VERDICT, barrier_offset=20, index=6)
    assert named.naming.take(later) == replace(later, reason=told)
    assert len(replicas["om1"].asked) == 1
    other = replace(later, differences=[BUCKET, replace(BUCKET, bucket=8)], differing_slots=2)
    assert named.naming.take(other) == other
    assert "bucket 8" in named.wait(2).reason
    damaged = replace(other, differences=[replace(BUCKET, replica_sum=77), other.differences[1]])
    assert named.naming.take(damaged) != damaged, "told as it was for a moment"
    monkeypatch.setattr(key_naming, "AGAIN_SECONDS", 0.0)
    assert named.naming.take(other) == other
    assert named.wait(3).barrier_offset == 20


def test_verdicts_that_waited_behind_the_first_get_the_keys_too(replicas: dict[str, Replica], named: Named):
    """They went out without keys, and nobody named them afterwards."""
    release = threading.Event()

    def hold(handler: Any) -> None:
        release.wait(5)
        replicas["om1"].body = None
        handler.do_GET()

    replicas["om1"].body = hold
    verdicts = [replace(VERDICT, barrier_offset=10 + number) for number in range(3)]
    assert [named.naming.take(one) for one in verdicts] == verdicts
    release.set()
    named.wait(3)
    assert {(one.barrier_offset, "'b' (another value)" in one.reason) for one in named.verdicts} == {
        (10, True), (11, True), (12, True)
    }  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        replace(VERDICT, verdict="equal"),
        replace(VERDICT, verdict="unknown"),
        replace(VERDICT, differences=[]),
        replace(VERDICT, node="om9"),
        replace(VERDICT, log=DN_LOG),
    ],
)
def test_of_other_verdicts_nobody_is_asked(replicas: dict[str, Replica], named: Named, other: Verdict):
    assert named.naming.take(other) == other
    named.naming.take(VERDICT)
    named.wait()
    assert [len(one.asked) for one in replicas.values()] == [1, 1, 1]
    assert len(named.verdicts) == 1


def test_buckets_are_bounded_and_the_rest_counted(named: Named):
    many = [replace(BUCKET, bucket=number) for number in range(key_naming.NAMED_BUCKETS + 3)]
    named.naming.take(replace(VERDICT, differences=many, differing_slots=90))
    assert named.wait().reason.endswith(f"; {90 - key_naming.NAMED_BUCKETS} buckets more")


def test_replicas_that_write_on_are_looked_at_several_times(replicas: dict[str, Replica], named: Named):
    for number, one in enumerate(replicas.values()):
        one.index = number
    named.naming.take(VERDICT)
    assert named.wait().reason.endswith("'b' (another value)")
    assert [len(one.asked) for one in replicas.values()] == [key_naming.LOOKS] * 3


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):  # whoever asked has gone
        for _ in range(100):
            handler.wfile.write(b" ")
            time.sleep(0.05)


HOSTILE: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "an error": lambda handler: sent(handler, {"error": "busy"}, 503),
    "no JSON": lambda handler: sent(handler, b"<html>"),
    "deep": lambda handler: sent(handler, b"[" * 3_000),
    "no rows": lambda handler: sent(handler, {"index": 5, "rows": [{"key": "zz"}], "truncated": False}),
    "a list": lambda handler: sent(handler, []),
    "much": lambda handler: sent(handler, b"[" + b"1," * 3_000 + b"1]"),
    "drips": drip,
    "silent": lambda _: time.sleep(3.0),
    "elsewhere": lambda handler: sent(handler, b"", 302),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_replica_holds_nobody_up(replicas: dict[str, Replica], monkeypatch: pytest.MonkeyPatch, how: str):
    monkeypatch.setattr(replica_rows, "ASK_SECONDS", 2.0)
    monkeypatch.setattr(replica_rows, "SILENCE_SECONDS", 1.5)
    monkeypatch.setattr(replica_rows, "ANSWER_BYTES", 4_000)
    monkeypatch.setattr(key_naming, "LOOK_PAUSE_S", 0.01)
    replicas["om1"].body = HOSTILE[how]
    with closing(Named(replicas)) as found:
        found.naming.take(VERDICT)
        assert found.wait().reason.endswith("'b' (another value)"), "the others say it"
    replicas["om2"].body = HOSTILE[how]
    rows_of = ReplicaRows(addresses(replicas))
    with closing(rows_of), pytest.raises(NoRows, match=f"^om2 at {replicas['om2'].address}: "):
        rows_of.ask(OM_LOG, "om2", 0, BUCKET)


def test_a_replica_that_is_gone_is_told(replicas: dict[str, Replica], named: Named):
    for name in ("om1", "om3"):
        replicas[name].body = HOSTILE["an error"]
    named.naming.take(VERDICT)
    assert "keyTable bucket 7: not known (om1 at " in named.wait().reason
    assert all(len(one.asked) == 1 for one in replicas.values())


def test_what_waits_is_bounded_and_a_stop_ends_it(replicas: dict[str, Replica], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_naming, "WAITING", 2)
    monkeypatch.setattr(key_naming, "STOP_SECONDS", 5.0)
    release = threading.Event()

    def hold(handler: BaseHTTPRequestHandler) -> None:
        release.wait(5)
        sent(handler, b"")

    replicas["om1"].body = replicas["om2"].body = hold
    with closing(Named(replicas)) as found:
        for shard in range(9):
            found.naming.take(replace(VERDICT, shard=shard))
        release.set()
        found.close()
        assert len(found.verdicts) <= 3


def test_a_verdict_that_cannot_be_told_keeps_no_others_from_being_named(replicas: dict[str, Replica]):
    """The disk of the health file is full for a moment; the thread died, and no key was named from then on."""
    told: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        told.append(verdict)
        if len(told) == 1:
            raise OSError("No space left on device")

    naming = KeyNaming(ReplicaRows(addresses(replicas)), tell)
    naming.start()
    for bucket in (7, 8):
        naming.take(replace(VERDICT, differences=[replace(BUCKET, bucket=bucket)]))
    eventually(lambda: len(told) == 2)
    naming.stop()
