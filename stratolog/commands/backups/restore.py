"""``stratolog restore``: a backup becomes a new cluster (docs/backup.md)."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratolog.commands.backups.backup import Directory
from stratolog.commands.common.addresses import positions, shown_size
from stratolog.commands.common.invocation import JsonOption, settings_of
from stratolog.commands.common.output import console, print_json, print_table, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.errors import UsageError

if TYPE_CHECKING:
    from stratolog.backups.restoring import RestoredCluster

INTERRUPTED = "the restore is not finished: the same command goes on with it"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("restore")(restore)


def restore(
    context: typer.Context,
    folder: Directory,
    *,
    backup: Annotated[str | None, typer.Option(help="Name of the backup; else the last one that will do.")] = None,
    until_index: Annotated[
        str | None, typer.Option(metavar="SHARD:INDEX[,...]", help="Go on to this index of a shard, by the kept log.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Go on to this time (ISO 8601), by the kept log.")] = None,
    to_end: Annotated[bool, typer.Option("--to-end", help="Go on to the end of the kept log.")] = False,
    start: Annotated[
        bool, typer.Option("--start/--no-start", help="Start a local stack; or use the brokers of the settings, and start nothing.")
    ] = True,
    node: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="With --no-start: put this node's databases in place; else those of all nodes.")
    ] = None,
    brokers: Annotated[int | None, typer.Option(help="Kafka brokers: 1, or 3 with replication.")] = None,
    audit: Annotated[bool | None, typer.Option(help="Run the Spark audit.")] = None,
    datanodes: Annotated[int | None, typer.Option(min=0, help="New datanodes; else as many as the backup knows.")] = None,
    disk: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="Folder of an old datanode, to read blocks from.")
    ] = None,
    without_blocks: Annotated[bool, typer.Option("--without-blocks", help="Restore no blocks.")] = False,
    accept_missing_blocks: Annotated[
        bool, typer.Option("--accept-missing-blocks", help="Go on if blocks of some keys are not in the backups.")
    ] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Restore a backup in DIR onto new brokers and nodes: a new local stack, or those of the settings (--no-start)."""
    if sum((until_index is not None, at is not None, to_end)) > 1:
        raise UsageError("--until-index, --at and --to-end exclude each other")
    if node and start:
        raise UsageError("--node needs --no-start: a new local stack has all nodes of the settings")
    if datanodes is not None and not start:
        raise UsageError("--datanodes needs a new local stack: with --no-start the settings name the new datanodes")
    from stratolog.backups.restoring import RestoreWish, restore_onto, restore_stack

    settings = settings_of(context).with_values(brokers=brokers, audit=audit)
    wish = RestoreWish(
        backup=backup, indexes=None if until_index is None else positions(until_index),
        time_ms=None if at is None else _time_of(at), to_end=to_end, nodes=tuple(node or ()), datanodes=datanodes,
        disks=tuple(disk or ()), without_blocks=without_blocks, accept_missing=accept_missing_blocks,
    )  # fmt: skip
    run = restore_stack if start else restore_onto
    with progress(as_json) as report, interruptible(INTERRUPTED):
        made = run(settings, folder, wish, report=report)
    _show(made, as_json)


def _time_of(text: str) -> int:
    """Return a time in milliseconds; without a zone it is this machine's local time."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-11-23T17:00:00+00:00: {error}") from error


def _show(made: RestoredCluster, as_json: bool) -> None:
    shards = [
        {"shard": one.shard, "index": one.index, "digest": one.digest, "timestamp_ms": one.timestamp_ms,
         "applied": one.applied}
        for one in made.shards
    ]  # fmt: skip
    if as_json:
        print_json(
            {"backup": made.backup, "bootstrap_servers": made.settings.bootstrap_servers,
             "data_dir": str(made.settings.data_dir), "nodes": list(made.placed), "shards": shards,
             "blocks": {**asdict(made.blocks), "missing": made.missing_blocks}}
        )  # fmt: skip
        return
    rows = [tuple(shard.values()) for shard in shards]
    print_table(f"Restored from {made.backup}", ("shard", "index", "digest", "time ms", "records applied"), rows)
    if made.blocks.containers or made.missing_blocks:
        console.print(
            f"blocks: {made.blocks.containers} copies of containers, {shown_size(made.blocks.bytes)}; "
            f"{made.missing_blocks} blocks are missing",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    console.print(
        f"nodes: {', '.join(made.placed)}; Kafka: {made.settings.bootstrap_servers}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
