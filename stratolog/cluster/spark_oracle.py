"""The audit's batch oracle in this process: Spark recomputes a shard's digest, and uses no claimed hash of the log."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.settings.declaring import slice_of
from schemas.settings.table import AuditSettings
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.local.jars import spark_jars

if TYPE_CHECKING:
    from spark_streaming.batch.core.computed import ShardDigest

Oracle = Callable[..., "ShardDigest"]
"""``oracle(shard, until=None)`` returns the digest after offset ``until``, or at the log's present end."""


@contextmanager
def open_oracle(settings: Settings, report: Callable[[str], None]) -> Iterator[Oracle]:
    """Start Spark, and yield a function that returns the oracle's digest of a shard.

    Raises UserError for a broken log.
    """
    from spark_streaming.batch import counting, oracle
    from spark_streaming.configuration.audit_config import AuditConfig
    from spark_streaming.records import sources
    from spark_streaming.records.logs import OBJECT_MANAGER
    from spark_streaming.records.session import build_session

    report("starting Spark")
    with tempfile.TemporaryDirectory(prefix="stratolog-oracle-") as scratch:
        folder = Path(scratch)
        config = AuditConfig(
            **slice_of(AuditSettings, settings),
            bootstrap_servers=settings.connection,
            work_dir=folder,
            jars=tuple(spark_jars(settings.cache_dir)),
        )
        # Spark prints warnings when it starts, and leaves a folder in its working directory.
        with stderr_to(folder / "spark.log"), chdir(folder):
            session = build_session(config.spark())
        log = OBJECT_MANAGER
        source = sources.KafkaSource(bootstrap_servers=config.bootstrap_servers, topics={log.topic: log.name})

        def compute(shard: int, until: int | None = None) -> ShardDigest:
            condition = f"shard = {shard}" if until is None else f"shard = {shard} and offset <= {until}"
            records = sources.bounded(session, source).where(condition)
            effective = counting.effective_records(records).persist()
            try:
                broken = effective.where("broken is not null").collect()
                if broken:
                    raise UserError(
                        f"the log of shard {shard} is broken at offset {broken[0].offset}: {broken[0].broken}"
                    )
                if (base := counting.first_bases(effective).get(shard)) is not None:
                    raise UserError(
                        f"the log of shard {shard} was trimmed, and is known from index {base.index} on (offset "
                        f"{base.offset}): it does not say what all rows are. A base can be taken from the replicas: "
                        f"stratolog admin digest-base {shard} --from-replicas"
                    )
                if (late_from := counting.first_logged_requests(effective).get(shard)) is not None:
                    raise UserError(
                        f"shard {shard} has requests under late validation from offset {late_from} on: the log does "
                        "not say what its rows are. A base can be taken from the replicas: stratolog admin "
                        f"digest-base {shard} --from-replicas"
                    )
                computed, _ = oracle.check(records, log.column_families, effective, counting.ends(effective))
            finally:
                effective.unpersist()
            if shard not in computed:
                raise UserError(f"the log of shard {shard} is empty")
            return computed[shard]

        try:
            yield compute
        finally:
            session.stop()


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Send the standard error of processes that are started meanwhile to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with log.open("ab") as target:
            os.dup2(target.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
