"""The audit's metrics: what Spark and the sink tell becomes figures; the server bears peers that say nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from schemas.records.messages import Verdict
from schemas.security.certificates import PeerIdentity, Role
from schemas.security.tls import ProcessTls, TlsFiles
from spark_streaming.jobs import metrics_server
from spark_streaming.jobs.audit_metrics import FAMILIES, AuditMetrics, places
from spark_streaming.jobs.metrics_server import MetricsServer
from stratolog.security.authority import Authority, open_authority
from transport.topics.core.latest_verdicts import MAX_SUBJECTS
from transport.web import bounded_server

PROGRESS: dict[str, Any] = {
    "id": "id-1", "runId": "run-1", "name": "audit", "batchId": 7, "numInputRows": 30,
    "durationMs": {"triggerExecution": 1500}, "processedRowsPerSecond": 20.0,
    "stateOperators": [{"memoryUsedBytes": 100}, {"memoryUsedBytes": 11}],
    "sources": [
        {"endOffset": {"om.log": {"0": 5, "1": 9}}, "latestOffset": {"om.log": {"0": 8, "1": 9}}},
        {"endOffset": '{"om.audit": {"0": 3}}', "latestOffset": None},
        {"endOffset": None, "latestOffset": "no JSON"},
    ],
}  # fmt: skip
EQUAL = Verdict(
    cluster="c", shard=0, node="om1", barrier_offset=10, index=4, verdict="equal", basis="incremental", differences=[],
    differing_slots=0, evidence=None, reason="", decided_at_ms=1_500, log="om.log", containers=[],
)  # fmt: skip

Samples = dict[str, dict[tuple[str, ...], float]]


def samples_of(text: str) -> Samples:
    """Return the figures of each metric by the values of its labels, in the order of the table."""
    names = {name: labels for name, _, _, labels in FAMILIES}
    found: Samples = {}
    for one in text_string_to_metric_families(text):
        for sample in one.samples:
            order = names.get(sample.name, tuple(sample.labels))
            found.setdefault(sample.name, {})[tuple(sample.labels[label] for label in order)] = sample.value
    return found


def read(metrics: AuditMetrics) -> Samples:
    return samples_of(metrics.shown().text())


def test_a_progress_becomes_figures() -> None:
    metrics = AuditMetrics()
    before_s = time.time()
    for _ in range(2):
        metrics.on_progress("audit", PROGRESS)
    found = read(metrics)
    of_audit = {name: found[f"stratolog_audit_{name}"]["audit",] for name in (
        "batch_id", "batches_total", "rows_total", "batch_seconds", "rows_per_second", "state_bytes",
    )}  # fmt: skip
    assert of_audit == {
        "batch_id": 7, "batches_total": 2, "rows_total": 60, "batch_seconds": 1.5, "rows_per_second": 20,
        "state_bytes": 111,
    }  # fmt: skip
    assert before_s <= found["stratolog_audit_progress_timestamp_seconds"]["audit",] <= time.time()
    assert found["stratolog_audit_offset"] == {
        ("audit", "om.log", "0"): 5, ("audit", "om.log", "1"): 9, ("audit", "om.audit", "0"): 3,
    }  # fmt: skip
    assert found["stratolog_audit_lag_records"]["audit", "om.log", "0"] == 3


def test_a_progress_that_lacks_everything_is_none_the_less_one() -> None:
    """Spark leaves out what it does not know, and writes "NaN" where it divides by nothing."""
    metrics = AuditMetrics()
    for odd in (
        {"numInputRows": 1},
        {
            "numInputRows": 2,
            "processedRowsPerSecond": "NaN",
            "durationMs": None,
            "sources": None,
            "stateOperators": None,
        },
    ):
        metrics.on_progress("audit", odd)
    found = read(metrics)
    assert found["stratolog_audit_rows_per_second"]["audit",] == 0
    assert found["stratolog_audit_batches_total"]["audit",] == 2
    assert list(places({"sources": [{"endOffset": "[1]"}, {}]})) == []


def test_verdicts_become_figures() -> None:
    metrics = AuditMetrics()
    wrong = replace(EQUAL, node="om2", verdict="diverged", index=3, decided_at_ms=2_000)
    metrics.on_verdicts([EQUAL, wrong, EQUAL])
    found = read(metrics)
    assert found["stratolog_audit_verdicts_total"] == {
        ("om.log", "equal", "incremental"): 2, ("om.log", "diverged", "incremental"): 1,
    }  # fmt: skip
    assert set(found["stratolog_audit_replica_verdict"]) == {
        ("om.log", "0", "om1", "incremental", "equal"), ("om.log", "0", "om2", "incremental", "diverged"),
    }  # fmt: skip
    assert found["stratolog_audit_replica_index"]["om.log", "0", "om2", "incremental"] == 3
    assert found["stratolog_audit_verdict_timestamp_seconds"] == {("om.log", "0"): 2.0}
    metrics.on_verdicts([replace(wrong, verdict="equal", barrier_offset=20), replace(wrong, barrier_offset=15)])
    words = {labels[2:] for labels in read(metrics)["stratolog_audit_replica_verdict"]}
    assert words == {("om1", "incremental", "equal"), ("om2", "incremental", "equal")}, "an older barrier came late"


def test_replicas_are_bounded() -> None:
    metrics = AuditMetrics()
    metrics.on_verdicts(replace(EQUAL, node=f"om{number}") for number in range(MAX_SUBJECTS + 3))
    found = {labels[2] for labels in read(metrics)["stratolog_audit_replica_index"]}
    assert (len(found), "om2" in found, "om3" in found) == (MAX_SUBJECTS, False, True)


def test_every_metric_has_the_labels_of_the_table() -> None:
    metrics = AuditMetrics()
    metrics.on_active("audit", active=True)
    metrics.on_progress("audit", PROGRESS)
    metrics.on_verdicts([EQUAL])
    found = {
        sample.name: set(sample.labels)
        for one in text_string_to_metric_families(metrics.shown().text())
        for sample in one.samples
        if sample.name.startswith("stratolog_")
    }
    assert found == {name: set(labels) for name, _, _, labels in FAMILIES}


# -- the server --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(bounded_server, "FIRST_REQUEST_S", 0.5)
    monkeypatch.setattr(metrics_server, "MAX_PEERS", 2)
    metrics = AuditMetrics()
    metrics.on_active("audit", active=True)
    made = MetricsServer("127.0.0.1", 0, metrics.shown())
    yield made
    made.close()


def ask(server: MetricsServer) -> httpx.Response:
    return httpx.get(f"http://{server.address}/metrics", timeout=10, trust_env=False)


def test_the_server_serves(server: MetricsServer) -> None:
    found = samples_of(ask(server).text)
    assert found["stratolog_audit_query_active"] == {("audit",): 1}
    assert found["process_resident_memory_bytes"][()] > 0


def test_silent_peers_are_closed_and_the_others_are_served(server: MetricsServer) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as first, socket.create_connection((host, int(port))) as second:
        first.sendall(b"GET /met")
        time.sleep(0.1)
        with socket.create_connection((host, int(port))) as third:
            third.settimeout(5)
            third.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert third.recv(1000).startswith(b"HTTP/1.1 503 "), "there is room for two"
        for one in (first, second):
            one.settimeout(5)
            assert one.recv(1000).startswith(b"HTTP/1.1 408 ")
    assert ask(server).status_code == 200


def test_a_peer_that_asks_a_byte_at_a_time_is_closed(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "FIRST_REQUEST_S", 0.3)
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as slow:
        with pytest.raises(OSError):  # noqa: PT012 - it ends at one of these bytes
            for _ in range(100):
                slow.sendall(b"x")
                time.sleep(0.05)
    assert ask(server).status_code == 200


def test_bytes_that_are_no_request_end_nothing(server: MetricsServer, capfd: pytest.CaptureFixture[str]) -> None:
    host, _, port = server.address.rpartition(":")
    for odd in (
        b"\0" * 100_000,
        b"GET " + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"",
    ):
        with socket.create_connection((host, int(port))) as peer:
            try:
                peer.sendall(odd)
            except OSError:
                pass  # it has been refused already
    assert ask(server).status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_pages_of_other_origins_and_calls_that_change_something_are_refused(server: MetricsServer) -> None:
    url = f"http://{server.address}/metrics"
    assert httpx.get(url, headers={"Host": "any.name:1"}, trust_env=False).status_code == 200
    assert httpx.get(url, headers={"Origin": "http://evil.example"}, trust_env=False).status_code == 403
    assert httpx.post(url, trust_env=False).status_code == 403


def test_an_address_that_is_taken_is_named(server: MetricsServer) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(OSError, match=f"the server of the audit's metrics cannot listen on 127.0.0.1:{port}: "):
        MetricsServer("127.0.0.1", port, AuditMetrics().shown())


def test_where_tls_is_spoken_who_has_no_certificate_gets_nothing(tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "authority", cluster="c", now_s=int(time.time()))
    foreign = open_authority(tmp_path / "foreign", cluster="c", now_s=int(time.time()))

    def files(made: Authority, name: str, role: Role) -> TlsFiles:
        issued = made.certify(PeerIdentity(name=name, role=role), now_s=int(time.time()))
        return TlsFiles(ca=authority.ca_file, certificate=issued.path)

    metrics = AuditMetrics()
    metrics.on_active("audit", active=True)
    server = MetricsServer("127.0.0.1", 0, metrics.shown(), ProcessTls(files(authority, "audit", Role.AUDIT)))
    url = f"https://{server.address}/metrics"
    try:
        prometheus = ProcessTls(files(authority, "prometheus", Role.CLIENT)).client()
        assert "stratolog_audit_query_active" in httpx.get(url, trust_env=False, verify=prometheus).text
        nobody = ProcessTls(TlsFiles(ca=authority.ca_file)).client()
        refused = httpx.get(url, trust_env=False, verify=nobody)
        assert (refused.status_code, "stratolog_audit" in refused.text) == (403, False)
        with pytest.raises(httpx.HTTPError):
            httpx.get(url, trust_env=False, verify=ProcessTls(files(foreign, "prometheus", Role.CLIENT)).client())
        with pytest.raises(httpx.HTTPError):
            ask(server)
    finally:
        server.close()


def test_after_close_the_port_is_free() -> None:
    first = MetricsServer("127.0.0.1", 0, AuditMetrics().shown())
    port = int(first.address.rpartition(":")[2])
    first.close()
    MetricsServer("127.0.0.1", port, AuditMetrics().shown()).close()
