"""``stratolog backup``: backups of the running cluster in a directory, listed, verified and pruned (docs/backup.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratolog.backups.block_modes import MODES, NONE
from stratolog.commands.common.addresses import shown_size
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json, print_table, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from replicated_db.core.backup.manifest import BackupManifest

INTERRUPTED = "no backup was made; what was fetched stays, and the next backup goes on with it"
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory with the backups of one cluster.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("backup")(backup)


def backup(
    context: typer.Context,
    folder: Directory,
    *,
    name: Annotated[str | None, typer.Option(help="Name of the backup; else the time.")] = None,
    blocks: Annotated[
        str,
        typer.Option(
            metavar="|".join(MODES), help="What is kept of the keys' blocks: nothing, their rows, or rows and bytes."
        ),
    ] = NONE,
    list_only: Annotated[bool, typer.Option("--list", help="List the backups in DIR.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read and check every file of every backup in DIR.")] = False,
    prune: Annotated[
        int | None, typer.Option(min=1, metavar="KEEP", help="Remove all but the last KEEP backups in DIR.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Back the running cluster up into DIR: each shard's checkpoint and log. What DIR has already is not sent again."""
    if sum((list_only, verify, prune is not None)) > 1:
        raise UsageError("--list, --verify and --prune exclude each other")
    if blocks not in MODES:
        raise UsageError(f"--blocks {blocks!r}: it is one of {', '.join(MODES)}")
    if list_only:
        from stratolog.backups import making

        _show_list(making.listed(folder), as_json)
    elif verify:
        _verify(folder, as_json)
    elif prune is not None:
        _prune(folder, prune, as_json)
    else:
        _make(context, folder, name, blocks, as_json)


def _make(context: typer.Context, folder: Path, name: str | None, blocks: str, as_json: bool) -> None:
    from stratolog.backups import making

    settings = connected_settings_of(context)
    with progress(as_json) as report, interruptible(INTERRUPTED):
        made = making.make_backup(settings, folder, name=name, blocks=blocks, report=report)
    if as_json:
        print_json(summary(made))
        return
    rows = [
        (part.shard, part.listing.node, part.index, part.digest, shown_size(part.fetched_bytes),
         shown_size(part.saved_bytes), f"{part.log[0].first}..{part.log_end - 1}" if part.log else None)
        for part in made.parts
    ]  # fmt: skip
    columns = ("shard", "from", "index", "digest", "sent", "saved", "log's offsets")
    print_table(f"Backup {made.name}", columns, rows, ("from", "log's offsets"))
    found = made.service["blocks"]
    if found["mode"] != NONE:
        console.print(
            f"blocks: {found['mode']}, {found['blocks']} blocks, {shown_size(found['fetched_bytes'])} sent, "
            f"{shown_size(found['saved_bytes'])} saved",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def summary(made: BackupManifest) -> dict[str, Any]:
    """Return what a program wants to know of a backup."""
    return {
        "name": made.name, "created_at_ms": made.created_at_ms, "cluster": made.cluster, "service": dict(made.service),
        "shards": [
            {
                "shard": part.shard, "node": part.listing.node, "index": part.index,
                "offset": part.listing.position.offset, "digest": part.digest, "timestamp_ms": part.timestamp_ms,
                "files": len(part.listing.files), "sent_bytes": part.fetched_bytes, "saved_bytes": part.saved_bytes,
                "log_first": part.log[0].first if part.log else part.log_end, "log_end": part.log_end,
                "log_end_ms": part.log_end_ms,
            }
            for part in made.parts
        ],
    }  # fmt: skip


def _show_list(found: list[BackupManifest], as_json: bool) -> None:
    if as_json:
        print_json([summary(one) for one in found])
        return
    rows = [
        (one.name, _time(one.created_at_ms), " ".join(str(part.index) for part in one.parts),
         shown_size(sum(content.size for content in one.contents())),
         shown_size(sum(part.fetched_bytes for part in one.parts)))
        for one in found
    ]  # fmt: skip
    print_table("Backups", ("name", "made", "index of each shard", "size", "sent"), rows, ("sent", "size"))


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _verify(folder: Path, as_json: bool) -> None:
    from stratolog.backups import making

    with progress(as_json) as report, interruptible("nothing was changed"):
        found, problems = making.verify(folder, report)
    if as_json:
        print_json({"backups": [one.name for one in found], "problems": problems})
    else:
        for problem in problems:
            console.print(problem, markup=False, highlight=False, soft_wrap=True)
        said = f"{len(problems)} files are missing or damaged" if problems else "every file is whole"
        console.print(f"{len(found)} backups: {said}", markup=False, highlight=False, soft_wrap=True)
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _prune(folder: Path, keep: int, as_json: bool) -> None:
    from stratolog.backups import making

    names, freed = making.prune(folder, keep)
    if as_json:
        print_json({"removed": names, "freed_bytes": freed})
        return
    said = f"removed: {', '.join(names)}" if names else "nothing to remove"
    console.print(f"{said}; {shown_size(freed)} freed", markup=False, highlight=False, soft_wrap=True)
