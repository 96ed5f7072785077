"""A client process that forks under load: parent and child go on with the one client, each with a journal of its own.

A child writes for FORK_S as the parent does, and reads. It ends by turns in one of three ways: it closes the client; it
ends at once with every answer told and nothing closed; SIGKILL with requests in flight. The judge reads the journals of
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


def are_left(journals: Path) -> bool:
    """Return whether a child still runs: a killed parent leaves it. Its pid is in a file beside its journal."""
    return any(_runs(int(file.read_text() or 0)) for file in journals.glob("*.pid"))


def _runs(pid: int) -> bool:
    try:
        return pid > 0 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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
        self._children: list[int] = []
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
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self._children]
        for wrong in [end for end in ends if end not in (0, -signal.SIGKILL)]:
            self._lines.on_refused(key_of(self._client.client_id.hex(), 0), COMMIT, f"a fork ended with {wrong}")

    def _run(self) -> None:
        for number in count(1):
            if self._stop.wait(self._every_s):
                return
            parents = self._client.client_id
            if pid := os.fork():
                self._children.append(pid)
            else:
                _child(self._client, parents, journal_of(self._journal, number), self._place, self._rate, number)


def _child(client: Client, parents: bytes, journal: Path, place: tuple[str, str], rate: float, number: int) -> None:
    """Write in a forked process, and end it."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the campaign's word is for the parent
        journal.with_suffix(".pid").write_text(str(os.getpid()))
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
