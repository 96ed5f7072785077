"""Which container new blocks go into: it fills whatever the index, and is left when it is closed, full or unheard of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_processors.errors import OMError
from om_processors.namespace import ids
from om_processors.namespace.containers import BEGUN_MS, CONTAINER_BLOCKS, FillingContainers
from schemas.result_codes import FAILED_TO_FIND_ACTIVE_PIPELINE
from schemas.sharding import MAX_PIPELINES, pipeline_of

WINDOW = 1 << ids.CONTAINER_WINDOW_BITS


@dataclass
class Leader:
    """The leader of a shard, and what it sees of the containers."""

    fill: FillingContainers = field(default_factory=FillingContainers)
    shard: int = 0
    generation: int = 1
    now_ms: int = 0
    closed: set[int] = field(default_factory=set)
    with_room: Collection[int] | None = field(default_factory=set)

    def block(self, index: int, pipeline: int = 0) -> int:
        return self.fill.take(
            pipeline, ids.object_id(self.shard, index), self.now_ms, generation=self.generation, closed=self.closed,
            with_room=self.with_room,
        )  # fmt: skip

    def sees(self, *containers: int) -> None:
        assert isinstance(self.with_room, set)
        self.with_room.clear()
        self.with_room.update(containers)


def own(index: int, pipeline: int = 0, roll: int = 0) -> int:
    """Return the container that is begun at an index."""
    return ids.container_id(ids.object_id(0, index), pipeline, roll)


def test_a_thousand_windows_of_small_files_fill_a_few_containers():
    leader, containers, files = Leader(), Counter[int](), 1_000 * WINDOW
    for index in range(0, files, 16):
        container = leader.block(index)
        leader.now_ms = index // 16
        leader.sees(*containers, container)
        containers[container] += 1
    assert set(containers.values()) <= {CONTAINER_BLOCKS, files // 16 % CONTAINER_BLOCKS}
    assert len(containers) == -(-files // 16 // CONTAINER_BLOCKS) == 4  # they were a thousand


def test_the_last_block_of_a_full_container_and_the_first_of_the_next():
    leader = Leader()
    found = [leader.block(7) for _ in range(CONTAINER_BLOCKS + 1)]
    assert found == [own(7)] * CONTAINER_BLOCKS + [own(7, roll=1)]


def test_without_reports_each_window_has_its_own():
    leader = Leader(with_room=None)
    assert [leader.block(index) for index in (0, WINDOW - 1, WINDOW, 5 * WINDOW)] == [
        own(0), own(0), own(WINDOW), own(5 * WINDOW),
    ]  # fmt: skip


@pytest.mark.parametrize("past_ms", [0, BEGUN_MS - 1, BEGUN_MS, 10**9])
@pytest.mark.parametrize("reported", [False, True])
def test_beyond_its_window_a_container_is_used_while_it_is_young_or_reported(past_ms: int, reported: bool):
    leader = Leader()
    leader.block(0)
    leader.now_ms = past_ms
    if reported:
        leader.sees(own(0))
    assert leader.block(WINDOW - 1) == own(0)
    assert leader.block(WINDOW) == (own(0) if reported or past_ms < BEGUN_MS else own(WINDOW))


def test_a_closed_container_is_left_and_stays_left_when_it_is_emptied():
    """It was closed, all its blocks are deleted, and no datanode reports it any more."""
    leader = Leader()
    leader.block(0)
    leader.closed.add(own(0))
    assert leader.block(1) == own(0, roll=1)
    leader.closed.clear()
    assert leader.block(2) == own(0, roll=1)
    leader.closed.add(own(0, roll=1))
    assert leader.block(3) == own(0, roll=2)


def test_a_container_that_was_closed_and_emptied_while_nothing_was_written_is_left():
    leader = Leader()
    leader.block(0)
    leader.now_ms = 86_400_000
    assert leader.block(WINDOW) == own(WINDOW)


def test_a_container_that_is_nearly_full_is_left_beyond_its_window():
    leader = Leader()
    leader.block(0)
    leader.sees(own(0))
    leader.now_ms = BEGUN_MS
    assert leader.block(WINDOW) == own(0)
    leader.sees()
    assert leader.block(WINDOW) == own(WINDOW)


def test_another_generation_begins_with_a_container_of_its_own():
    leader = Leader()
    leader.sees(leader.block(0))
    leader.generation = 2
    assert leader.block(WINDOW) == own(WINDOW, roll=ids.ROLLS_APART)
    leader.generation = 1
    assert leader.block(WINDOW) == own(WINDOW)


def test_pipelines_fill_containers_of_their_own():
    leader = Leader()
    found = [leader.block(index, pipeline) for index in (0, WINDOW) for pipeline in range(MAX_PIPELINES)]
    assert [pipeline_of(container) for container in found] == [*range(MAX_PIPELINES)] * 2
    assert found[:MAX_PIPELINES] == found[MAX_PIPELINES:]


def test_when_all_containers_of_the_window_are_closed_the_next_window_has_more():
    leader = Leader()
    leader.closed = {own(0, roll=roll) for roll in range(ids.MAX_ROLLS - 1)}
    assert leader.block(0) == own(0, roll=ids.MAX_ROLLS - 1)
    leader.closed.add(own(0, roll=ids.MAX_ROLLS - 1))
    for _ in range(2):
        with pytest.raises(OMError, match="all 512 containers of pipeline 0 at this index are closed") as caught:
            leader.block(1)
        assert caught.value.status == FAILED_TO_FIND_ACTIVE_PIPELINE
    assert leader.block(WINDOW) == own(WINDOW)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["block", "block", "block", "close", "empty", "report", "lead", "reopen"]),
        st.integers(0, 3), st.integers(1, 2 * WINDOW), st.integers(0, 2 * BEGUN_MS),
    ),
    max_size=60,
)  # fmt: skip


@given(STEPS)
def test_no_block_goes_into_a_container_that_was_seen_closed(steps: list[tuple[str, int, int, int]]):
    """Closings are seen at once, and never again once a container is empty; leaders and generations come and go."""
    leader, index, ever_closed, known = Leader(), 0, set[int](), set[int]()
    for what, pipeline, further, later_ms in steps:
        if what == "block":
            index += further
            leader.now_ms += later_ms
            container = leader.block(index, pipeline)
            assert pipeline_of(container) == pipeline
            assert container not in leader.closed
            if ids.windows_since(container, ids.object_id(0, index)):
                assert container in known - ever_closed
            known.add(container)
        elif what == "close":
            leader.closed |= {one for one in known if pipeline_of(one) == pipeline}
            ever_closed |= leader.closed
        elif what == "empty":
            leader.closed = {one for one in leader.closed if pipeline_of(one) != pipeline}
        elif what == "lead":
            leader = Leader(generation=leader.generation, now_ms=leader.now_ms, closed=leader.closed)
        elif what == "reopen":
            leader.generation += 1
            leader.closed |= known
            ever_closed |= known
        leader.sees(*(known - ever_closed))


def test_a_container_whose_batch_became_void_is_left_before_its_window():
    leader = Leader()
    assert leader.block(WINDOW) == own(WINDOW)
    assert leader.block(WINDOW - 1) == own(WINDOW - 1), "the index before the void batch comes again"
    leader.sees(own(WINDOW - 1))
    assert leader.block(WINDOW) == own(WINDOW - 1)
