"""What a client knows of silent members, asked by all its blocks (decision 0082).

What belongs here: the shell around :class:`producers.blocks.core.silent_datanodes.SilentDatanodes`: its lock, its clock
and its probes. A probe is a thread of its own that asks one datanode for a HELLO: whoever writes does not wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from producers.blocks.core.silent_datanodes import Place, SilentDatanodes
from schemas.records.datanode import Member
from transport.processes import begins_anew_in_forks


class SilentMembers:
    """The silent datanodes of one client; for many threads."""

    def __init__(self, probe: Callable[[Member], object]) -> None:
        """``probe`` asks a datanode for a HELLO, and calls :meth:`on_silent` or :meth:`on_answered`."""
        self._probe = probe
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """Know nobody to be silent: the probes that are under way at a fork are the first process's."""
        self._lock = threading.Lock()
        self._known = SilentDatanodes()

    def among(self, members: Sequence[Member]) -> set[str]:
        """Return the names of those members that are silent. Those that are due are asked again meanwhile."""
        if not self._known:
            return set()
        now_s = time.monotonic()
        with self._lock:
            silent = self._known.silent(map(_place, members), now_s)
            due = self._known.due(map(_place, members), now_s)
        self._begin(members, due)
        return {name for name, _ in silent}

    def suspect(self, members: Sequence[Member]) -> None:
        """Have members asked for a HELLO, because they are waited for; returns at once."""
        with self._lock:
            claimed = self._known.suspect(map(_place, members), time.monotonic())
        self._begin(members, claimed)

    def on_silent(self, member: Member) -> None:
        """Note that a datanode was asked for a HELLO and let the time pass."""
        with self._lock:
            self._known.on_silent(_place(member), time.monotonic())

    def on_answered(self, member: Member) -> None:
        """Note that a datanode said HELLO, or refused."""
        with self._lock:
            self._known.on_answered(_place(member))

    def _begin(self, members: Sequence[Member], places: Sequence[Place]) -> None:
        for member in members:
            if _place(member) in places:
                name = f"stratolog-probe-{member.datanode}"
                with suppress(RuntimeError):  # no thread to be had: the probe counts as lost, and is made again
                    threading.Thread(target=self._probe, args=(member,), name=name, daemon=True).start()


def _place(member: Member) -> Place:
    return member.datanode, member.address
