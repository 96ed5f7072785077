"""Spark's progress of a query, as JSON.

PySpark's own objects cost 0.6 s of processor time for each micro-batch here: Python asks Java for one field after the
other, some thousand times. As text it comes in one answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

Progress = dict[str, Any]
"""As ``StreamingQueryProgress.json`` writes it."""


class ProgressReader:
    """Reads the progress of one run of a query. For one thread."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query._jsq
        self._seen = ""

    @property
    def is_there(self) -> bool:
        """Whether the query has looked for records."""
        return self._query.lastProgress() is not None

    def new(self) -> Iterator[Progress]:
        """Yield what is new since the last call, the oldest first; of very much only the last hundred.

        A query that waits for records says so now and then, with the number of the micro-batch that is to come.
        """
        last = self._query.lastProgress()
        if last is None or last.timestamp() == self._seen:
            return
        seen, self._seen = self._seen, last.timestamp()
        for one in self._query.recentProgress():
            if one.timestamp() > seen:  # of one length, in UTC
                yield json.loads(one.json())
