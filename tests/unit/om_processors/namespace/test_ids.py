from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_processors.namespace import ids
from schemas.sharding import MAX_PIPELINES

SHARDS = st.integers(0, ids.MAX_SHARD)
INDEXES = st.integers(0, ids.MAX_INDEX)


@given(SHARDS, INDEXES, st.integers(0, ids.MAX_EPOCH))
def test_object_id_holds_its_parts_and_is_a_positive_long(shard, index, epoch):
    number = ids.object_id(shard, index, epoch)
    assert 0 <= number < 1 << 63
    assert (number >> 62, number >> 52 & 0x3FF, number >> 8 & (1 << 44) - 1, number & 0xFF) == (epoch, shard, index, 0)


@given(SHARDS, INDEXES, SHARDS, INDEXES)
def test_no_two_requests_share_an_id(shard, index, other_shard, other_index):
    def minted(shard: int, index: int) -> set[int]:
        number = ids.object_id(shard, index)
        blocks = [ids.block_local_id(number, position) for position in (0, 1, ids.MAX_BLOCKS_PER_REQUEST - 1)]
        made = {number, ids.session_id(number), *blocks}
        assert len(made) == 5
        return made

    same = (shard, index) == (other_shard, other_index)
    assert bool(minted(shard, index) & minted(other_shard, other_index)) == same


@given(SHARDS, st.lists(INDEXES, min_size=2, max_size=2, unique=True))
def test_ids_ascend_with_the_index(shard, indexes):
    low, high = sorted(indexes)
    assert ids.session_id(ids.object_id(shard, low)) < ids.object_id(shard, high)


@pytest.mark.parametrize(
    ("shard", "index", "epoch"),
    [(-1, 0, 0), (1024, 0, 0), (0, -1, 0), (0, 1 << 44, 0), (0, 0, 2), (0, 0, 3), (0, 0, -1)],
)
def test_overflow_is_refused(shard, index, epoch):
    with pytest.raises(ValueError, match="no object id"):
        ids.object_id(shard, index, epoch)


@pytest.mark.parametrize("position", [-1, ids.MAX_BLOCKS_PER_REQUEST])
def test_too_many_blocks_are_refused(position):
    with pytest.raises(ValueError, match="block"):
        ids.block_local_id(ids.object_id(0, 1), position)


@pytest.mark.parametrize("pipeline", [-1, MAX_PIPELINES])
def test_too_many_pipelines_are_refused(pipeline):
    with pytest.raises(ValueError, match="pipeline"):
        ids.container_id(ids.object_id(0, 1), pipeline)


@given(SHARDS, INDEXES, st.integers(0, 255), SHARDS, INDEXES, st.integers(0, 255))
def test_a_container_belongs_to_one_shard_window_and_pipeline(shard, index, pipeline, shard2, index2, pipeline2):
    one = ids.container_id(ids.object_id(shard, index), pipeline)
    two = ids.container_id(ids.object_id(shard2, index2), pipeline2)
    assert (one == two) == ((shard, index >> 10, pipeline) == (shard2, index2 >> 10, pipeline2))
    assert 0 <= one < 1 << 62


@given(st.integers(1, 5000))
def test_every_generation_tries_all_rolls_and_begins_with_another_one(generation: int):
    found = list(ids.rolls(generation))
    assert sorted(found) == list(range(ids.MAX_ROLLS))
    firsts = {next(iter(ids.rolls(generation + step))) for step in range(ids.MAX_ROLLS)}
    assert len(firsts) == ids.MAX_ROLLS
