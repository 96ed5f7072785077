"""The drills on a stack as ``stratolog up`` starts it: each passes, says what it touched, and leaves the stack whole.

What is quick runs in `make test`; what kills processes or needs three brokers or Spark is slow. Processes that a drill starts again
are tethered to the test run like all others.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from producers.requests.keys import ensure_places
from schemas.codecs.codec import decode_as
from schemas.column_families import KEY_TABLE
from schemas.records.messages import CancelPrepare, Prepare, SetDatanodeState
from schemas.records.rows import KeyInfo
from schemas.settings.values import NodeAddress
from stratolog.cli import build_app
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.drills import (
    corrupt_replica,
    kill_follower,
    kill_leader,
    lost_broker,
    poison_request,
    replay,
    zombie_leader,
)
from stratolog.drills.core.report import COULD_NOT_RUN, FAILED, PASSED, DrillReport, StepFailed
from stratolog.drills.kit.catalogue import ProcessFault
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.load import BUCKET, client_of, put_key, volume_name
from stratolog.drills.kit.log_reading import survey
from stratolog.drills.kit.session import Session, run
from stratolog.drills.replay import Range
from stratolog.errors import EXIT_OK, EXIT_UNAVAILABLE, UsageError
from stratolog.local import stack
from stratolog.local.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(400)]
SHARDS = 2
SHARD = 0
TIDY_EVERY_S = 0.05
"""Often enough that some of it falls into every attempt of a drill, which takes a second."""


def settings_in(folder: Path, **changed: Any) -> Settings:
    kafka, *nodes = free_ports(4)
    given: dict[str, Any] = {
        "bootstrap_servers": f"127.0.0.1:{kafka}", "data_dir": folder, "cache_dir": load_settings(environment={}).cache_dir, "audit": False, "ui": False, "shards": SHARDS,
        "session_timeout_ms": 3_000, "barrier_interval_ms": 200,
        "nodes": tuple(NodeAddress(name=f"om{n}", host="127.0.0.1", port=p) for n, p in enumerate(nodes, start=1)),
    }  # fmt: skip
    return Settings(**given | changed)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = stack.up(settings_in(tmp_path_factory.mktemp("drills")), detached=False)
    try:
        yield Cluster(settings=settings, detached=False)
    finally:
        stack.down(settings, remove_data=True)


def drilled(
    cluster: Cluster, name: str, drill: Callable[[Session, Cluster, int], None], shard: int = SHARD
) -> DrillReport:
    """Run a drill that is to pass, and check that it leaves the stack whole."""
    report = run(name, shard, lambda session: drill(session, cluster, shard), data_dir=cluster.settings.data_dir)
    assert report.verdict == PASSED, json.dumps(report.as_json(), indent=2)
    assert report.steps
    cluster.check_whole()
    return report


def command(cluster: Cluster, *arguments: str) -> Any:
    environment = {"STRATOLOG_DATA_DIR": str(cluster.settings.data_dir), "COLUMNS": "200"}
    return CliRunner(env=environment).invoke(build_app(), ["drill", *arguments])


# -- quick -------------------------------------------------------------------------------------------------------------


def test_list(cluster: Cluster) -> None:
    lines = [json.loads(line) for line in command(cluster, "list", "--json").stdout.splitlines()]
    assert {"kill-leader", "zombie-leader", "kill-follower", "poison-request"} <= {line["name"] for line in lines}
    assert "kill-leader" in command(cluster, "list").stdout


def test_poison_requests_by_the_command(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = command(cluster, "poison-request", "--shard", "1", "--json", "--report", str(file))
    assert done.exit_code == EXIT_OK, done.output
    report = json.loads(done.stdout)
    assert report == json.loads(file.read_text())
    assert (report["drill"], report["shard"], report["verdict"]) == ("poison-request", 1, PASSED)
    assert all(finding["holds"] for finding in report["findings"])
    assert len(report["findings"]) == 14
    done = command(cluster, "poison-request")
    assert done.exit_code == EXIT_OK
    assert "passed, after" in done.stdout
    assert "digest of the data" in done.stderr, "steps and findings are told as they go"


def written(cluster: Cluster, name: str, keys: int = 5) -> None:
    """Write a few keys into a volume of shard SHARD."""
    with client_of(cluster.settings) as client:
        ensure_places(client, [(name, BUCKET)])
        for number in range(keys):
            put_key(client, name, BUCKET, f"key-{number}", number)
    for node in cluster.names:
        cluster.wait_caught_up(node, SHARD)


def replaying(wanted: Range) -> Callable[[Session, Cluster, int], None]:
    return lambda session, cluster, shard: replay.run(session, cluster, shard, wanted)


@pytest.mark.slow
def test_replays_and_states_of_the_past(cluster: Cluster, tmp_path: Path) -> None:
    volume = volume_name("past", SHARD, SHARDS)
    written(cluster, volume)
    index = cluster.view(cluster.wait_leader(SHARD), SHARD)["applied_index"]
    # What a repair asks of a healthy node.
    row: dict[str, Any] = {"cf": KEY_TABLE, "key": f"/{volume}/{BUCKET}/key-3".encode().hex()}
    values = {cluster.get(name, f"/v1/shards/{SHARD}/row", **row)["value"] for name in cluster.names}
    assert [decode_as(KeyInfo, bytes.fromhex(value)).size for value in values] == [3]
    assert cluster.get(cluster.names[0], f"/v1/shards/{SHARD}/row", **row | {"key": "00"})["value"] is None
    with pytest.raises(StepFailed, match="400"):
        cluster.get(cluster.names[0], f"/v1/shards/{SHARD}/row", **row | {"key": "xyz"})
    # From the first record, to the last barrier; from the middle without a checkpoint.
    report = drilled(cluster, "replay", replaying(Range()))
    assert report.figures["records_applied"] > 0
    refused = command(cluster, "replay", "--from", "5")
    assert refused.exit_code == EXIT_UNAVAILABLE
    assert "a bare replay from offset 5 is refused" in refused.stdout
    assert "stratolog admin prepare" in refused.stdout
    # With a checkpoint, from behind it.
    with client_of(cluster.settings, operator=True) as client:
        client.call(Prepare(shard=SHARD, checkpoint="drill-base"))
        client.call(CancelPrepare(shard=SHARD))
    written(cluster, volume_name("later", SHARD, SHARDS))
    checkpoint = survey(cluster.settings, SHARD).checkpoints["drill-base"]
    part = drilled(cluster, "replay", replaying(Range(start=checkpoint + 2)))
    assert "drill-base" in "".join(step.found for step in part.steps)
    # How many records the requests of each half make differs from run to run: compare with a replay of both.
    whole = drilled(cluster, "replay", replaying(Range()))
    assert part.figures["records_applied"] < whole.figures["records_applied"]
    one = drilled(cluster, "replay", replaying(Range(stop=checkpoint - 1)))
    assert "rebuilt" in one.findings[0].question
    # As of the index before the last key was written, and as of now.
    past, now = tmp_path / "past", tmp_path / "now"
    done = command(
        cluster, "point-in-time", "--shard", str(SHARD), "--index", str(index - 1), "--into", str(past), "--json"
    )
    assert done.exit_code == EXIT_OK, done.output
    moment = datetime.now(UTC).isoformat()
    assert command(cluster, "point-in-time", "--time", moment, "--into", str(now)).exit_code == EXIT_OK
    assert keys_at(past, volume) == [f"key-{number}" for number in range(4)]
    assert keys_at(now, volume) == [f"key-{number}" for number in range(5)]
    for arguments in (("--index", "1"), ("--index", "1", "--time", moment), ("--time", "yesterday")):
        assert isinstance(command(cluster, "point-in-time", *arguments).exception, UsageError)
    for arguments in (("--time", "2999-01-01T00:00:00Z"), ("--index", "999999", "--shard", "0")):
        assert command(cluster, "point-in-time", *arguments).exit_code == EXIT_UNAVAILABLE


def keys_at(folder: Path, volume: str) -> list[str]:
    arguments = ["sh", "--at", str(folder), "key", "list", f"/{volume}/{BUCKET}", "--json"]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == EXIT_OK, done.output
    return [json.loads(line)["key"] for line in done.stdout.splitlines()]


def test_a_lost_broker_needs_three(cluster: Cluster) -> None:
    done = command(cluster, "lost-broker")
    assert done.exit_code == EXIT_UNAVAILABLE
    assert "the stack has 1 broker" in done.stdout


def test_what_is_refused_before_anything_is_done(cluster: Cluster, tmp_path: Path) -> None:
    assert "no shard 7" in str(command(cluster, "kill-leader", "--shard", "7").exception)
    nowhere = tmp_path / "nowhere" / "report.json"
    assert "the report cannot be written" in str(command(cluster, "kill-leader", "--report", str(nowhere)).exception)


# -- slow --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kill_leader(cluster: Cluster, fault_round: int) -> None:
    report = drilled(cluster, "kill-leader", kill_leader.run)
    assert report.figures["kill_to_first_acknowledged_write_s"] > 0
    assert report.figures["acknowledged_writes"] > 0
    assert len(report.touched) == len(report.restored) == 2


@pytest.mark.slow
def test_kill_follower(cluster: Cluster, fault_round: int) -> None:
    assert drilled(cluster, "kill-follower", kill_follower.run).figures["records_read_after_restart"] > 0


@pytest.mark.slow
def test_zombie_leader(cluster: Cluster, fault_round: int) -> None:
    assert drilled(cluster, "zombie-leader", zombie_leader.run).figures["void_records"] > 0


@pytest.mark.slow
def test_corrupt_replica(cluster: Cluster, fault_round: int) -> None:
    report = drilled(cluster, "corrupt-replica", corrupt_replica.run)
    assert len(report.findings) == 3
    assert any("repaired and verified" in text for text in report.restored)


@pytest.mark.slow
def test_a_replica_that_is_not_repaired_gets_its_copy_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: Any, **__: Any) -> None:
        raise StepFailed("the peer does not answer")

    monkeypatch.setattr(corrupt_replica, "_repair", give_up)
    report = run(
        "corrupt-replica", SHARD, lambda s: corrupt_replica.run(s, cluster, SHARD), data_dir=cluster.settings.data_dir
    )
    assert (report.verdict, report.reason) == (FAILED, "the peer does not answer")
    assert any("put back from the copy" in text for text in report.restored)
    cluster.check_whole()
    for name in cluster.names:
        answer = cluster.get(name, f"/v1/shards/{SHARD}/digest", scrub="true")
        assert answer["digest"] == answer["incremental"]["digest"], name


def test_poison_requests_while_the_nodes_tidy_up(cluster: Cluster) -> None:
    """Right after another drill, on a stack of its own, it "could not run": the nodes' own purges counted as others that write."""
    told: list[str] = []
    session = Session(lambda line: told.append(getattr(line, "found", "")))
    stop = threading.Event()

    def tidy() -> None:
        with client_of(cluster.settings, operator=True) as client:
            # One of them is always leaving, and its row says since when: no digest comes twice.
            for comes, goes in itertools.cycle((("nobody", "nowhere"), ("nowhere", "nobody"))):
                client.call(SetDatanodeState(datanode=comes, state="DECOMMISSIONING"))
                client.call(SetDatanodeState(datanode=goes, state="IN_SERVICE"))
                if stop.is_set():
                    client.call(SetDatanodeState(datanode=comes, state="IN_SERVICE"))
                    return
                if any("the nodes themselves changed rows" in found for found in told):
                    stop.set()
                # Without a pause the log grows as fast as the drill reads it, for minutes on a busy machine.
                stop.wait(TIDY_EVERY_S)

    thread = threading.Thread(target=tidy)

    def drill(session: Session) -> None:
        thread.start()
        poison_request.run(session, cluster, 0)

    report = run("poison-request", 0, drill, data_dir=cluster.settings.data_dir, session=session)
    stop.set()
    thread.join()
    assert report.verdict == PASSED, json.dumps(report.as_json(), indent=2)
    assert any(
        "the nodes themselves changed rows meanwhile (SetDatanodeState): once more" in found for found in told
    ), told


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lost_broker(tmp_path: Path) -> None:
    settings = stack.up(settings_in(tmp_path / "three", brokers=3), detached=False)
    try:
        report = drilled(Cluster(settings=settings, detached=False), "lost-broker", lost_broker.run)
        assert report.figures["back_in_sync_s"] > 0
    finally:
        stack.down(settings, remove_data=True)


@pytest.mark.slow
def test_a_drill_does_not_begin_on_half_a_stack(cluster: Cluster) -> None:
    with_undo = Session()
    try:
        cluster.take(with_undo, cluster.names[0], ProcessFault.KILL)
        report = run("x", 0, lambda s: poison_request.run(s, cluster, 0), data_dir=cluster.settings.data_dir)
        assert report.verdict == COULD_NOT_RUN
        assert f"not running: {cluster.names[0]}" in report.reason
        assert command(cluster, "poison-request").exit_code == EXIT_UNAVAILABLE
    finally:
        with_undo.close()
    cluster.check_whole()
