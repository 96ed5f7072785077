"""Feature levels: which version of a schema may be written, and what a level brought."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import schemas
from schemas import features
from schemas.codec import decode, encode, encode_at
from schemas.log import Genesis, Tick
from schemas.messages import FLEET_REQUESTS, SHARD_COMMANDS, CreateVolume, PurgeBlocks
from schemas.registry import registry

HISTORY = Path(schemas.__file__).parent / "history"
GENESIS = Genesis(
    term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32), cluster="c", shard=0, shards=1, replicas=["a"],
    column_families=["t"], feature_level=features.LATEST,
)  # fmt: skip


def test_levels_count_up_without_gaps():
    assert list(features.NAMES) == list(range(1, features.LATEST + 1))


@pytest.mark.parametrize("folder", sorted(HISTORY.iterdir()), ids=lambda path: path.name)
def test_every_version_of_every_schema_has_a_level(folder: Path):
    released = len(list(folder.glob("v*.avsc")))
    levels = features.VERSIONS.get(folder.name, (features.INITIAL,))
    assert len(levels) == released, f"say in features.VERSIONS which level brought each version of {folder.name}"
    assert list(levels) == sorted(levels)
    assert set(levels) <= set(features.NAMES)
    assert features.version_at(folder.name, features.LATEST) == released


def test_only_requests_without_a_volume_are_tied_to_a_level():
    assert set(features.COMMANDS) <= {*SHARD_COMMANDS, *FLEET_REQUESTS, PurgeBlocks}
    assert features.level_of_command(CreateVolume(volume="v")) == features.INITIAL


def test_an_earlier_level_writes_the_earlier_version_and_it_is_read():
    older = encode_at(GENESIS, features.INITIAL)
    assert older[2:10] == registry.version("Genesis", 1).fingerprint
    assert decode(older) == replace(GENESIS, feature_level=features.INITIAL)
    assert encode_at(GENESIS, features.LATEST) == encode(GENESIS)
    tick = Tick(term=1, nonce=bytes(16), seq=1, prev_chain=bytes(32))
    assert encode_at(tick, features.INITIAL) == encode(tick)


def test_an_unknown_version():
    with pytest.raises(KeyError):
        registry.version("Genesis", 99)
