"""A client process that forks under load: parent and child go on with the one client, each with a journal of its own.

A child writes for FORK_S as the parent does, and then reads keys that its parent has put. It ends by turns in one of three ways: it closes the client; it
ends at once with every answer told and nothing closed; SIGKILL with requests in flight. It dies with its parent. The judge reads the journals of
all. A child whose client has the parent's id, or that fails, ends with another status, which its parent journals.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from producers import Client
from producers.errors import RequestFailed, StratologError
from stratolog.drills.kit.core.journal import ACKNOWLEDGED, CHAINS, COMMIT, PUT, Journal, key_of, number_of
from stratolog.drills.kit.journal_file import JournalFile, read_journal
from stratolog.drills.kit.writer import ChainWriter
from stratolog.local.tether import tether
from transport.waiting.deadline import Deadline

FORK_S = 1.5
"""How long a child writes."""
IN_FLIGHT = 4
"""Chains of requests of a child."""
READ_KEYS = 20
"""Keys of its parent's that a child reads."""
DOWN_S = 100.0
"""How long nodes or brokers may be down."""
RETRY_S = 0.2
CLOSED, LEFT, KILLED = range(3)
WAYS = (CLOSED, LEFT, KILLED)
"""How children end, in turn."""


def journal_of(parent: Path, number: int) -> Path:
    """Return the journal of a child, named with its parent's."""
    return parent.with_name(f"{parent.stem}-fork-{number}.journal")


def lasting_puts(journal: Journal) -> Iterator[tuple[str, bytes]]:
    """Yield the keys that were put and acknowledged, and with which nothing else is ever done, with their bytes."""
    alone = CHAINS.index(PUT)
    for key, steps in journal.keys.items():
        data = journal.data(key, PUT)
        if number_of(key) % len(CHAINS) == alone and steps == {PUT: ACKNOWLEDGED} and data is not None:
            yield key, data


def read_puts(client: Client, journal: Path, place: tuple[str, str]) -> None:
    """Read the last keys of a journal that stay; raises RuntimeError if one has other bytes."""
    found = read_journal(journal)
    for key, data in list(lasting_puts(found))[-READ_KEYS:] if found else ():
        if patiently(lambda key=key: client.open(f"/{'/'.join(place)}/{key}").read()) != data:  # type: ignore[misc]
            raise RuntimeError(f"{key} was read with other bytes")


def patiently(read: Callable[[], bytes]) -> bytes:
    """Read, and again for as long as nodes or brokers may be down; a refusal is final."""
    deadline = Deadline.after_s(DOWN_S)
    while True:
        try:
            return read()
        except RequestFailed:
            raise
        except (StratologError, OSError):
            if deadline.has_passed:
                raise
            time.sleep(RETRY_S)


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
                self._child(parents, parent, number)
        # Here, since children are tethered to the thread that forked them.
        self._ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]

    def _child(self, parents: bytes, parent: int, number: int) -> None:
        """Write in a forked process, and end it; ``parents`` is the client id of the process ``parent``."""
        client, place, path = self._client, self._place, journal_of(self._journal, number)
        status = 1
        try:
            if not tether(parent):
                os._exit(status)
            if client.client_id == parents:
                raise RuntimeError("a forked client has its parent's id")
            writer = ChainWriter(
                client, JournalFile(path, client.client_id.hex(), *place), volume=place[0], bucket=place[1], in_flight=IN_FLIGHT
            )  # fmt: skip
            way = WAYS[number % len(WAYS)]
            end = (lambda: os.kill(os.getpid(), signal.SIGKILL)) if way == KILLED else writer.stop.set
            timer = threading.Timer(FORK_S, end)
            timer.daemon = True
            timer.start()
            writer.run(self._rate)
            read_puts(client, self._journal, place)
            if way == CLOSED:
                client.close()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
