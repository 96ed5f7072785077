"""A client process that forks under load: parent and child go on with the one client, each with a journal of its own.

A child writes for FORK_S as the parent does, and reads. It ends by turns in one of three ways: it closes the client; it
ends at once with every answer told and nothing closed; SIGKILL with requests in flight. It dies with its parent. The judge reads the journals of
all. A child whose client has the parent's id, or that fails, ends with another status, which its parent journals.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from producers import Client
from stratolog.drills.kit.core.journal import COMMIT, key_of
from stratolog.drills.kit.journal_file import JournalFile
from stratolog.drills.kit.writer import ChainWriter
from stratolog.local.tether import tether

FORK_S = 1.5
"""How long a child writes."""
IN_FLIGHT = 4
"""Chains of requests of a child."""
CLOSED, LEFT, KILLED = range(3)
WAYS = (CLOSED, LEFT, KILLED)
"""How children end, in turn."""


def journal_of(parent: Path, number: int) -> Path:
    """Return the journal of a child, named with its parent's."""
    return parent.with_name(f"{parent.stem}-fork-{number}.journal")


class Forks:
    """The children of one client process, one every ``every_s`` (0: none), while its ``with`` block runs."""

    def __init__(
        self, client: Client, lines: JournalFile, journal: Path, place: tuple[str, str], *, every_s: float, rate: float
    ) -> None:  # fmt: skip
        """``lines`` is the parent's journal, in the file ``journal``; ``place``: volume and bucket."""
        self._client = client
        self._lines = lines
        self._journal = journal
        self._place = place
        self._every_s = every_s
        self._rate = rate
        self._stop = threading.Event()
        self._ends: list[int] = []
        self._thread = threading.Thread(target=self._run, name="forks")

    def __enter__(self) -> Self:
        """Begin to fork."""
        if self._every_s:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the children; one that has failed is a refusal in the parent's journal."""
        self._stop.set()
        if self._every_s:
            self._thread.join()
        for wrong in [end for end in self._ends if end not in (0, -signal.SIGKILL)]:
            self._lines.on_refused(key_of(self._client.client_id.hex(), 0), COMMIT, f"a fork ended with {wrong}")

    def _run(self) -> None:
        children: list[int] = []
        for number in count(1):
            if self._stop.wait(self._every_s):
                break
            parents, parent = self._client.client_id, os.getpid()
            if pid := os.fork():
                children.append(pid)
            else:
                journal = journal_of(self._journal, number)
                _child(self._client, parents, parent, journal, self._place, self._rate, number)
        # Here, since children are tethered to the thread that forked them.
        self._ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def _child(
    client: Client, parents: bytes, parent: int, journal: Path, place: tuple[str, str], rate: float, number: int
) -> None:  # fmt: skip
    """Write in a forked process, and end it; ``parents`` is the client id of the process ``parent``."""
    status = 1
    try:
        if not tether(parent):
            os._exit(status)
        if client.client_id == parents:
            raise RuntimeError("a forked client has its parent's id")
        writer = ChainWriter(
            client, JournalFile(journal, client.client_id.hex(), *place), volume=place[0], bucket=place[1],
            in_flight=IN_FLIGHT,
        )  # fmt: skip
        way = WAYS[number % len(WAYS)]
        end = (lambda: os.kill(os.getpid(), signal.SIGKILL)) if way == KILLED else writer.stop.set
        timer = threading.Timer(FORK_S, end)
        timer.daemon = True
        timer.start()
        if client.bucket_info(*place).info.bucket != place[1]:
            raise RuntimeError("a forked client was told of another bucket")
        writer.run(rate)
        if way == CLOSED:
            client.close()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
