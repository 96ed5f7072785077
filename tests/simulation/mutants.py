"""Planted bugs: each takes one rule out of the product while a block runs, by putting a changed function in its place.

The judge (``truth``) shares nothing with what is changed here. A simulation that does not find each of them within a bounded number of seeds
proves little when it finds nothing in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from om_processors.intake.direct_calls import DirectCalls
from replicated_db.core.applying import apply, replica
from replicated_db.core.execution import calls, retry
from replicated_db.core.execution.calls import judge_call
from replicated_db.core.leading import leader
from replicated_db.core.leading.in_flight import RecordsInFlight
from replicated_db.core.leading.leader import Leader, Reply, Wait
from replicated_db.core.leading.requests_builder import RequestsBuilder
from replicated_db.core.log import reading
from replicated_db.core.log.reading import Reading, judge
from replicated_db.core.ports import StoreView
from replicated_db.core.tables.overlay import Overlay
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.read_index import ReadIndex
from schemas.codecs.codec import decode
from tests.simulation.cluster import Node

MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(make: Callable[[], Iterator[None]]) -> Callable[[], Any]:
    """Register a context manager under the words of its name."""
    MUTANTS[make.__name__.replace("_", " ")] = found = contextmanager(make)
    return found


def _reads(wrong: dict[Reading, Reading]) -> Any:
    """Make every replica read some of what is void as counting."""

    def judged(position: Any, record: Any) -> Reading:
        found = judge(position, record)
        return wrong.get(found, found)

    return patch.object(replica, "judge", judged)


@mutant
def nonce_check_off() -> Iterator[None]:
    with _reads({Reading.TWIN: Reading.COUNTS}):
        yield


@mutant
def seq_check_off() -> Iterator[None]:
    with _reads({Reading.GAP: Reading.COUNTS, Reading.DUPLICATE: Reading.COUNTS}):
        yield


@mutant
def void_rule_off() -> Iterator[None]:
    """What a stale leader appends counts."""
    with _reads({Reading.STALE_TERM: Reading.COUNTS}):
        yield


@mutant
def contiguity_check_off() -> Iterator[None]:
    """A leader takes an error-free report for effective wherever the record lies, and the replica does not mind the gap."""
    settle, advance = RecordsInFlight._settle, RecordsInFlight._advance

    def without_reading(self: RecordsInFlight) -> Any:
        entry = self._in_flight[0] if self._in_flight else None
        if entry is not None and entry.report is not None:
            self._last_offset = entry.report.offset - 1
        return advance(self)

    def settled(self: RecordsInFlight, entry: Any, offset: int) -> Any:
        self._replica.read_offset = max(self._replica.read_offset, offset - 1)
        return settle(self, entry, offset)

    with patch.object(RecordsInFlight, "_advance", without_reading), patch.object(RecordsInFlight, "_settle", settled):
        yield


@mutant
def error_answered_before_its_batch_is_effective() -> Iterator[None]:
    take = Leader.take

    def hasty(self: Leader, proposal: Any, elapsed_ms: int) -> Reply | Wait | None:
        before = self.building
        said = take(self, proposal, elapsed_ms)
        batch = self._operations.batch
        if said is not None or batch is None or self.building == before:
            return said
        last = batch.replies[-1]
        return last if decode(last.response).status != "OK" else None

    with patch.object(Leader, "take", hasty):
        yield


@mutant
def merge_without_in_batch_visibility() -> Iterator[None]:
    merge = apply._Planner.merge

    def blind(self: Any, number: int, operation: Any) -> None:
        self.rows.pop((operation.cf, operation.key), None)
        merge(self, number, operation)

    with patch.object(apply._Planner, "merge", blind):
        yield


@mutant
def retry_rows_not_in_the_batch() -> Iterator[None]:
    with patch.object(apply, "rows_of", lambda batch: []):
        yield


@mutant
def prev_not_compared_on_apply() -> Iterator[None]:
    with patch.object(apply._Planner, "_contradict", lambda *_: None):
        yield


@mutant
def expiry_by_local_clock() -> Iterator[None]:
    """The leader asks its own wall clock, instead of the batch's time, whether a request has expired."""
    lead = Node._lead

    def leading(self: Node) -> None:
        self.service.clock = self.clock  # type: ignore[attr-defined]
        lead(self)

    def taken(self: Leader, proposal: Any, elapsed_ms: int) -> Reply | Wait | None:
        local_ms = self._service.clock.wall_ms()  # type: ignore[attr-defined]
        with patch.object(calls, "is_expired", lambda sent_ms, _: retry.is_expired(sent_ms, local_ms)):
            return take(self, proposal, elapsed_ms)

    take = Leader.take
    with patch.object(Node, "_lead", leading), patch.object(Leader, "take", taken):
        yield


@mutant
def non_monotonic_timestamp() -> Iterator[None]:
    with patch.object(Leader, "timestamp_ms", lambda self, elapsed_ms: self._clock_offset_ms + elapsed_ms):
        yield


@mutant
def floors_not_asked() -> Iterator[None]:
    """Retry rows go early, but a call below its client's floor is executed all the same."""
    with patch.object(calls, "is_below_floor", lambda *_: False):
        yield


@mutant
def overlay_kept_after_step_down() -> Iterator[None]:
    """The next claim of a node begins with what its last one had not seen effective."""
    kept: dict[int, Any] = {}

    class Kept(Overlay):
        def __init__(self, base: StoreView) -> None:
            super().__init__(base)
            self.before: dict[Any, Any] = {}
            if (last := kept.get(id(base))) is not None:
                self.before = {**last.before, **last._in_flight()}
            kept[id(base)] = self
            self.known.update(self.before)

    with patch.object(leader, "Overlay", Kept):
        yield


@mutant
def overlay_layer_dropped_before_its_write_is_visible() -> Iterator[None]:
    """A layer goes when its batch is appended."""

    class Hasty(Overlay):
        def open_layer(self, number: int) -> None:
            while self._layers:
                super().drop_layer(self._layers[0][0])
            super().open_layer(number)

        def drop_layer(self, number: int) -> None:
            if self._layers and self._layers[0][0] == number:
                super().drop_layer(number)

    with patch.object(leader, "Overlay", Hasty):
        yield


@mutant
def read_index_from_a_stale_broker() -> Iterator[None]:
    """A replica takes the log's end, as its own broker gives it, for the read index, and asks no leader."""

    def own_end(self: Node, *_: Any) -> ReadIndex:
        return ReadIndex(offset=self.log._end() - 1, record_hash=b"")

    with patch.object(Node, "_read_index", own_end), patch.object(replica.Replica, "has_counted", lambda *_: True):
        yield


@mutant
def chain_not_compared() -> Iterator[None]:
    """A replica that has read what the log then lost goes on with what came instead."""
    with patch.object(reading, "_check_continuity", lambda *_: None):
        yield


@mutant
def rows_remembered_over_logged_requests() -> Iterator[None]:
    """A leader goes on with rows that it read before requests which every replica executed changed them."""
    with patch.object(Overlay, "forget", lambda _self: None):
        yield


@mutant
def prepared_state_not_asked() -> Iterator[None]:
    def judged(call: Any, get: Any, timestamp_ms: int, *_: Any) -> Any:
        return judge_call(call, get, timestamp_ms)

    with patch.object(leader, "judge_call", judged):
        yield


@mutant
def mode_taken_from_the_first_request_of_a_fetch() -> Iterator[None]:
    """A change of mode holds from the next fetch on, not for the requests right behind it."""

    def offered(loop: LeaderLoop, leader: Leader, *more: Any) -> int:
        late = leader.state.late

        def is_for(proposal: Any, state: Any) -> bool:
            return bool(is_late(proposal, replace(state, late=late)))

        with patch.object(RequestsBuilder, "is_for", is_for):
            return offer(loop, leader, *more)

    is_late, offer = RequestsBuilder.is_for, LeaderLoop._offer
    with patch.object(LeaderLoop, "_offer", offered):
        yield


@mutant
def the_direct_door_does_not_answer() -> Iterator[None]:
    with patch.object(DirectCalls, "answer", lambda *_: None), patch.object(DirectCalls, "end", lambda *_: None):
        yield


@mutant
def the_direct_door_answers_only_at_the_end_of_the_leadership() -> Iterator[None]:
    """Each call is told NOT_LEADER at last, and never what became of it."""

    def end(self: DirectCalls, message: str) -> None:
        with patch.object(DirectCalls, "answer", answer):
            ends(self, message)

    answer, ends = DirectCalls.answer, DirectCalls.end
    with patch.object(DirectCalls, "answer", lambda *_: None), patch.object(DirectCalls, "end", end):
        yield


@mutant
def the_end_of_the_leadership_is_not_told_at_the_direct_door() -> Iterator[None]:
    with patch.object(DirectCalls, "end", lambda *_: None):
        yield


@mutant
def an_answer_to_a_direct_call_goes_the_other_way() -> Iterator[None]:
    """It goes through Kafka."""

    def begun(self: DirectCalls, proposal: Any, way: Any) -> Any:
        self._open[id(proposal)] = (proposal, way)
        return proposal

    with patch.object(DirectCalls, "begin", begun):
        yield


@mutant
def an_answer_to_a_direct_call_goes_by_another_connection() -> Iterator[None]:
    """It goes by the way of the oldest call that has no answer yet."""

    def begun(self: DirectCalls, proposal: Any, way: Any) -> Any:
        oldest = next((one for _, one in self._open.values()), way)
        return begin(self, proposal, oldest)

    begin = DirectCalls.begin
    with patch.object(DirectCalls, "begin", begun):
        yield
