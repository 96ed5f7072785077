"""One key's write is one trace, on a real stack, by a real collector; and tracing harms nobody."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra 'tracing' is not installed")

from confluent_kafka import Producer

from schemas.codecs.codec import encode
from schemas.records.log import Tick
from schemas.topics import OM_LOG, OM_REQUESTS
from tests.support.local.stack import TestStack
from tests.support.sdk.written import fresh_bytes
from tests.support.tracing.collector import Collected, Collector

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
SECONDS = 120.0
TYPES = ("CreateKey", "CommitKey")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def stack(make_stack: Callable[..., TestStack], collector: Collector) -> TestStack:
    started = make_stack(nodes=3, datanodes=3, trace_endpoint=collector.endpoint)
    started.wait_pipeline()
    return started


def command(stack: TestStack, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "STRATOLOG_CONFIG": str(stack.settings_file), "PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "stratolog", "sh", *words], capture_output=True, text=True, env=environment, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def bucket(stack: TestStack) -> str:
    command(stack, "volume", "create", "/traced")
    command(stack, "bucket", "create", "/traced/bucket")
    return "/traced/bucket"


def written(stack: TestStack, collector: Collector, key: str, source: Path) -> Collected:
    """Write a key by the command; return its span once all of its trace is there."""
    command(stack, "key", "put", key, str(source))

    def whole() -> Collected | None:
        found = next((one for one in list(collector.spans) if one.attributes.get("stratolog.key") == key), None)
        if found is None:
            return None
        calls = [call for name in TYPES for call in collector.below(found, name)]
        leads = [lead for call in calls for lead in collector.below(call, f"lead {call.name}")]
        applied = [
            one for lead in leads for append in collector.below(lead, "append")
            for one in collector.below(append, "apply")
        ]  # fmt: skip
        return found if (len(leads), len(applied)) == (2, 4) else None

    found: Collected = stack.wait("all spans of the key's trace", whole, SECONDS)
    return found


@pytest.mark.timeout(900)
def test_one_keys_write_is_one_trace(stack: TestStack, collector: Collector, bucket: str, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(fresh_bytes(3 * MIB))
    whole = written(stack, collector, f"{bucket}/a", source)
    assert (whole.above, whole.service, whole.failed) == ("", "stratolog-command", False)
    trace = [one for one in collector.spans if one.trace == whole.trace]
    assert {one.service for one in trace} == {"stratolog-command", "stratolog-om"}
    for name in TYPES:
        (call,) = collector.below(whole, name)
        (lead,) = collector.below(call, f"lead {name}")
        (execute,) = collector.below(lead, "execute")
        (append,) = collector.below(lead, "append")
        applied = collector.below(append, "apply")
        shard = lead.attributes["stratolog.shard"]
        assert call.attributes["stratolog.shard"] == shard
        assert lead.instance == stack.wait_leader(shard)
        assert {one.instance for one in applied} == set(stack.names) - {lead.instance}
        (offset,) = {one.attributes["stratolog.log.offset"] for one in [append, *applied]}
        assert stack.shard(lead.instance, shard)["read_offset"] >= offset
        assert call.begin_ns <= lead.begin_ns <= execute.begin_ns <= execute.end_ns <= append.begin_ns
        assert append.end_ns <= lead.end_ns <= call.end_ns
    (block,) = collector.below(whole, "write block")
    assert block.attributes["stratolog.bytes"] == 3 * MIB
    assert len(block.attributes["stratolog.datanodes"].split(",")) == 3


@pytest.mark.timeout(900)
def test_strangers_keys_and_headers_end_nobody(
    stack: TestStack, collector: Collector, bucket: str, tmp_path: Path
) -> None:
    """Keys and headers of any bytes on om.requests; headers on the log are those of who may write it."""
    producer = Producer({"bootstrap.servers": stack.settings.bootstrap_servers})
    void = encode(Tick(term=1, nonce=b"?" * 16, seq=1, prev_chain=bytes(32)))  # of a claim that nobody made
    for shard in range(stack.settings.shards):
        for key in (b"", b"\xff" * 55, b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", bytes(32), b"x" * 100_000):
            producer.produce(
                OM_REQUESTS, b"nonsense", key, shard, headers=[("traceparent", key), ("traceparent", None)]
            )
        producer.produce(OM_LOG, void, partition=shard, headers=[("traceparent", b"\xff" * 55), ("", None)])
    assert producer.flush(SECONDS) == 0
    source = tmp_path / "source.bin"
    source.write_bytes(fresh_bytes(100_000))
    written(stack, collector, f"{bucket}/b", source)
    assert all(process.is_running() for process in stack.nodes.values())


@pytest.mark.timeout(900)
def test_a_collector_that_fails_or_is_gone_holds_nobody_up(
    stack: TestStack, collector: Collector, bucket: str, tmp_path: Path
) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(fresh_bytes(100_000))
    collector.status = 503
    posts = collector.posts
    begun_s = time.monotonic()
    done = command(stack, "key", "put", f"{bucket}/c", str(source))
    print(f"with a failing collector: {time.monotonic() - begun_s:.1f} s; {done.stderr}")
    assert "Traceback" not in done.stderr
    stack.wait("nodes tried to send", lambda: collector.posts > posts + 1, SECONDS)
    collector.status = 200
    written(stack, collector, f"{bucket}/d", source)
    collector.close()
    begun_s = time.monotonic()
    done = command(stack, "key", "put", f"{bucket}/e", str(source))
    print(f"without a collector: {time.monotonic() - begun_s:.1f} s; {done.stderr}")
    assert "Traceback" not in done.stderr
    assert all(process.is_running() for process in stack.nodes.values())
