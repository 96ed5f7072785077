"""``stratolog admin trim``: delete the beginning of the log that nobody needs any more. Registered by ``admin``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stratolog.cluster import trimming
from stratolog.cluster.leadership import check_shard
from stratolog.cluster.reach import check_brokers
from stratolog.cluster.trimming import PipelineLog, ShardLog, TrimmedLog
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.names import node_names
from stratolog.commands.common.output import console, print_json, print_table, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError

LEFT = "what was deleted is in 'stratolog admin trim --explain' (the log's beginning); give the command again"


def register(group: typer.Typer) -> None:
    """Add the command to the group ``admin``."""
    group.command("trim")(trim)


def trim(
    context: typer.Context,
    *,
    shard: Annotated[
        int | None, typer.Option(min=0, help="Shard, from 0; without --shard and --pipeline all shards and pipelines.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(metavar="PIPELINE", help="Pipeline, as 'admin pipeline list' names it: pipeline-3.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only say how far, and what each rule allows; delete nothing.")
    ] = False,
    keep: Annotated[
        str, typer.Option(metavar="RECORDS|AGE", help="Keep so many records, or those of so long (90m, 36h, 7d).")
    ] = "0",
    leave_behind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE", autocompletion=node_names,
            help="Do not wait for this member: it then needs a checkpoint from a peer. May be given again.",
        ),
    ] = None,
    without_audit: Annotated[
        bool,
        typer.Option(
            "--without-audit", help="Do not wait for the audit: one that has not read so far begins anew at the base."
        ),
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0.0, max=3600.0, help="Seconds to wait for members and the audit.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Delete the beginning of the logs (Kafka's DeleteRecords), as far as nobody needs it any more.

    That is om.log, by shard, and dn.log, by pipeline. A log then begins with a digest base, from which the audit can
    begin. Nothing is deleted that a member may still have to read, that the audit has not judged, or that is not on the
    disks of a majority. Recovery drills that replay the log, and the batch oracle, need the whole log: after a trim
    they say so.
    """
    settings = connected_settings_of(context)
    if shard is not None:
        check_shard(settings, shard)
    try:
        keep_records, keep_ms = trimming.keep_from(keep)
    except ValueError as error:
        raise UsageError(f"--keep {error}") from error
    left_behind = tuple(leave_behind or ())
    known = {node.name for node in settings.nodes} | {datanode.name for datanode in settings.datanodes}
    for node in left_behind:
        if node not in known:
            raise UsageError(f"--leave-behind {node!r}: no such node or datanode; there is: {', '.join(sorted(known))}")
    check_brokers(settings)
    wish = trimming.Wish(
        keep_records=keep_records, keep_ms=keep_ms, leave_behind=left_behind, without_audit=without_audit
    )
    done: dict[TrimmedLog, dict[str, Any]] = {}
    with progress(as_json) as report, interruptible(LEFT):
        for log in _logs(settings, shard, pipeline):
            report(f"{log}: asking the members")
            done[log] = (
                trimming.look(settings, log, wish)
                if explain
                else trimming.trim(settings, log, wish, wait_s=wait, has_audit=settings.audit, report=report)
            )
    if as_json:
        shards = [{"shard": log.number, **one} for log, one in done.items() if isinstance(log, ShardLog)]
        pipelines = [{"pipeline": str(log), **one} for log, one in done.items() if isinstance(log, PipelineLog)]
        print_json({"explained": explain, "shards": shards, "pipelines": pipelines})
        return
    for log, one in done.items():
        _print(log, one, explain=explain)


def _logs(settings: Settings, shard: int | None, pipeline: str | None) -> list[TrimmedLog]:
    """Return what is to be trimmed. Raises UsageError for a name that is no pipeline's."""
    if pipeline is None and shard is None:
        pipelines = trimming.pipelines_of(settings) if settings.datanodes else []
        return [*map(ShardLog, range(settings.shards)), *(PipelineLog(int(one["partition"])) for one in pipelines)]
    found: list[TrimmedLog] = [] if shard is None else [ShardLog(shard)]
    if pipeline is not None:
        there = {str(one["pipeline"]): int(one["partition"]) for one in trimming.pipelines_of(settings)}
        if pipeline not in there:
            raise UsageError(f"--pipeline {pipeline!r}: no such pipeline; there is: {', '.join(there) or 'none'}")
        found.append(PipelineLog(there[pipeline]))
    return found


def _print(log: TrimmedLog, one: dict[str, Any], *, explain: bool) -> None:
    held = next(rule for rule in one["rules"] if rule["rule"] == one["held_by"])
    if explain or not one["records"]:
        rows = [(rule["rule"], rule["allows"], rule["why"]) for rule in one["rules"]]
        title = f"{str(log).capitalize()}: the log has offsets {one['first']} to {one['end'] - 1}"
        print_table(title, ("rule", "needs the log from", "why"), rows)
    if one["records"]:
        would = "would be" if explain else "are"
        text = (
            f"{log}: {one['records']:,} records {would} deleted; the log "
            f"{'would begin' if explain else 'begins'} at offset {one['offset']}, with the base of index "
            f"{one['base']['index']}"
        )
    else:
        text = f"{log}: nothing is deleted. {held['rule']}: {held['why']}"
        if held["rule"] == "audit":
            text += "; if the audit does not run any more, give --without-audit"
    console.print(text, highlight=False, soft_wrap=True)
