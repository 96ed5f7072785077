"""``stratolog debug log`` and ``debug digest``: print the log, and compare a replica's rows with its digest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import typer

from replicated_db.core.errors import StopProcess
from replicated_db.core.log.reading import Reading
from replicated_db.core.ports import Entry
from schemas.codecs.codec import decode_as
from schemas.records.log import Batch, LogRecord, Mode, RequestBatch
from schemas.records.messages import PreparedRequest
from schemas.result_codes import OK
from schemas.topics import OM_LOG
from stratolog.cluster.leadership import check_shard
from stratolog.cluster.reach import check_brokers, check_nodes
from stratolog.cluster.shard_log import first_offset, read_judged
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.names import node_names
from stratolog.commands.common.output import print_json, print_table
from stratolog.configuration.settings import Settings
from stratolog.errors import EXIT_FAILED, Unavailable, UsageError, UserError
from stratolog.nodes.node_http import http_to, url_of

if TYPE_CHECKING:
    from stratolog.commands.late_replay import Replay

DEFAULT_RECORDS = 50
SCAN_TIMEOUT_S = 600.0
Json = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="Look into the log and the replicas.")
    group.command("log")(log)
    group.command("digest")(digest)
    app.add_typer(group, name="debug")


def log(
    context: typer.Context,
    shard: Annotated[int, typer.Argument(help="Shard, from 0.")],
    *,
    start: Annotated[int, typer.Option("--from", help="First offset to print.", min=0)] = 0,
    stop: Annotated[int | None, typer.Option("--to", help="Last offset to print.", min=0)] = None,
    limit: Annotated[int, typer.Option(help="At most so many records.", min=1)] = DEFAULT_RECORDS,
    execute: Annotated[
        bool,
        typer.Option(
            "--execute", help="Execute logged requests (late validation) on a replica in memory: which were invalid."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a range of a shard's log, decoded; void records are marked with the reason.

    The log is read from its first record whatever the range, for what is void follows from what came before. A trimmed
    log begins with a base; --from before it is told. With
    --json each record is one line and whole, bytes in hexadecimal. Exit status 1 if the log breaks its contract.
    """
    settings = connected_settings_of(context)
    check_shard(settings, shard)
    check_brokers(settings)
    printed: list[Json] = []
    broken = None
    first = first_offset(settings, shard)
    if execute and first > 0:
        raise UserError(
            f"--execute needs the whole log, and that of shard {shard} was trimmed: it begins at offset {first}"
        )
    if start < first:
        typer.echo(f"the log was trimmed: it begins at offset {first}", err=True)
    replay = _replay(settings, shard) if execute else None
    for entry, record, verdict in read_judged(settings, shard):
        statuses = None
        if replay is not None and record is not None and isinstance(verdict, Reading):
            statuses = replay.offer(entry.offset, entry.value, record)
        if entry.offset < start:
            continue
        if stop is not None and entry.offset > stop:
            break
        if len(printed) == limit:
            typer.echo(f"the log goes on: --from {entry.offset}, or another --limit, shows more", err=True)
            break
        if isinstance(verdict, StopProcess):
            broken = verdict
        printed.append(_described(entry, record, verdict, statuses))
        if as_json:
            print_json({**printed[-1], "record": _plain(asdict(record)) if record is not None else None})
    if not as_json:
        columns = ("offset", "kind", "term", "seq", "index", "operations", "results", "bytes", "reading")
        rows = [tuple(line[column] for column in columns) for line in printed]
        less = ("bytes", "seq", "results", "term", "operations", "index")
        print_table(f"{OM_LOG}, shard {shard}", columns, rows, less)
    if broken is not None:
        raise typer.Exit(EXIT_FAILED)


def _replay(settings: Settings, shard: int) -> Replay:
    # It needs the libraries of nodes, which a client's installation lacks.
    from stratolog.commands.late_replay import Replay

    return Replay(cluster=settings.cluster, shard=shard, shards=settings.shards)


def _described(
    entry: Entry, record: LogRecord | None, verdict: Reading | StopProcess, statuses: Sequence[str] | None = None
) -> Json:
    """Return one line of the table."""
    line: Json = dict.fromkeys(("index", "operations", "results", "term", "seq"))
    line |= {"offset": entry.offset, "appended_at_ms": entry.timestamp_ms, "bytes": len(entry.value)}
    line["kind"] = "undecodable" if record is None else type(record).__name__
    line["reading"] = f"STOP: {verdict}" if isinstance(verdict, StopProcess) else verdict.value
    if record is not None:
        line |= {"term": record.term, "seq": getattr(record, "seq", None), "index": getattr(record, "index", None)}
    if isinstance(record, RequestBatch):
        line["index"] = f"{record.first_index}..{record.last_index}"
        line["operations"] = "each replica's own"
        line["results"] = _late_results(record, statuses)
    if isinstance(record, Mode):
        line["operations"] = f"{record.request_type}: {record.mode}"
    if isinstance(record, Batch):
        kinds = Counter(type(operation).__name__ for operation in record.operations)
        line["index"] = f"{record.first_index}..{record.last_index}"
        line["operations"] = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
        line["results"] = len(record.results)
    return line


def _late_results(record: RequestBatch, statuses: Sequence[str] | None) -> str:
    """Say what became of logged requests; without their ``statuses`` only how many preExecute refused."""
    if statuses is not None:
        return ", ".join(f"{count} {status}" for status, count in sorted(Counter(statuses).items()))
    refused = sum(decode_as(PreparedRequest, request.prepared).status != OK for request in record.requests)
    return f"{len(record.requests)} requests" + (f", {refused} refused before they were logged" if refused else "")


def _plain(value: Any) -> Any:
    """Return ``value`` with bytes as hexadecimal text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def digest(
    context: typer.Context,
    *,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Only this node.", autocompletion=node_names)] = None,
    shard: Annotated[int | None, typer.Option(help="Only this shard.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Scan replicas in full and compare with their incremental digests.

    Exit status 1 if a scan differs: a row was changed behind the replica's back.
    """
    settings = connected_settings_of(context)
    names = [found.name for found in settings.nodes]
    if node is not None and node not in names:
        raise UsageError(f"no node {node!r}; there are: {', '.join(names)}")
    if shard is not None:
        check_shard(settings, shard)
    check_nodes(settings, None if node is None else {node})
    shards = range(settings.shards) if shard is None else [shard]
    found = [_digests(settings, name, number) for name in names if node in (None, name) for number in shards]
    if as_json:
        for line in found:
            print_json(line)
    else:
        columns = ("node", "shard", "index", "incremental", "scrubbed", "equal", "differing slots")
        rows = [tuple(line[column.replace(" ", "_")] for column in columns) for line in found]
        print_table("Digests", columns, rows, ("differing slots", "incremental", "scrubbed", "index"))
    if not all(line["equal"] for line in found):
        raise typer.Exit(EXIT_FAILED)


def _digests(settings: Settings, node: str, shard: int) -> Json:
    """Return a replica's running digest and the digest of a full scan, both of one moment."""
    address = settings.node(node).address
    url = url_of(address, f"/v1/shards/{shard}/digest")
    try:
        scrubbed = http_to(address).get(url, params={"scrub": "true"}, timeout=SCAN_TIMEOUT_S).raise_for_status().json()
    except httpx.HTTPError as error:
        raise Unavailable(f"{node} at {settings.node(node).address}: {error}") from error
    incremental = scrubbed["incremental"]
    one, other = (dict(zip(part["slots"], part["sums"], strict=True)) for part in (incremental, scrubbed))
    differing = sorted(slot for slot in one.keys() | other.keys() if one.get(slot) != other.get(slot))
    return {
        "node": node, "shard": shard, "index": scrubbed["index"], "incremental": incremental["digest"],
        "scrubbed": scrubbed["digest"], "equal": not differing, "differing_slots": len(differing),
    }  # fmt: skip
