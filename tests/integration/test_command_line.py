"""The commands on a real stack: ``sh``, ``ingest``, ``bench``, ``debug``, the demo's questions, and the demo itself.

Most commands run in this process, through the same entry as the program, which saves a second each; errors and signals are
tried on the program itself.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from typer.testing import CliRunner

from om_processors.namespace.names import MAX_KEY_NAME_BYTES
from producers import Client
from producers.bulk.tree_layout import TreeLayout
from producers.requests.keys import fit_blocks, session_of
from schemas.records.messages import CommitKey, CreateKey
from schemas.sharding import shard_of
from stratolog.cli import build_app, exit_code_of
from stratolog.cluster import checks
from stratolog.cluster.connection import client_of
from stratolog.cluster.verdicts import VerdictReader
from stratolog.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNAVAILABLE
from stratolog.local.ports import free_ports
from stratolog.local.processes import Process, wait_until
from stratolog.nodes.answers import node_status
from tests.support.command import warm
from tests.support.faults.stack_faults import fresh_volume
from tests.support.local.stack import TestStack

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
MANY_KEYS = 1_100
"""More than a page of a listing."""

FILES = {"a.txt": b"a", "lib/b.py": b"bb" * 1000, "lib/deep/er/c d.bin": bytes(3000), "Ünder/score_1": b""}
SMALL = [name for name, content in FILES.items() if content]
"""Files whose bytes are inline; one without bytes has nothing to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """The command on a running stack."""

    def __init__(self, stack: TestStack) -> None:
        self.stack = stack
        self.environment = {"STRATOLOG_CONFIG": str(stack.settings_file), "COLUMNS": "200"}

    def __call__(self, *arguments: str) -> Done:
        """Run a command in this process."""
        result = CliRunner(env=self.environment).invoke(build_app(), arguments)
        code = result.exit_code
        if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
            found = exit_code_of(result.exception)
            if found is None:
                raise result.exception
            return Done(code=found, out=result.stdout, err=f"{result.stderr}{result.exception}")
        return Done(code=code, out=result.stdout, err=result.stderr)

    def ok(self, *arguments: str) -> Done:
        """Run a command that is to succeed."""
        done = self(*arguments)
        assert done.code == EXIT_OK, (arguments, done)
        return done

    def program(self, *arguments: str) -> Done:
        """Run a command as a process of its own."""
        environment = {**clean_environment(), **self.environment}
        done = warm.run(*arguments, env=environment, cwd=self.stack.folder)
        return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def clean_environment() -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("STRATOLOG_")}
    return {**variables, "PYTHONPATH": str(ROOT)}


STACK = {"nodes": 3, "shards": 2, "barrier_interval_ms": 200}


@pytest.fixture(scope="module")
def command(stack: TestStack) -> Command:
    return Command(stack)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "link").symlink_to("a.txt")
    return root


# -- sh ----------------------------------------------------------------------------------------------------------------


def test_volumes_and_buckets(command: Command) -> None:
    done = command.ok(
        "sh", "volume", "create", "/vol-a", "--quota", "10GB", "--namespace-quota", "2", "-u", "alice", "--json"
    )
    index = done.json["positions"][str(shard_of("vol-a", 2))]
    info = command.ok("sh", "volume", "info", "/vol-a", "--json").json
    assert (info["owner"], info["quota_in_bytes"], info["quota_in_namespace"]) == ("alice", 10 * 1024**3, 2)
    assert info["positions"][str(shard_of("vol-a", 2))] >= index

    assert "BucketInfo" not in command.ok("sh", "bucket", "create", "/vol-a/one", "--space-quota", "1GB").out
    done = command("sh", "bucket", "create", "/vol-a/two", "--space-quota", "20GB")
    assert (done.code, "QUOTA_EXCEEDED" in done.err) == (EXIT_FAILED, True)
    command.ok("sh", "bucket", "set-quota", "/vol-a/one", "--quota", "2GB", "--namespace-quota", "7")
    command.ok("sh", "bucket", "clear-quota", "/vol-a/one", "--namespace-quota")
    command.ok("sh", "bucket", "update", "/vol-a/one", "--user", "bob")
    info = command.ok("sh", "bucket", "info", "/vol-a/one", "--json").json
    assert (info["owner"], info["quota_in_bytes"], info["quota_in_namespace"]) == ("bob", 2 * 1024**3, -1)
    for words in ("one", "bob", "2 GB"):
        assert words in command.ok("sh", "bucket", "list", "/vol-a").out

    command.ok("sh", "volume", "clear-quota", "/vol-a", "--space-quota", "--namespace-quota")
    command.ok("sh", "volume", "update", "/vol-a", "--owner", "carol")
    info = command.ok("sh", "volume", "info", "/vol-a", "--json").json
    assert (info["owner"], info["quota_in_bytes"], info["usage"]["used_namespace"]) == ("carol", -1, 1)

    assert "VOLUME_NOT_EMPTY" in command("sh", "volume", "delete", "/vol-a").err
    command.ok("sh", "bucket", "delete", "/vol-a/one")
    command.ok("sh", "volume", "delete", "/vol-a")
    done = command("sh", "volume", "info", "/vol-a")
    assert (done.code, "VOLUME_NOT_FOUND" in done.err) == (EXIT_FAILED, True)


def test_quota_repair(command: Command) -> None:
    """Counters are made wrong by a false count, as no user's count is; then they are counted and put right."""
    command.ok("sh", "volume", "create", "/vol-q")
    for bucket in ("one", "two"):
        command.ok("sh", "bucket", "create", f"/vol-q/{bucket}", "--quota", "1GB")
        command.ok("sh", "key", "create", f"/vol-q/{bucket}/a", "--size", "1KB")
    with command.stack.client() as client:
        for bucket, keys in (("one", 7), ("", 20)):
            count = client.usage("vol-q", bucket)
            assert count.is_right
            client.repair_quota("vol-q", bucket, replace(count, counted_names=keys))
    for _ in range(2):
        looked = command.ok("quota", "repair", "/vol-q/one", "--dry-run")
        assert looked.out.splitlines() == ["wrong /vol-q/one: 1024 bytes, 7 -> 1 keys"]
    assert command.ok("quota", "repair", "/vol-q").out.splitlines() == [
        "repaired /vol-q: 2147483648 bytes of its buckets' quotas, 20 -> 2 buckets",
        "repaired /vol-q/one: 1024 bytes, 7 -> 1 keys",
        "right /vol-q/two: 1024 bytes, 1 keys",
    ]
    done = command.ok("quota", "repair", "/vol-q/one", "--json").json
    assert (done["address"], done["right"], done["repaired"], done["kept_names"]) == ("/vol-q/one", True, False, 1)
    done = command("quota", "repair", "/vol-q/none")
    assert (done.code, "BUCKET_NOT_FOUND" in done.err) == (EXIT_FAILED, True)


def test_keys(command: Command) -> None:
    command.ok("sh", "volume", "create", "/vol-k")
    command.ok("sh", "bucket", "create", "/vol-k/bucket")
    place = "/vol-k/bucket"
    written = command.ok(
        "sh", "key", "create", f"{place}/dir/ä 1", "--size", "300MB", "--metadata", "x=1=2", "--json"
    ).json
    session = ",".join(f"{shard}:{index}" for shard, index in written["positions"].items())
    for node in command.stack.names:
        read = ("sh", "key", "info", f"{place}/dir/ä 1", "--node", node, "--json")
        info = command.ok(*read, "--consistency", "session", "--session", session).json
        assert (info["key"], info["size"], info["metadata"]) == ("dir/ä 1", 300 * 1024**2, {"x": "1=2"})
        assert sum(block["length"] for block in info["blocks"]) == info["size"]
    assert "300 MB (314572800)" in command.ok("sh", "key", "info", f"{place}/dir/ä 1").out

    command.ok("sh", "key", "rename", place, "dir/ä 1", "b")
    command.ok("sh", "key", "create", f"{place}/c")
    assert [row["key"] for row in command.ok("sh", "key", "list", place, "--json").lines] == ["b", "c"]
    assert [row["key"] for row in command.ok("sh", "key", "list", place, "--start", "b", "--json").lines] == ["c"]
    assert command.ok("sh", "key", "list", place, "--prefix", "d").out.startswith(f"Keys of {place}: none")
    first = command.ok("sh", "key", "list", place, "--length", "1")
    assert ("there are more" in first.err, " c " in first.out) == (True, False)

    command.ok("sh", "key", "delete", f"{place}/b")
    done = command.program("sh", "key", "delete", f"{place}/b", "--json")
    assert (done.code, done.out) == (EXIT_FAILED, "")
    assert json.loads(done.err)["code"] == "KEY_NOT_FOUND"
    done = command.program("sh", "key", "delete", f"{place}/b")
    assert (done.code, "\nerror: KEY_NOT_FOUND" in f"\n{done.err}") == (EXIT_FAILED, True)


@pytest.mark.parametrize("character", ["\U0001f5dd", "%", "\n", "a"], ids=["4 bytes", "percent", "line", "plain"])
def test_the_longest_key_is_read_as_it_was_written(command: Command, character: str) -> None:
    volume = f"vol-{ord(character):x}-long"
    name = character * (MAX_KEY_NAME_BYTES // len(character.encode()))
    with command.stack.client() as client:
        client.create_volume(volume)
        client.create_bucket(volume, "bucket")
        opened = client.create_key(volume, "bucket", name, size=0)
        client.commit_key(volume, "bucket", name, opened.session_id, size=0, blocks=[])
        command.ok("sh", "key", "create", f"/{volume}/bucket/{name[:-1]}z")
        assert client.key_info(volume, "bucket", name).info.key == name
        after = client.list_keys(volume, "bucket", prefix=name[:-1], start_after=name)
        assert [info.key for info in after] == [f"{name[:-1]}z"] * (character < "z")
    assert command.ok("sh", "key", "info", f"/{volume}/bucket/{name}", "--json").json["key"] == name
    listed = command.ok("sh", "key", "list", f"/{volume}/bucket", "--prefix", name, "--json").lines
    assert [row["key"] for row in listed] == [name]
    node = command.stack.address(command.stack.names[0])
    url = f"{node}/v1/volumes/{volume}/buckets/bucket/key"
    found = subprocess.run(
        ["curl", "-sS", "-G", "--noproxy", "*", url, "--data-urlencode", f"name={name}"],
        capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(found.stdout)["key"] == name
    row = f"/{volume}/bucket/{name}".encode().hex()
    shard = shard_of(volume, 2)
    digest = subprocess.run(
        ["curl", "-sS", "--noproxy", "*", f"{node}/v1/shards/{shard}/row?cf=keyTable&key={row}"],
        capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(digest.stdout)["value"]


def test_a_listing_longer_than_a_page(command: Command) -> None:
    command.ok("sh", "volume", "create", "/vol-many")
    command.ok("sh", "bucket", "create", "/vol-many/bucket")
    names = [f"key-{number:05}" for number in range(MANY_KEYS)]
    place: dict[str, Any] = {"volume": "vol-many", "bucket": "bucket"}
    with Client(command.stack.settings.bootstrap_servers) as client:
        opened = [client.submit(CreateKey(**place, key=name, size=1)) for name in names]
        sessions = [session_of(future.result()) for future in opened]
        committed = [
            client.submit(
                CommitKey(**place, key=n, session_id=s.session_id, size=1, blocks=fit_blocks(s.blocks, 1))
            )
            for n, s in zip(names, sessions, strict=True)
        ]  # fmt: skip
        for future in committed:
            future.result()
    listed = command.ok("sh", "key", "list", "/vol-many/bucket", "--all", "--json")
    assert ([row["key"] for row in listed.lines], listed.err) == (names, "")
    assert len(command.ok("sh", "key", "list", "/vol-many/bucket", "--json").lines) == 100
    longer = command.ok("sh", "key", "list", "/vol-many/bucket", "--limit", "1050", "--json")
    assert (len(longer.lines), "there are more" in longer.err) == (1050, True)
    table = command.ok("sh", "key", "list", "/vol-many/bucket", "--all").out
    assert all(name in table for name in names)


# -- ingest, bench, debug, the demo's questions -----------------------------------------------------------------------


def test_ingest_and_what_the_demo_asks(command: Command, tree: Path) -> None:
    settings = command.stack.settings
    done = command.ok("ingest", str(tree), "--json").json
    assert (done["keys"], done["skipped_files"], done["failed_files"], done["complete"]) == (len(FILES), 1, 0, True)
    assert done["bytes"] == sum(map(len, FILES.values()))
    assert done["requests"] == 2 * len(FILES) + len(done["places"]) + len({volume for volume, _ in done["places"]})
    assert (done["files_per_second"] > 0, done["bytes_per_second"]) == (True, 0), "no bytes were written"
    for_people = command.ok("ingest", str(tree), "--max-in-flight", "2")
    assert "link: skipped: a symbolic link" in for_people.out
    assert " files/s, " in for_people.out
    assert "MiB/s" not in for_people.out
    assert f"{len(FILES)} of {len(FILES)} files" in for_people.err

    held = [
        checks.check_spread(settings, report=print), checks.check_converged(settings),
        *checks.check_listings(settings, tree, TreeLayout()), *(checks.check_digests(settings, shard) for shard in range(2)),
    ]  # fmt: skip
    assert [check for check in held if not check.holds] == []

    (tree / "a.txt").write_bytes(b"changed")
    (tree / "lib/b.py").unlink()
    for check in checks.check_listings(settings, tree, TreeLayout()):
        assert not check.holds
        assert check.seen.startswith("2 keys differ: ")
        assert "a.txt is ListedKey(" in check.seen
        assert "lib/b.py is no file of the tree" in check.seen


def test_small_files_are_ingested_by_one_request_each(command: Command, tree: Path) -> None:
    done = command.ok("ingest", str(tree), "--contents", "--bucket", "/vol-small/bucket", "--json").json
    assert (done["keys"], done["requests"], done["complete"]) == (len(FILES), len(FILES) + 2, True)
    assert done["files_per_second"] > 0
    assert done["bytes_per_second"] > 0
    for name, content in FILES.items():
        info = command.ok("sh", "key", "info", f"/vol-small/bucket/{name}", "--json").json
        assert (info["inline"], info["size"], info["blocks"]) == (name in SMALL, len(content), []), info
    again = command.ok("ingest", str(tree), "--contents", "--bucket", "/vol-small/bucket").out
    assert re.search(r"throughput +│? *[0-9,.]+ files/s, [0-9,.]+ MiB/s, [0-9,]+ requests/s", again), again


def records_of_requests(stack: TestStack) -> int:
    """Return how many records the brokers have taken for the leaders."""
    partitions = [TopicPartition("om.requests", shard) for shard in range(STACK["shards"])]
    asked = stack.kafka.admin.list_offsets({one: OffsetSpec.latest() for one in partitions}, request_timeout=20)
    return sum(int(end.result(20).offset) for end in asked.values())


def test_what_a_command_asks_goes_straight_to_the_leaders(command: Command) -> None:
    def goes_by_the_brokers() -> bool:
        before = records_of_requests(command.stack)
        client.set_volume_property("vol-straight", quota_in_namespace=1000)
        return records_of_requests(command.stack) > before

    with client_of(command.stack.settings) as client:
        client.create_volume("vol-straight")
        assert wait_until(lambda: not goes_by_the_brokers(), 20)
        assert not any(goes_by_the_brokers() for _ in range(10))


@pytest.mark.parametrize("nodes", ["none reached", "not named"])
def test_without_a_node_a_command_asks_through_the_brokers(command: Command, nodes: str, tmp_path: Path) -> None:
    own = Command(command.stack)
    settings = command.stack.settings
    if nodes == "not named":
        (tmp_path / "brokers.toml").write_text(f'bootstrap_servers = "{settings.bootstrap_servers}"\n')
        own.environment["STRATOLOG_CONFIG"] = str(tmp_path / "brokers.toml")
    else:
        places = [f"om{n}=127.0.0.1:{port}" for n, port in enumerate(free_ports(3), start=1)]
        own.environment["STRATOLOG_NODES"] = ",".join(places)
    before = records_of_requests(command.stack)
    own.ok("sh", "volume", "create", f"/vol-{nodes.replace(' ', '-')}")
    assert records_of_requests(command.stack) > before


def test_without_an_audit_every_verdict_is_unknown(command: Command) -> None:
    settings = command.stack.settings
    with VerdictReader(settings.bootstrap_servers) as reader:
        found, latest = checks.await_verdicts(settings, reader, timeout_s=1.5)
    assert len(found) == len(settings.nodes) * settings.shards
    assert not any(check.holds for check in found)
    assert all("unknown" in check.seen for check in found)
    assert list(latest) == []


def test_bench(command: Command) -> None:
    done = command.ok("bench", "--in-flight", "1,20", "--seconds", "0.5", "--warm-up-seconds", "0", "--json")
    assert [line["in_flight"] for line in done.lines] == [1, 20]
    assert all(line.keys() >= {"requests_per_second", "p50_ms", "p99_ms"} for line in done.lines)
    assert all(line["requests"] > 0 and not line["failures"] for line in done.lines)


def test_bench_on_all_shards(command: Command) -> None:
    volumes = [fresh_volume(shard, 2) for shard in (0, 1)]
    before = [command.stack.shard("om1", shard)["applied_index"] for shard in (0, 1)]
    options = [word for volume in volumes for word in ("--volume", volume)]
    done = command.ok("bench", *options, "--in-flight", "20", "--seconds", "0.5", "--warm-up-seconds", "0", "--json")
    assert [(line["in_flight"], line["failures"]) for line in done.lines] == [(20, {})]
    command.stack.wait_converged()
    assert all(command.stack.shard("om1", shard)["applied_index"] > before[shard] + 10 for shard in (0, 1))


def test_debug_log_and_digest(command: Command) -> None:
    command.ok("sh", "volume", "create", "/vol-log")
    shard = shard_of("vol-log", 2)
    lines = command.ok("debug", "log", str(shard), "--limit", "100000", "--json").lines
    assert [lines[0]["kind"], lines[1]["kind"]] == ["LeaderClaim", "Genesis"]
    assert [line["offset"] for line in lines] == list(range(len(lines)))
    assert any(line["kind"] == "Batch" and line["results"] for line in lines)
    command.stack.wait_converged()
    found = command.ok("debug", "digest", "--json").lines
    assert len(found) == 6
    assert all(replica["equal"] for replica in found)
    assert len({(replica["shard"], replica["scrubbed"]) for replica in found}) == 2


# -- the demo ----------------------------------------------------------------------------------------------------------


class Demo:
    """The program in a directory of its own, with ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kafka, *nodes = free_ports(4)
        (folder / "stratolog.toml").write_text(
            f'bootstrap_servers = "127.0.0.1:{kafka}"\nsession_timeout_ms = 3000\n[nodes]\n'
            + "".join(f'om{n} = "127.0.0.1:{port}"\n' for n, port in enumerate(nodes, start=1))
        )

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "stratolog", *arguments],
            cwd=self.folder, env={**clean_environment(), **variables},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str, **variables: str) -> Done:
        process = self.start(*arguments, **variables)
        out, err = process.communicate()
        return Done(code=process.returncode, out=out, err=err)

    def on_stack(self, *arguments: str) -> Done:
        """Run another command on the stack that the demo left."""
        return self.run(*arguments, STRATOLOG_DATA_DIR=str(self.folder / ".stratolog" / "demo"))

    def members(self) -> list[Process]:
        """Return the processes that the demo has noted so far."""
        try:
            found = json.loads((self.folder / ".stratolog" / "demo" / "stack.json").read_text())
        except FileNotFoundError:
            return []
        return [Process(**member["process"]) for member in found["members"]]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    folder = tmp_path / "demo"
    folder.mkdir()
    demo = Demo(folder)
    yield demo
    demo.on_stack("down", "--remove-data")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_with_a_small_tree(demo: Demo, tree: Path) -> None:
    done = demo.run("demo", "--tree", str(tree), "--json")
    assert done.code == EXIT_OK, done
    found = done.json
    assert found["ok"]
    assert [check["name"] for check in found["checks"] if not check["holds"]] == []
    assert len(set(found["leaders"].values())) == 2
    done_by_ingest = found["ingest"]
    places = done_by_ingest["places"]
    assert done_by_ingest["keys"] == len(FILES)
    made = len(places) + len({volume for volume, _ in places})
    assert done_by_ingest["requests"] == len(FILES) + made, "one PutKey for each file"
    read_back = [check["found"] for check in found["checks"] if "reads back" in check["name"]]
    assert f"{len(FILES)} keys, {len(SMALL)} of them inline" in read_back[0]
    assert done_by_ingest["files_per_second"] > 0
    assert done_by_ingest["bytes_per_second"] > 0
    replicas = found["replicas"]
    assert len(replicas) == 6
    assert len({(replica["shard"], replica["index"], replica["digest"]) for replica in replicas}) == 2
    said = {(verdict["shard"], verdict["node"], verdict["basis"]): verdict["verdict"] for verdict in found["verdicts"]}
    assert len(said) == 12
    assert set(said.values()) == {"equal"}
    assert not (demo.folder / ".stratolog").exists(), "nothing stays"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_interrupted_demo_stops_what_it_started(demo: Demo, tree: Path) -> None:
    process = demo.start("demo", "--tree", str(tree))
    try:
        assert wait_until(lambda: len(demo.members()) >= 2 or process.poll() is not None, 120)
        members = demo.members()
        assert all(member.is_running() for member in members)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    # A shell shows both as 130: CPython ends by the signal itself if it struck within an exec() of text, as of a dataclass.
    assert process.returncode in (EXIT_INTERRUPTED, -signal.SIGINT), (process.returncode, err)
    assert "Traceback" not in err
    assert not any(member.is_running() for member in [*members, *demo.members()])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_demo_that_is_kept_and_an_operator_at_work(demo: Demo, tree: Path) -> None:
    done = demo.run("demo", "--tree", str(tree), "--keep", "--verdict-timeout-s", "1", "--json")
    assert done.code == EXIT_FAILED, "a second is too short for a verdict, and that is no success"
    assert {check["name"].split(":")[0] for check in done.json["checks"] if not check["holds"]} == {"Spark"}
    assert "a demo's stack still runs" in demo.run("demo", "--tree", str(tree)).err

    assert demo.on_stack("status", "--json").code == EXIT_OK
    refused = demo.on_stack("admin", "rebuild", "om3", "0", "--json")
    assert (refused.code, "om3 runs: stop it first" in refused.err) == (EXIT_FAILED, True)
    assert demo.on_stack("admin", "stop-node", "om3", "--json").json == {"node": "om3", "stopped": True}
    assert demo.on_stack("admin", "rebuild", "om3", "5").code != EXIT_OK
    moved = demo.on_stack("admin", "rebuild", "om3", "0", "--json").json
    assert Path(moved["moved_to"]).name.startswith("shard-0.moved-")
    started = demo.on_stack("admin", "start-node", "om3", "--json").json
    assert "runs already" in demo.on_stack("admin", "start-node", "om3").err
    wait_until(lambda: stands_with_the_others(demo, started["address"]), 60)
    equal = demo.on_stack("debug", "digest", "--json")
    assert equal.code == EXIT_OK
    assert len({(one["shard"], one["index"], one["scrubbed"]) for one in equal.lines}) == 2

    base = demo.on_stack("admin", "digest-base", "0", "--json")
    assert base.code == EXIT_OK, base
    once = demo.on_stack("audit", "--once", "--json")
    assert (once.code, once.json["ok"]) == (EXIT_OK, True), once
    follower = demo.start("audit", "--follow", "--json", STRATOLOG_DATA_DIR=str(demo.folder / ".stratolog" / "demo"))
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["verdict"] in ("equal", "unknown")
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=60)
    assert "Traceback" not in err

    drilled = demo.on_stack("drill", "corrupt-replica", "--json")
    assert (drilled.code, drilled.json["verdict"]) == (EXIT_OK, "passed"), drilled
    said_by_spark = [finding["holds"] for finding in drilled.json["findings"] if "Spark" in finding["question"]]
    assert said_by_spark == [True, True, True], "first diverged, by bucket and by row, then equal again"

    members = demo.members()
    assert demo.on_stack("down", "--remove-data", "--json").code == EXIT_OK
    assert not any(member.is_running() for member in members)
    assert demo.on_stack("status").code == EXIT_UNAVAILABLE


def stands_with_the_others(demo: Demo, address: str) -> bool:
    """Say whether a node has applied as much as its leaders have."""
    own: Any = node_status(address)
    led: Any = demo.on_stack("status", "--json").json["nodes"]
    indexes = {
        shard["shard"]: shard["applied_index"]
        for node in led.values()
        for shard in node["shards"]
        if shard["role"] == "leader"
    }
    time.sleep(0.2)
    return own is not None and all(shard["applied_index"] >= indexes[shard["shard"]] for shard in own["shards"])
