"""The tables as views of one session, all as of the same indexes, and queries of a person on them.

The newest version of the operations, which are committed last, names the indexes; of each other table the newest
version is taken that holds nothing after them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_streaming.tables.core.shard_fold import OPERATIONS
from spark_streaming.tables.core.versions import Indexes, version_at
from spark_streaming.tables.definitions import TABLES
from spark_streaming.tables.delta_tables import DeltaTables, HeldCommit, is_table

MAX_ROWS = 10_000
"""Most rows of an answer: what is more belongs into a file, or is to be added up."""

_ALLOWED_COMMANDS = ("DescribeRelation", "DescribeColumn", "ShowColumns", "ShowTables", "ShowViews", "ExplainCommand",
                     "DescribeQueryCommand", "ShowFunctions", "DescribeFunction")  # fmt: skip
_CATALYST = "org.apache.spark.sql.catalyst.plans.logical"


class QueryRefused(ValueError):
    """The text is no query that may be run: the message says what is wrong with it."""


class NoTables(Exception):
    """There are no tables, or none as of the wanted indexes: the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableViews:
    """What the views show: the last index of each shard, and what the tables lack."""

    indexes: Indexes
    gaps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """The rows of a query; ``has_more``: there were more than MAX_ROWS."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    has_more: bool


def open_views(session: SparkSession, root: Path, wanted: Indexes | None = None) -> TableViews:
    """Register each table as a view of its name, as of the newest indexes or of the wanted ones.

    Raises NoTables if nothing is that old, or if there is nothing at all.
    """
    check_tables(root)
    tables = DeltaTables(session, root)
    histories = {one.name: tables.history(one.name) for one in TABLES if tables.exists(one.name)}
    held = _named(histories[OPERATIONS].commits, wanted, root)
    indexes = held.as_version().indexes
    for name, history in histories.items():
        version = version_at([one.as_version() for one in history.commits], indexes)
        tables.read(name, history.readable(version)).createOrReplaceTempView(name)
    gaps = tuple(gap for _, one in sorted(held.positions.items()) for gap in one.gaps)
    return TableViews(indexes=indexes, gaps=gaps)


def check_tables(root: Path) -> None:
    """Raise NoTables if a directory has no tables; needs no Spark."""
    if not is_table(root / OPERATIONS):
        raise NoTables(f"there are no tables in {root}: 'stratolog tables' makes and keeps them")


def _named(commits: list[HeldCommit], wanted: Indexes | None, root: Path) -> HeldCommit:
    """Return the newest commit of the operations that holds nothing after the wanted indexes."""
    if not commits:
        raise NoTables(f"the tables in {root} are empty yet: 'stratolog tables' fills them")
    chosen = version_at([one.as_version() for one in commits], wanted or {})
    if chosen is None:
        oldest = shown_indexes(commits[-1].as_version().indexes)
        raise NoTables(f"no version is that old: the tables in {root} can be read from {oldest} on")
    return next(one for one in commits if one.version == chosen.version)


def shown_indexes(indexes: Indexes) -> str:
    """Return indexes as ``--at`` takes them.

    >>> shown_indexes({1: 4, 0: 17})
    '0:17,1:4'
    """
    return ",".join(f"{shard}:{index}" for shard, index in sorted(indexes.items()))


def answer(session: SparkSession, text: str, limit: int = MAX_ROWS) -> QueryAnswer:
    """Run one query; raises QueryRefused for what is wrong, or would change something."""
    check_query(session, text)
    try:
        found = session.sql(text)
        rows = found.limit(limit + 1).collect()
    except PySparkException as error:
        raise QueryRefused(_reason(error)) from error
    twice = sorted({name for name in found.columns if found.columns.count(name) > 1})
    if twice:
        raise QueryRefused(
            f"two columns of the answer are named {', '.join(twice)}: name one of them otherwise, with AS"
        )
    return QueryAnswer(
        columns=tuple(found.columns), rows=[tuple(row) for row in rows[:limit]], has_more=len(rows) > limit
    )


def check_query(session: SparkSession, text: str) -> None:
    """Raise QueryRefused unless the text is one query, or a question about the tables' columns.

    It guards against slips. Whoever may write the tables' files can do so by other means.
    """
    try:
        plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except PySparkException as error:
        raise QueryRefused(_reason(error)) from error
    changing = ("Command", "InsertIntoStatement", "ParsedStatement", "UnaryParsedStatement")
    jvm: Any = session.sparkContext._jvm
    kinds = [jvm.java.lang.Class.forName(f"{_CATALYST}.{name}") for name in changing]
    for node in _nodes(plan):
        name = node.getClass().getSimpleName()
        if name not in _ALLOWED_COMMANDS and any(kind.isInstance(node) for kind in kinds):
            raise QueryRefused(f"{name} is no query: tables are read here, with SELECT, DESCRIBE or SHOW TABLES")


def _nodes(plan: Any) -> list[Any]:
    children = plan.children()
    return [plan, *(node for n in range(children.size()) for node in _nodes(children.apply(n)))]


def _reason(error: PySparkException) -> str:
    """Return the part of Spark's message that a person needs: without the plan and the stack."""
    lines = str(error).splitlines()
    ends = [n for n, line in enumerate(lines) if line.startswith(("'", "JVM stacktrace", "== SQL", "+-"))]
    return " ".join(line.strip() for line in lines[: ends[0] if ends and ends[0] else len(lines)] if line.strip())[
        :1000
    ]
