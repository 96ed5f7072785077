"""One pass over a shard's log; what it finds is a ``stratolog.drills.core.log_survey.Survey``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from replicated_db.core.errors import StopProcess
from spark_streaming.records.core import reading
from stratolog.cluster.shard_log import read_judged
from stratolog.configuration.settings import Settings
from stratolog.drills.core.log_survey import LogEntry, Survey
from stratolog.drills.core.report import StepFailed


def records_of(settings: Settings, shard: int, until: int | None = None) -> Iterator[LogEntry]:
    """Read a shard's log up to and with offset ``until``; raises StepFailed if it breaks its contract."""
    for entry, record, verdict in read_judged(settings, shard, until):
        if record is None or isinstance(verdict, StopProcess):
            raise StepFailed(f"the log of shard {shard} breaks its contract at offset {entry.offset}: {verdict}")
        yield LogEntry(
            offset=entry.offset, timestamp_ms=entry.timestamp_ms, value=entry.value, record=record, reading=verdict
        )


def survey(
    settings: Settings, shard: int, *, until: int | None = None, client_id: bytes | None = None, since: int = 0,
    stop: Callable[[LogEntry], bool] = lambda _: False, observe: Callable[[LogEntry], None] = lambda _: None,
) -> Survey:  # fmt: skip
    """Read a log up to and with offset ``until``, or up to, without, the first record for which ``stop`` is true.

    ``observe`` is called with each record that was read.
    """
    found = Survey()
    for entry in records_of(settings, shard, until):
        if stop(entry):
            break
        try:
            found.take(entry, client_id, since)
            observe(entry)
        except reading.LogBroken as error:
            raise StepFailed(f"by the auditor's rule the log of shard {shard} is broken: {error}") from error
    return found
