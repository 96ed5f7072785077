"""The process that forks Spark's Python workers (``spark.python.daemon.module``): PySpark's own, for cheaper tasks.

* Before each task PySpark has Python read the list of contents of every archive on its path anew
  (``importlib.invalidate_caches``), and Spark puts a jar of 5,000 files there: 0.1 s of processor time a task, a
  quarter of what the audit's worker took on a backlog, and more than the task itself on a quiet cluster. A worker here
  forgets those archives before each task; when one is asked for a module it is found again, in the list read before.
* The libraries that each worker needs are imported once, before it is forked: workers end when they were idle for a
  minute, so an audit that wakes up had paid for that each time. Their memory is shared as well.
* PySpark forks for all who connect to its port, and waits for the proof in the fork, for ever. A fork here waits for
  ``PROOF_S``, and takes as many bytes as a proof has; with MOST_WORKERS there nobody else is taken.
* A worker waits for Spark's answers about its state for STATE_ANSWER_S. PySpark waits for ever: Spark's port for them
  hears the peer that connects first, and a stranger would hold the micro-batch up.
* What is there by then is left out of later collections of garbage: there is one after each task.
"""

from __future__ import annotations

import errno
import gc
import hmac
import os
import socket
import sys
import traceback
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from zipimport import zipimporter

import pandas as pd
import pyarrow as pa
from pyspark import daemon, worker
from pyspark.sql.streaming import stateful_processor, stateful_processor_api_client

from schemas.codecs import codec

PRELOADED = (pd, pa, stateful_processor, stateful_processor_api_client, codec)
"""Imported for the workers."""

PROOF_S = 5.0
"""How long a peer that has connected may be silent before it has proved that it is Spark's Java."""
MOST_WORKERS = 64
"""Workers at once, those for strangers among them."""
STATE_ANSWER_S = 300.0
"""How long an answer about a task's state may take: the task fails then, and with it the query."""
SECRET = "PYTHON_WORKER_FACTORY_SECRET"  # noqa: S105 - the variable's name

Worker = Callable[[socket.socket, bool], int]
Task = Callable[[BinaryIO, BinaryIO], None]


def without_archives(run: Task, importers: MutableMapping[str, Any]) -> Task:
    """Return ``run`` with archives forgotten before it; ``importers`` as in ``sys.path_importer_cache``."""

    def run_task(infile: BinaryIO, outfile: BinaryIO) -> None:
        for path in [path for path, importer in importers.items() if isinstance(importer, zipimporter)]:
            del importers[path]
        run(infile, outfile)

    return run_task


def proven_first(run: Worker) -> Worker:
    """Return ``run`` behind a proof: the secret with its length in four bytes, as Spark's Java sends it first."""

    def run_worker(sock: socket.socket, authenticated: bool) -> int:
        if not authenticated and not is_proven(sock, os.environ[SECRET].encode()):
            sock.close()
            return 1
        return run(sock, True)

    return run_worker


def is_proven(sock: socket.socket, secret: bytes) -> bool:
    """Hear a proof, and answer it; say whether it is right."""
    wanted = len(secret).to_bytes(4, "big") + secret
    given = b""
    try:
        sock.settimeout(PROOF_S)
        while len(given) < len(wanted):
            if not (piece := sock.recv(len(wanted) - len(given))) or not wanted.startswith((given + piece)[:4]):
                return False
            given += piece
        if not hmac.compare_digest(given, wanted):
            return False
        sock.settimeout(None)
        sock.sendall((2).to_bytes(4, "big") + b"ok")
    except OSError:
        return False
    return True


def impatient(connect: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of the client of Spark's state, with a time-out for its answers."""

    def connect_within(client: Any, *arguments: Any, **named: Any) -> None:
        connect(client, *arguments, **named)
        client._client_socket.settimeout(STATE_ANSWER_S)

    return connect_within


def print_defect() -> None:
    """Print the error that is being handled, as PySpark does for a fork, but for a peer that has gone: any may go."""
    if not isinstance(sys.exception(), ConnectionError):
        traceback.print_exc()


class BoundedSocket(socket.socket):
    """The daemon's socket: a connection is closed while this process has MOST_WORKERS children."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Return a connection; raises InterruptedError, upon which the daemon goes on, for one that was closed."""
        sock, address = super().accept()
        if len(children()) >= MOST_WORKERS:
            sock.close()
            raise InterruptedError(errno.EINTR, "too many workers")
        return sock, address


def children() -> list[str]:
    """Return the ids of what this process's first thread has forked; none where the system cannot say."""
    try:
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:
        return []


def main() -> None:
    """Fork workers until Spark closes standard input."""
    state_client = stateful_processor_api_client.StatefulProcessorApiClient
    state_client.__init__ = impatient(state_client.__init__)  # type: ignore[method-assign]
    daemon.worker = proven_first(daemon.worker)
    vars(daemon)["traceback"] = SimpleNamespace(print_exc=print_defect)
    vars(daemon)["socket"] = SimpleNamespace(socket=BoundedSocket)
    daemon.worker_main = without_archives(worker.main, sys.path_importer_cache)
    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
