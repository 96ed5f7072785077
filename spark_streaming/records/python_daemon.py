"""The process that forks Spark's Python workers (``spark.python.daemon.module``): PySpark's own, for cheaper tasks.

* Before each task PySpark has Python read the list of contents of every archive on its path anew
  (``importlib.invalidate_caches``), and Spark puts a jar of 5,000 files there: 0.1 s of processor time a task, a
  quarter of what the audit's worker took on a backlog, and more than the task itself on a quiet cluster. A worker here
  forgets those archives before each task; when one is asked for a module it is found again, in the list read before.
* The libraries that each worker needs are imported once, before it is forked: workers end when they were idle for a
  minute, so an audit that wakes up had paid for that each time. Their memory is shared as well.
* What is there by then is left out of later collections of garbage: there is one after each task.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, BinaryIO
from zipimport import zipimporter

import pandas as pd
import pyarrow as pa
from pyspark import daemon, worker
from pyspark.sql.streaming import stateful_processor, stateful_processor_api_client

from schemas.codecs import codec

PRELOADED = (pd, pa, stateful_processor, stateful_processor_api_client, codec)
"""Imported for the workers."""

Task = Callable[[BinaryIO, BinaryIO], None]


def without_archives(run: Task, importers: MutableMapping[str, Any]) -> Task:
    """Return ``run`` with archives forgotten before it; ``importers`` as in ``sys.path_importer_cache``."""

    def run_task(infile: BinaryIO, outfile: BinaryIO) -> None:
        for path in [path for path, importer in importers.items() if isinstance(importer, zipimporter)]:
            del importers[path]
        run(infile, outfile)

    return run_task


def main() -> None:
    """Fork workers until Spark closes standard input."""
    daemon.worker_main = without_archives(worker.main, sys.path_importer_cache)
    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
