from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64

from schemas.sharding import MAX_SHARDS, SYSTEM_SHARD, shard_of

# Fixed for ever: clients of other versions and the audit must agree.
GOLDEN = {
    "vol1": [0, 1, 2, 9, 57],
    "vol2": [0, 0, 0, 2, 178],
    "": [0, 1, 0, 9, 409],
    "s3v": [0, 0, 1, 6, 598],
    "Öl/𝄞": [0, 1, 1, 1, 817],
    "a" * 63: [0, 1, 1, 9, 201],
}


@pytest.mark.parametrize("volume", GOLDEN)
def test_golden_values(volume: str):
    assert [shard_of(volume, shards) for shards in (1, 2, 3, 16, 1024)] == GOLDEN[volume]


@pytest.mark.parametrize("shards", [0, -1, MAX_SHARDS + 1])
def test_illegal_number_of_shards(shards: int):
    with pytest.raises(ValueError, match=str(shards)):
        shard_of("v", shards)


@given(volume=st.text(), shards=st.integers(1, MAX_SHARDS))
def test_is_xxh64_of_the_utf8_name_with_seed_0(volume: str, shards: int):
    assert shard_of(volume, shards) == int(xxh64(volume.encode(), seed=0).hexdigest(), 16) % shards


def test_spreads_volumes():
    counts = [0] * 8
    for number in range(4000):
        counts[shard_of(f"volume{number}", 8)] += 1
    assert min(counts) > 400
    assert max(counts) < 600


def test_system_shard_exists_in_the_smallest_cluster():
    assert SYSTEM_SHARD in range(1)
