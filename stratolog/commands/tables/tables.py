"""``stratolog tables``: keep the log's tables up to date (docs/log-as-data.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from confluent_kafka import KafkaException

from schemas.kafka.connection import Brokers
from stratolog.cluster.reach import check_brokers
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, notes, print_json, progress
from stratolog.commands.tables.spark_here import stop_signals, table_session, tables_dir
from stratolog.errors import Unavailable, UserError

if TYPE_CHECKING:
    from spark_streaming.tables.core.shard_fold import FoldedPosition

SAY_S = 2.0
"""How often progress is told, at most."""

DirOption = Annotated[
    Path | None, typer.Option("--dir", help="Directory of the tables; by default 'tables' in the data directory.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tables")(command)


def command(
    context: typer.Context,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="End when the tables have what the log has now; else run until interrupted.")
    ] = False,
    directory: DirOption = None,
    memory: Annotated[str, typer.Option(help="Memory of Spark's Java process, as Java writes it.")] = "1g",
    as_json: JsonOption = False,
) -> None:
    """Keep the log as Delta tables: effective_operations, keys_current, usage_by_bucket, file_sizes and growth.

    Each version of a table holds the log up to one index of each shard, and says so. A kill at any time loses and
    repeats nothing: the next start goes on from the tables themselves. 'stratolog sql' asks them.
    """
    settings = connected_settings_of(context)
    check_brokers(settings)
    root = tables_dir(settings, directory)
    from spark_streaming.tables.keeping import TablesError

    is_asked_to_stop = stop_signals()
    try:
        with progress(as_json) as report:
            told = ProgressTeller(report, as_json=as_json)
            report("starting Spark")
            with table_session(settings, memory=memory) as (session, folder):
                _keep(session, folder, settings.connection, root, told, is_asked_to_stop, once=once)
    except TablesError as error:
        raise UserError(str(error)) from error
    except KafkaException as error:
        raise Unavailable(f"{settings.connection}: {error.args[0]}") from error
    told.end(root)


def _keep(
    session: Any, folder: Path, servers: Brokers, root: Path, told: ProgressTeller, is_asked_to_stop: Callable[[], bool], *,
    once: bool,
) -> None:  # fmt: skip
    from spark_streaming.tables.keeping import TablesConfig, check_log, keep, set_aside, sole_keeper

    config = TablesConfig(bootstrap_servers=servers, root=root, work_dir=folder, once=once)
    with sole_keeper(session, root):
        held = held_positions(session, root)
        lost = check_log(config, held)
        if lost is None:
            told.note(held)
        else:
            notes.print(
                f"{lost}: the log was trimmed meanwhile. The tables are set aside in {set_aside(root)}, and begin anew "
                "at the log's base", markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        told.report(f"keeping the tables in {root}")
        keep(session, config, is_asked_to_stop, told.on_written)


def held_positions(session: Any, root: Path) -> Mapping[int, FoldedPosition]:
    """Return what the tables hold of each shard; empty if there are none."""
    from spark_streaming.tables.core.shard_fold import OPERATIONS
    from spark_streaming.tables.delta_tables import DeltaTables

    tables = DeltaTables(session, root)
    held = tables.last_commit(OPERATIONS) if tables.exists(OPERATIONS) else None
    return {} if held is None else held.positions


class ProgressTeller:
    """Tells what the tables hold, now and then: a person by ``report``, a program by lines of JSON."""

    def __init__(self, report: Callable[[str], None], *, as_json: bool) -> None:
        self.report = report
        self._as_json = as_json
        self._said_at_s = 0.0
        self._operations = 0
        self._indexes: dict[int, int] = {}

    def note(self, positions: Mapping[int, FoldedPosition]) -> None:
        """Note what the tables hold."""
        self._indexes = {shard: one.reading.last_index for shard, one in sorted(positions.items())}

    def on_written(self, positions: Mapping[int, FoldedPosition], operations: int) -> None:
        """Note a micro-batch that has been written."""
        self._operations += operations
        self.note(positions)
        if time.monotonic() - self._said_at_s >= SAY_S:
            self._said_at_s = time.monotonic()
            if self._as_json:
                self._print_json()
            else:
                self.report(self._words())

    def end(self, root: Path) -> None:
        """Tell what was done."""
        if self._as_json:
            self._print_json()
        else:
            console.print(f"{root}: {self._words()}", markup=False, highlight=False, soft_wrap=True)

    def _print_json(self) -> None:
        indexes = {str(shard): index for shard, index in self._indexes.items()}
        print_json({"indexes": indexes, "operations": self._operations})

    def _words(self) -> str:
        shown = ",".join(f"{shard}:{index}" for shard, index in self._indexes.items())
        return f"as of index {shown}; {self._operations} operations written" if shown else "the log is empty"
