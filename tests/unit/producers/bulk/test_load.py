"""The load generator: what it counts, and what its command prints; over a cluster in memory."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from producers.bulk import load as module
from producers.bulk.load import MAX_FAILURES, LoadResult, LoadSpec, main, run_load
from producers.errors import ClientClosed
from producers.requests.core.calls import Policy
from schemas.access.credentials import FILE_MARK, SECRET_BYTES
from schemas.records.messages import CreateKey
from schemas.result_codes import INTERNAL_ERROR
from tests.support.sdk.memory import MemoryCluster, client_to

FIELDS = set(LoadResult.__dataclass_fields__)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def made(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What clients are made with by the command; they are clients of the cluster in memory."""
    found: list[tuple[Any, Any]] = []

    def client(*arguments: Any, **words: Any) -> Any:
        found.append((arguments, words))
        return client_to(cluster)[0]

    monkeypatch.setattr(module, "Client", client)
    return found


COMMAND = ["--pairs", "6", "--warm-up-seconds", "0", "--volume", "vol", "--bucket", "buck", "--size", "7"]


def test_the_command_makes_the_place_and_prints_a_line_for_each_number_in_flight(
    cluster: MemoryCluster, made: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "--in-flight", "1,3", "--caller", "me", "--bootstrap-servers", "b:1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split() for line in lines] == [["1", "in", "flight"], ["3", "in", "flight"]]
    assert all(line.endswith("failures: none") for line in lines)
    options = {"nodes": [], "caller": "me", "max_in_flight": Policy().max_in_flight, "credentials": None, "kafka": {}}
    assert made == [(("b:1",), options)]
    assert len(cluster.keys) == 12
    assert {(volume, bucket) for volume, bucket, _ in cluster.keys} == {("vol", "buck")}
    assert {row.size for row in cluster.keys.values()} == {7}


def test_the_command_prints_json_and_says_by_its_status_that_requests_failed(
    made: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "--in-flight", "2", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert set(found) == FIELDS
    assert (found["in_flight"], found["requests"], found["failures"]) == (2, 12, {})
    failures = {2: {"X": 2}}
    monkeypatch.setattr(module, "run_load", lambda _, spec: result(spec.in_flight, failures.get(spec.in_flight, {})))
    assert main([*COMMAND, "--in-flight", "2,3"]) == 1, "also when a later one has no failure"
    assert "failures: 2 X" in capsys.readouterr().out
    assert main([*COMMAND, "--in-flight", str(Policy().max_in_flight + 5)]) == 0
    assert made[-1][1]["max_in_flight"] == Policy().max_in_flight + 5


def test_the_command_spreads_its_workers_over_all_volumes(cluster: MemoryCluster, made: list[Any]) -> None:
    assert main([*COMMAND, "--in-flight", "1,3", "--volume", "vol1", "vol2", "vol3"]) == 0
    assert len(made) == 1
    assert len(cluster.keys) == 12
    assert {(volume, bucket) for volume, bucket, _ in cluster.keys} == {
        ("vol1", "buck"), ("vol2", "buck"), ("vol3", "buck")
    }  # fmt: skip


@pytest.mark.parametrize("in_flight", [1, 4])
def test_each_volume_gets_its_part_of_the_load(cluster: MemoryCluster, in_flight: int) -> None:
    client, _ = client_to(cluster)
    for volume in ("v", "w"):
        client.create_volume(volume)
        client.create_bucket(volume, "b")
    spec = LoadSpec(volume="v", more_volumes=("w",), bucket="b", in_flight=in_flight, pairs=40, warm_up_seconds=0)
    assert spec.volumes == ("v", "w")
    found = run_load(client, spec)
    assert (found.requests, found.failures) == (80, {})
    made = Counter(volume for volume, _, _ in cluster.keys)
    assert made.total() == 40
    assert min(made["v"], made["w"]) >= (20 if in_flight == 1 else 1)
    client.close(0)


def result(in_flight: int, failures: dict[str, int]) -> LoadResult:
    return LoadResult(
        in_flight=in_flight, requests=1, failures=failures, seconds=1.0, requests_per_second=1.0, p50_ms=1.0,
        p99_ms=1.0, max_ms=1.0, client_cpu_us=1.0,
    )  # fmt: skip


def test_failures_are_named_in_order_of_their_status() -> None:
    line = module._line(result(5, {"Z": 1, "A": 3}))
    assert line.startswith("     5 in flight: ")
    assert line.endswith("failures: 3 A, 1 Z")


def test_what_is_not_said_has_a_default() -> None:
    options = module._parser().parse_args([])
    assert (options.in_flight, options.seconds, options.warm_up_seconds) == ([1, 50, 500, 4000], 10.0, 1.0)
    assert (options.pairs, options.size, options.json, options.caller) == (0, 4096, False, None)
    assert (options.volume, options.bucket) == (["load"], "load")


@pytest.mark.parametrize("in_flight", [1, 4])
def test_too_few_blocks_are_a_failure_and_the_next_key_is_begun(cluster: MemoryCluster, in_flight: int) -> None:
    client, _ = client_to(cluster)
    real = cluster.apply

    def apply(body: Any) -> Any:
        answer = real(body)
        if isinstance(body, CreateKey) and body.key.endswith("000000002"):
            answer.blocks.clear()
        return answer

    client.create_volume("v")
    client.create_bucket("v", "b")
    cluster.apply = apply  # type: ignore[method-assign]
    found = run_load(client, LoadSpec(volume="v", bucket="b", in_flight=in_flight, pairs=5, warm_up_seconds=0))
    assert found.failures == {INTERNAL_ERROR: 1}
    assert found.requests == 9
    assert len(cluster.keys) == 4
    client.close(0)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_run_that_only_fails_ends_early(cluster: MemoryCluster, in_flight: int) -> None:
    client, _ = client_to(cluster)
    found = run_load(client, LoadSpec(volume="no", bucket="no", in_flight=in_flight, seconds=60))
    assert MAX_FAILURES <= sum(found.failures.values()) < MAX_FAILURES + in_flight
    assert (found.requests, found.requests_per_second, found.seconds) == (0, 0.0, 0.0)
    client.close(0)


def test_nothing_is_counted_before_the_warm_up_is_over(monkeypatch: pytest.MonkeyPatch, cluster: MemoryCluster) -> None:
    """A look at the clock takes a second, so that a key takes five: one before it, and two for each of its requests."""
    now_s, cpu_s = iter(range(1000)), iter((3.0, 5.0))
    clock = SimpleNamespace(
        monotonic=lambda: float(next(now_s)), time_ns=lambda: 1, process_time=lambda: next(cpu_s)
    )  # fmt: skip
    client, _ = client_to(cluster)
    client.create_volume("v")
    client.create_bucket("v", "b")
    monkeypatch.setattr(module, "time", clock)
    found = run_load(client, LoadSpec(volume="v", bucket="b", in_flight=1, seconds=20, warm_up_seconds=10))
    # It begins at 0. Requests end at 3, 5, 8, 10, 13 … 28, 30, and nothing is begun after that.
    assert len(cluster.keys) == 6
    assert found.requests == 9
    assert (found.p50_ms, found.max_ms, found.seconds) == (1000.0, 1000.0, 20.0)
    assert found.requests_per_second == round(9 / 20, 1)
    assert found.client_cpu_us == round(2.0 / 9 * 1e6, 1)
    client.close(0)


@pytest.mark.parametrize(
    "wrong",
    [{"in_flight": 0}, {"seconds": 0}, {"seconds": -1.0}, {"warm_up_seconds": -0.1}, {"pairs": -1}, {"size": -1}],
    ids=str,
)
def test_a_load_that_makes_no_sense_is_refused_and_the_field_named(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"volume": "v", "bucket": "b", "in_flight": 1}
    assert LoadSpec(**good, seconds=0.1, warm_up_seconds=0, pairs=0, size=0).in_flight == 1
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LoadSpec(**{**good, **wrong})


class Closing:
    """A client that somebody closes after a few requests."""

    def __init__(self, client: Any, requests: int) -> None:
        self._client = client
        self._left = requests
        self.client_id = client.client_id

    def _take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ClientClosed("CLIENT_CLOSED", "the client is closed")

    def submit(self, body: Any) -> Any:
        self._take()
        return self._client.submit(body)

    def submit_with(self, body: Any, done: Any) -> None:
        self._take()
        self._client.submit_with(body, done)


@pytest.mark.parametrize(("in_flight", "failures"), [(1, MAX_FAILURES), (3, 3)])
def test_a_client_that_is_closed_ends_each_worker_and_is_named(
    cluster: MemoryCluster, in_flight: int, failures: int
) -> None:  # fmt: skip
    client, _ = client_to(cluster)
    client.create_volume("v")
    client.create_bucket("v", "b")
    closing: Any = Closing(client, 20)
    found = run_load(closing, LoadSpec(volume="v", bucket="b", in_flight=in_flight, pairs=5_000, warm_up_seconds=0))
    assert found.failures == {"CLIENT_CLOSED": failures}
    assert found.requests == 20
    client.close(0)


def test_settings_of_kafka_are_read_and_wrong_ones_refused(
    made: list[tuple[Any, Any]], capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    command = [*COMMAND, "--in-flight", "1", "--kafka"]
    assert main([*command, "security.protocol=PLAINTEXT", "--kafka", "client.rack=a=b"]) == 0
    ((_, options),) = made
    assert options["kafka"] == {"security.protocol": "PLAINTEXT", "client.rack": "a=b"}
    for wrong, said in (("security.protocol", "must be NAME=VALUE"), ("no.such.setting=1", "no.such.setting")):
        with pytest.raises(SystemExit):
            main([*command, wrong])
        assert said in capsys.readouterr().err


def test_nodes_alone_are_asked_if_they_are_given(made: list[tuple[Any, Any]], tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(f"{FILE_MARK} ann:1 {bytes(SECRET_BYTES).hex()}\n")
    assert main([*COMMAND, "--in-flight", "1", "--nodes", "a:1", "b:2", "--credentials", str(file)]) == 0
    ((arguments, options),) = made
    assert arguments == ("",)
    assert options["nodes"] == ["a:1", "b:2"]
    assert "kafka" not in options
    assert options["credentials"].token == "ann:1"
