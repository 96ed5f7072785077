"""Where the time of one request goes, step by step: ``python -m benchmarks.user.steps [--brokers 1] [--calls 300]``.

One client, one call in flight, the whole stack with three Object Managers and three datanodes, without the audit. Every
call is traced (docs/tracing.md), and its spans are put end to end: a step begins where the one before it ended, so the
steps of a call add up to its elapsed time. Each figure is the median of its step over all calls; medians need not add
up. Clocks are those of one machine.

Measured are a lone CreateKey, a file of 4 KiB (in its row) and one of 32 KiB (on datanodes; from the ninth on their
blocks are reserved ahead). A traced request is a record of its own and takes about 0.1 ms more than one that is not.
Datanodes leave no spans: what a block's exchange took, step by step, is the mean of their counters over the datanodes
that had the step (`stratolog_datanode_exchange_seconds_total`, `_steps_total`); it lies within "block to the
datanodes". A datanode leads some pipelines and follows in others, and commits where it leads alone.
Standard output has one JSON object a line: `what`, `size`, `brokers`, `calls`, `elapsed_ms`, `steps_ms`, `exchange_ms`,
`followers_ms` (from the append's beginning until a follower has applied it, which no caller waits for). A table goes to
standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice, takewhile
from pathlib import Path
from statistics import median

import httpx
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.user.commands import BUCKET, VOLUME
from datanode_processors.wire.counters import EXCHANGE_STEPS
from producers import Client
from schemas.records.messages import CreateKey
from stratolog.local.kafka import LONG_RUN_JVM
from tests.support.local.stack import LocalKafka, TestStack
from tests.support.tracing.collector import Collected, Collector

KIB = 1024
CREATE, PUT = "CreateKey", "file"
TOPS = {CREATE: "CreateKey", PUT: "write key"}
"""The span of a whole call, for each kind of work. Blocks that are reserved meanwhile have traces of their own."""
WORK = ((CREATE, 0), (PUT, 4 * KIB), (PUT, 32 * KIB))
WARM_UP_S = 20.0
SPANS_ARRIVE_S = 20.0
"""How long the last spans of the nodes may be under way: their exporters send every five seconds."""

BEFORE, TO_LEADER, EXECUTE, APPEND, ANSWER, BLOCK, REST = (
    "before the request", "to the leader", "wait there, execute", "append, apply at the leader",
    "answer to the client", "block to the datanodes", "behind the request",
)  # fmt: skip


def steps_of(spans: Sequence[Collected]) -> dict[str, float] | None:
    """Return the steps of one call in ms, in their order, put end to end; None if a span is missing.

    ``spans`` are those of one trace. Several requests of one call (OPEN and commit) count as one of each step.
    """
    (top,) = (one for one in spans if not one.above)
    calls = [one for one in spans if any(other.above == one.span and _leads(other) for other in spans)]
    if not calls:
        return None
    found = dict.fromkeys((BEFORE, BLOCK, TO_LEADER, EXECUTE, APPEND, ANSWER, REST), 0.0)
    at_ns = top.begin_ns
    for one in sorted([*calls, *(one for one in spans if one.name == "write block")], key=lambda one: one.begin_ns):
        found[BEFORE] += max(0, one.begin_ns - at_ns) / 1e6
        if one.name == "write block":
            found[BLOCK] += max(0, one.end_ns - max(one.begin_ns, at_ns)) / 1e6
        else:
            lead = next(other for other in spans if other.above == one.span and _leads(other))
            inner = {other.name: other for other in spans if other.above == lead.span}
            if not {"execute", "append"} <= inner.keys():
                return None
            ends = (lead.begin_ns, inner["execute"].end_ns, inner["append"].end_ns, one.end_ns)
            begin_ns = max(one.begin_ns, at_ns)
            for name, end_ns in zip((TO_LEADER, EXECUTE, APPEND, ANSWER), ends, strict=True):
                found[name] += max(0, end_ns - begin_ns) / 1e6
                begin_ns = max(begin_ns, end_ns)
        at_ns = max(at_ns, one.end_ns)
    found[REST] = max(0, top.end_ns - at_ns) / 1e6
    return found


def _leads(span: Collected) -> bool:
    return span.name.startswith("lead ")


def followers_of(spans: Sequence[Collected]) -> list[float]:
    """Return how long after the beginning of its append each follower had applied a batch of the call, in ms."""
    begun = {one.span: one.begin_ns for one in spans if one.name == "append"}
    return [(one.end_ns - begun[one.above]) / 1e6 for one in spans if one.name == "apply" and one.above in begun]


def by_trace(spans: Iterable[Collected], top: str) -> dict[str, list[Collected]]:
    """Return the spans of each call whose span of the whole call is named ``top``, by the id of its trace."""
    found: dict[str, list[Collected]] = {}
    for one in spans:
        found.setdefault(one.trace, []).append(one)
    return {
        trace: own for trace, own in found.items() if any(not one.above and one.name == top for one in own)
    }  # fmt: skip


def summary(calls: Mapping[str, Sequence[Collected]]) -> dict[str, object]:
    """Return the medians of all calls whose spans have come."""
    whole = [(spans, steps) for spans in calls.values() if (steps := steps_of(spans)) is not None]
    if not whole:
        raise RuntimeError("no call's spans have come")
    tops = [next(one for one in spans if not one.above) for spans, _ in whole]
    followers = [ms for spans, _ in whole for ms in followers_of(spans)]
    names = whole[0][1].keys()
    return {
        "calls": len(whole),
        "elapsed_ms": round(median((top.end_ns - top.begin_ns) / 1e6 for top in tops), 3),
        "steps_ms": {name: round(median(steps[name] for _, steps in whole), 3) for name in names},
        "followers_ms": round(median(followers), 3) if followers else None,
    }


Steps = Mapping[str, tuple[float, float]]
"""Seconds that exchanges spent in each step, and how many had it."""


def exchange_steps(stack: TestStack) -> Steps:
    """Return the counters of small blocks' exchanges, of all datanodes together."""
    seconds: Counter[str] = Counter()
    times: Counter[str] = Counter()
    totals = {
        "stratolog_datanode_exchange_seconds_total": seconds, "stratolog_datanode_exchange_steps_total": times,
    }  # fmt: skip
    for datanode in stack.settings.datanodes:
        text = httpx.get(f"http://{datanode.http_address}/metrics", trust_env=False).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in totals:
                    totals[sample.name][sample.labels["step"]] += sample.value  # type: ignore[assignment]
    return {step: (spent_s, times[step]) for step, spent_s in seconds.items()}


def mean_ms(before: Steps, after: Steps) -> dict[str, float]:
    """Return the mean of each step between two looks, in ms; nothing of a step that no exchange had.

    >>> mean_ms({"commit": (1.0, 1), "below": (0.0, 0)}, {"commit": (1.004, 3), "below": (0.0, 0)})
    {'commit': 2.0}
    """
    spent = {step: (spent_s - before[step][0], times - before[step][1]) for step, (spent_s, times) in after.items()}
    return {step: round(spent_s * 1000 / times, 3) for step, (spent_s, times) in spent.items() if times}


def work(client: Client, what: str, size: int, names: Iterable[str]) -> None:
    """Make one call after the other."""
    data = os.urandom(size)
    for name in names:
        if what == CREATE:
            client.call(CreateKey(volume=VOLUME, bucket=BUCKET, key=name, size=0))
        else:
            with client.open(f"/{VOLUME}/{BUCKET}/{name}", "wb", size=size) as file:
                file.write(data)


def names(kind: str, what: str, size: int) -> Iterator[str]:
    """Yield new names."""
    return (f"{kind}-{what}-{size}-{number}" for number in count())


def during(seconds: float, names: Iterable[str]) -> Iterator[str]:
    """Yield names until the time is over."""
    until_s = time.monotonic() + seconds
    return takewhile(lambda _: time.monotonic() < until_s, names)


def measure(stack: TestStack, collector: Collector, calls: int) -> Iterator[dict[str, object]]:
    """Yield the summary of each kind of work."""
    provider = TracerProvider(resource=Resource({"service.name": "bench", "service.instance.id": "bench"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector.endpoint}/v1/traces")))
    nodes = [stack.address(name) for name in stack.names]
    brokers = stack.settings.bootstrap_servers
    with (
        Client(brokers, nodes=nodes) as warm,
        Client(brokers, nodes=nodes, tracer=provider.get_tracer("bench")) as client,
    ):
        warm.create_volume(VOLUME)
        warm.create_bucket(VOLUME, BUCKET)
        for what, size in WORK:
            work(warm, what, size, during(WARM_UP_S, names("warm", what, size)))
            collector.spans.clear()
            before = exchange_steps(stack)
            work(client, what, size, islice(names("traced", what, size), calls))
            exchange = mean_ms(before, exchange_steps(stack))
            provider.force_flush()
            _wait_for(collector, TOPS[what], calls)
            yield {
                "what": what, "size": size, **summary(by_trace(list(collector.spans), TOPS[what])), "exchange_ms": exchange,
            }  # fmt: skip
    provider.shutdown()


def _wait_for(collector: Collector, top: str, calls: int) -> None:
    """Wait until the spans of all calls have come, or no more will."""
    until_s = time.monotonic() + SPANS_ARRIVE_S
    while time.monotonic() < until_s:
        found = by_trace(list(collector.spans), top).values()
        if sum(len(followers_of(spans)) >= 2 for spans in found) >= calls:
            return
        time.sleep(0.5)


def table(rows: Sequence[Mapping[str, object]]) -> Table:
    """Return the table for people."""
    found = Table("median of each step, ms", *(f"{row['what']} {row['size']:,}" for row in rows))
    steps: list[Mapping[str, float]] = [row["steps_ms"] for row in rows]  # type: ignore[misc]
    for name in steps[0]:
        found.add_row(name, *(f"{one[name]:.2f}" for one in steps))
        if name == BLOCK:
            exchanges: list[Mapping[str, float]] = [row["exchange_ms"] for row in rows]  # type: ignore[misc]
            for step in EXCHANGE_STEPS:
                found.add_row(
                    f"  of it, mean: {step}", *(f"{one[step]:.2f}" if step in one else "" for one in exchanges)
                )
    found.add_row("elapsed", *(f"{row['elapsed_ms']:.2f}" for row in rows))
    found.add_row("applied by a follower after", *(f"{row['followers_ms']:.2f}" for row in rows))
    return found


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--calls", type=int, default=300, help="of each kind")
    options = parser.parse_args()
    print(json.dumps({"what": "machine", **machine()}), flush=True)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="stratolog-bench-steps-") as folder, Collector() as collector:
        kafka = LocalKafka(Path(folder) / "kafka", brokers=options.brokers, jvm=LONG_RUN_JVM)
        stack = TestStack(
            Path(folder), kafka=kafka, datanodes=3, brokers=options.brokers, trace_endpoint=collector.endpoint
        )
        with kafka, stack:
            for row in measure(stack, collector, options.calls):
                rows.append({"brokers": options.brokers, **row})
                print(json.dumps(rows[-1]), flush=True)
    Console(stderr=True).print(table(rows))


if __name__ == "__main__":
    main()
