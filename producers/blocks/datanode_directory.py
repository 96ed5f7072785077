"""The datanodes of each pipeline, as the Object Manager reports them (design, section 8).

What belongs here: ``GET /v1/pipelines`` with its cache. The cache is refreshed for an unknown pipeline, and when a
writer met a failure, but not more often than every MIN_REFRESH_MS. If nobody answers, the cached answer stays. A
datanode that is dead and has not moved costs readers one question each SILENT_MS.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from producers.errors import RequestFailed, RetryableError
from producers.reads.reads import Reads
from schemas.records.datanode import Member
from schemas.result_codes import INTERNAL_ERROR
from schemas.stream_errors import NO_SUCH_PIPELINE
from transport.processes import begins_anew_in_forks
from transport.waiting.deadline import Deadline

PATH = "/v1/pipelines"
CONTAINERS_PATH = "/v1/containers"
STATUS_PATH = "/status"
"""Used for the cluster's name if the list of pipelines does not have it."""
MIN_REFRESH_MS = 200
SILENT_MS = 5_000
"""After an Object Manager did not answer, a failing datanode is no reason to ask again for this long. After an answer
that a datanode has not moved, readers do not ask about it again for this long.
"""
TRY_MS = 2_000
"""Time limit of a question that is asked because a datanode failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """A pipeline as the Object Manager knows it; ``partition`` is that of ``dn.log``."""

    pipeline: str
    partition: int
    state: str
    members: tuple[Member, ...]

    @property
    def majority(self) -> int:
        """Members that are more than half."""
        return len(self.members) // 2 + 1


class Directory:
    """The pipelines by name; safe to share between threads."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._known: dict[str, PipelineView] = {}
        self._asked_at_s = float("-inf")
        self._failed_at_s = float("-inf")
        self._cluster = ""
        self._gives_tokens: bool | None = None
        self._confirmed: dict[str, tuple[str, float]] = {}
        """Address of each datanode that could not be reached although it has not moved, and when the Object Manager
        said so (seconds).
        """
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """In a forked process, make a lock that nobody holds; what is known stays known."""
        self._lock = threading.Lock()

    def pipeline(self, name: str) -> PipelineView:
        """Return a pipeline; an unknown one is asked for.

        Raises RetryableError if the Object Manager does not know it either, or as
        :meth:`producers.reads.reads.Reads.get` does.
        """
        found = self._known.get(name)
        if found is None:
            self.refresh()
            found = self._known.get(name)
        if found is None:
            raise RetryableError(NO_SUCH_PIPELINE, f"the Object Manager knows no pipeline {name!r}")
        return found

    @property
    def has_said_tokens(self) -> bool:
        """Whether the Object Manager has said, as far as it was asked, that it gives block tokens."""
        return bool(self._gives_tokens)

    def gives_tokens(self) -> bool:
        """Return whether the Object Manager gives block tokens; it is asked once. Nobody answers: False."""
        if self._gives_tokens is None:
            self.try_refresh()
        return bool(self._gives_tokens)

    def cluster_name(self) -> str:
        """Return the name of the cluster, which HELLO carries to datanodes; raises as :meth:`refresh`."""
        if not self._cluster:
            self.refresh()
        if not self._cluster:
            self._cluster = str(self._reads.get(STATUS_PATH, {}, "stale").get("cluster", ""))
        return self._cluster

    def refresh(self, *, deadline: Deadline | None = None) -> None:
        """Ask again, unless the last question is too recent."""
        with self._lock:
            if self._known and time.monotonic() - self._asked_at_s < MIN_REFRESH_MS / 1000:
                return
            self._ask(deadline)

    def _ask(self, deadline: Deadline | None) -> None:
        asked_at_s = time.monotonic()
        try:
            answer = self._reads.get(PATH, {}, "stale", deadline=deadline)
            try:
                self._known = self._known | {view.pipeline: view for view in map(_view, answer["pipelines"])}
            except (KeyError, TypeError, ValueError) as error:
                raise RequestFailed(
                    INTERNAL_ERROR, f"GET {PATH}: the answer cannot be understood: {error!r}"
                ) from error
            self._cluster = str(answer.get("cluster", "")) or self._cluster
            self._gives_tokens = answer.get("block_tokens") is True
            self._failed_at_s = float("-inf")
        except BaseException:
            self._failed_at_s = time.monotonic()
            raise
        finally:
            self._asked_at_s = asked_at_s

    def _silent(self) -> bool:
        """Whether the Object Manager just failed to answer, so that a failing datanode is no reason to wait for it
        again.
        """
        return time.monotonic() - self._failed_at_s < SILENT_MS / 1000

    def holders(self, container_id: int) -> list[Member]:
        """Return the present holders of a container, none if nobody knows.

        After copying, others than the pipeline's members hold it.
        """
        try:
            answer = self._reads.get(
                f"{CONTAINERS_PATH}/{container_id}", {}, "stale", deadline=Deadline.after_ms(TRY_MS)
            )
            return [_member(replica) for replica in answer["replicas"]]
        except (RetryableError, RequestFailed, KeyError, TypeError):
            return []

    def try_refresh(self) -> None:
        """As :meth:`refresh`, but with a short time limit; without an answer, or after an unreadable one, nothing
        changes.
        """
        if not self._silent():
            with suppress(RetryableError, RequestFailed):
                self.refresh(deadline=Deadline.after_ms(TRY_MS))

    def known(self, view: PipelineView) -> PipelineView:
        """Return a pipeline as it was last reported, without asking; ``view`` itself if it was never reported."""
        return self._known.get(view.pipeline, view)

    def current(self, view: PipelineView) -> PipelineView:
        """Return the present state of a pipeline in which a datanode is gone: it may have other addresses.

        Return ``view`` itself if nobody knows.

        An answer from before the call is too old. If the last question was just asked, this waits until the next one is
        allowed.
        """
        called_at_s = time.monotonic()
        while True:
            with self._lock:
                if self._asked_at_s >= called_at_s or self._silent():
                    break
                left_s = self._asked_at_s + MIN_REFRESH_MS / 1000 - time.monotonic()
                if left_s <= 0:
                    with suppress(RetryableError, RequestFailed):
                        self._ask(Deadline.after_ms(TRY_MS))
                    break
            # Sleep without the lock: others may find what they need without asking.
            time.sleep(left_s)
        return self.known(view)

    def whereabouts(self, view: PipelineView, member: Member, *, again: bool) -> Member:
        """Return the present state of a member of ``view``, for a reader that could not reach it.

        It asks as :meth:`current` does, but a datanode that is known to be dead does not cost each read a question:
        within SILENT_MS of an answer that the datanode has not moved, it asks only with ``again``.
        """
        address, confirmed_at_s = self._confirmed.get(member.datanode, ("", 0.0))
        fresh = address == member.address and time.monotonic() - confirmed_at_s < SILENT_MS / 1000
        now = self.known(view) if fresh and not again else self.current(view)
        found = next((one for one in now.members if one.datanode == member.datanode), member)
        if found.address == member.address and not fresh and not self._silent():
            self._confirmed[member.datanode] = (member.address, time.monotonic())
        return found


def _view(value: dict[str, object]) -> PipelineView:
    members = value["members"]
    if not isinstance(members, list):
        raise TypeError(f"members of {value['pipeline']!r} are no list")
    return PipelineView(
        pipeline=str(value["pipeline"]),
        partition=int(str(value["partition"])),
        state=str(value["state"]),
        members=tuple(map(_member, members)),
    )


def _member(value: dict[str, object]) -> Member:
    return Member(
        datanode=str(value["datanode"]),
        address=str(value["address"]),
        http_address=str(value["http_address"]),
        rack=str(value["rack"]),
    )
