"""``stratolog sql``: one query on the log's tables (docs/log-as-data.md)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratolog.commands.common.invocation import JsonOption, settings_of
from stratolog.commands.common.output import notes, print_json, print_table, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.commands.tables.spark_here import table_session, tables_dir
from stratolog.commands.tables.tables import DirOption
from stratolog.errors import UsageError, UserError

if TYPE_CHECKING:
    from spark_streaming.tables.reading_tables import QueryAnswer, TableViews


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sql")(command)


def command(
    context: typer.Context,
    *,
    query: Annotated[str, typer.Argument(help="A query in Spark's SQL, for example SELECT * FROM usage_by_bucket.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="INDEX", help="As of an index of the log (of all shards), or SHARD:INDEX[,...]."),
    ] = None,
    directory: DirOption = None,
    memory: Annotated[str, typer.Option(help="Memory of Spark's Java process, as Java writes it.")] = "1g",
    as_json: JsonOption = False,
) -> None:
    """Ask the tables that 'stratolog tables' keeps; they are read alone, so no cluster need run.

    Tables: effective_operations, keys_current, usage_by_bucket, file_sizes, growth; DESCRIBE TABLE tells their columns.
    All are shown as of the same indexes. --at shows the newest version that holds nothing after an index, and says
    which that is; versions are kept for seven days. With --json one object a line.
    """
    settings = settings_of(context)
    from spark_streaming.tables.core.versions import parse_indexes
    from spark_streaming.tables.reading_tables import NoTables, QueryRefused, answer, check_tables, open_views

    root = tables_dir(settings, directory)
    try:
        wanted = None if at is None else parse_indexes(at)
    except ValueError as error:
        raise UsageError(f"--at: {error}") from error
    try:
        check_tables(root)
        with interruptible("there is no answer; nothing was changed"), progress(as_json) as report:
            report("starting Spark")
            with table_session(settings, memory=memory, is_short=True) as (session, _):
                report("reading")
                views = open_views(session, root, wanted)
                found = answer(session, query)
    except (NoTables, QueryRefused) as error:
        raise UserError(str(error)) from error
    _tell_views(views, is_told=at is not None)
    _print(found, as_json=as_json)


def _tell_views(views: TableViews, *, is_told: bool) -> None:
    """Say on standard error what the answer rests on."""
    from spark_streaming.tables.reading_tables import shown_indexes

    if is_told:
        _note(f"as of index {shown_indexes(views.indexes)}")
    for gap in views.gaps:
        _note(f"incomplete: {gap}")


def _note(text: str) -> None:
    notes.print(text, markup=False, highlight=False, soft_wrap=True)


def _print(found: QueryAnswer, *, as_json: bool) -> None:
    if as_json:
        for row in found.rows:
            print_json({name: plain(value) for name, value in zip(found.columns, row, strict=True)})
    else:
        print_table("", found.columns, [list(map(shown, row)) for row in found.rows])
    if found.has_more:
        _note(f"only the first {len(found.rows)} rows are shown: add up, or use LIMIT")


def plain(value: Any) -> Any:
    """Return a value of Spark's as JSON has it: times in ISO 8601, bytes in hexadecimal.

    >>> plain({"at": date(2025, 6, 15), "key": bytearray(b"a")})
    {'at': '2025-06-15', 'key': '61'}
    """
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def shown(value: Any) -> str | None:
    """Return a value as a table shows it."""
    return None if value is None else str(plain(value))
