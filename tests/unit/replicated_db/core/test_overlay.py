from __future__ import annotations

import pytest

from replicated_db.core.tables import overlay as overlay_module
from replicated_db.core.tables.memory import MemoryStore
from replicated_db.core.tables.overlay import Overlay, merge_ordered
from tests.support.replicated.kit import FAMILIES


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(FAMILIES.names)
    store.write([("things", b"a", b"store"), ("things", b"c", b"store"), ("counters", b"a", b"other family")])
    return store


@pytest.fixture
def overlay(store: MemoryStore) -> Overlay:
    return Overlay(store)


def test_reads_fall_through(overlay: Overlay):
    assert overlay.get("things", b"a") == b"store"
    assert overlay.get("things", b"b") is None
    assert overlay.layer_of("things", b"a") is None
    assert len(overlay) == 0


def test_the_newest_layer_wins(overlay: Overlay):
    for layer in (1, 2, 3):
        overlay.open_layer(layer)
        overlay.set("things", b"a", b"layer %d" % layer)
    assert overlay.get("things", b"a") == b"layer 3"
    assert overlay.layer_of("things", b"a") == 3
    assert overlay.get("counters", b"a") == b"other family"


def test_a_deleted_row_hides_the_stores(overlay: Overlay):
    overlay.open_layer(1)
    overlay.set("things", b"a", None)
    assert overlay.get("things", b"a") is None
    assert overlay.layer_of("things", b"a") == 1
    assert list(overlay.iterate("things", b"")) == [(b"c", b"store")]


def test_dropping_a_layer_keeps_what_later_ones_wrote(overlay: Overlay, store: MemoryStore):
    overlay.open_layer(1)
    overlay.set("things", b"a", b"1")
    overlay.set("things", b"b", b"1")
    overlay.open_layer(2)
    overlay.set("things", b"a", b"2")
    store.write([("things", b"a", b"1"), ("things", b"b", b"1")])
    overlay.drop_layer(1)
    assert overlay.get("things", b"a") == b"2"
    assert overlay.layer_of("things", b"b") is None
    assert overlay.get("things", b"b") == b"1"
    store.write([("things", b"a", b"2")])
    overlay.drop_layer(2)
    assert len(overlay) == 0
    assert overlay.get("things", b"a") == b"2"
    overlay.forget()
    assert [overlay.get("things", key) for key in (b"a", b"b")] == [b"2", b"1"]


def test_a_row_set_twice_in_one_layer(overlay: Overlay):
    overlay.open_layer(1)
    overlay.set("things", b"a", b"1")
    overlay.set("things", b"a", b"2")
    assert len(overlay) == 1
    overlay.drop_layer(1)
    assert len(overlay) == 0


def test_rows_are_set_together_and_dropped_with_their_layer(overlay: Overlay):
    overlay.open_layer(1)
    overlay.set_all({("things", b"a"): None, ("things", b"b"): b"1"})
    overlay.open_layer(2)
    overlay.set_all({("things", b"b"): b"2"})
    assert [overlay.get("things", key) for key in (b"a", b"b")] == [None, b"2"]
    assert [overlay.layer_of("things", key) for key in (b"a", b"b")] == [1, 2]
    overlay.forget()
    assert [overlay.get("things", key) for key in (b"a", b"b")] == [None, b"2"], "what layers wrote is not forgotten"
    overlay.drop_layer(1)
    assert [overlay.layer_of("things", key) for key in (b"a", b"b")] == [None, 2]
    assert len(overlay) == 1
    overlay.forget()
    assert [overlay.get("things", key) for key in (b"a", b"b")] == [b"store", b"2"]


def test_layers_are_dropped_in_order(overlay: Overlay):
    with pytest.raises(ValueError, match="layer 1 is not the oldest"):
        overlay.drop_layer(1)
    overlay.open_layer(1)
    overlay.open_layer(2)
    with pytest.raises(ValueError, match="layer 2 is not the oldest"):
        overlay.drop_layer(2)
    overlay.drop_layer(1)
    overlay.drop_layer(2)


def test_an_empty_layer_can_be_taken_back(overlay: Overlay):
    overlay.open_layer(1)
    overlay.close_empty_layer()
    overlay.open_layer(1)
    overlay.set("things", b"a", b"1")
    with pytest.raises(ValueError, match="layer 1 is not empty"):
        overlay.close_empty_layer()


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (b"", None, [b"a", b"aa", b"b", b"c", b"d"]),
        (b"a", b"c", [b"a", b"aa", b"b"]),
        (b"aa", b"aa", []),
        (b"b", None, [b"b", b"c", b"d"]),
        (b"c", b"a", []),
        (b"e", None, []),
        (b"", b"\x00", []),
    ],
)
def test_ordered_iteration_over_both(overlay: Overlay, start: bytes, stop: bytes | None, expected: list[bytes]):
    overlay.open_layer(1)
    for key in (b"d", b"b", b"aa"):
        overlay.set("things", key, b"layer")
    assert [key for key, _ in overlay.iterate("things", start, stop)] == expected


def test_iteration_prefers_the_overlays_values(overlay: Overlay):
    overlay.open_layer(1)
    overlay.set("things", b"c", b"layer")
    overlay.set("things", b"a", None)
    assert list(overlay.iterate("things", b"")) == [(b"c", b"layer")]


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        ({}, [1, 3]),
        ({b"0": b"x"}, [0, 1, 3]),
        ({b"4": b"x"}, [1, 3, 4]),
        ({b"1": None, b"3": None}, []),
        ({b"0": None, b"2": None, b"4": None}, [1, 3]),
    ],
)
def test_merge_ordered(above: dict[bytes, bytes | None], expected: list[int]):
    base = iter([(b"1", b"base"), (b"3", b"base")])
    assert [int(key) for key, _ in merge_ordered(base, above)] == expected


class CountingStore(MemoryStore):
    """A store that counts its reads."""

    reads = 0

    def get(self, cf: str, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(cf, key)


def test_what_is_read_from_the_store_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overlay_module, "MAX_REMEMBERED", 2)
    monkeypatch.setattr(overlay_module, "MAX_REMEMBERED_VALUE_BYTES", 3)
    store = CountingStore(FAMILIES.names)
    store.write([("things", b"short", b"123"), ("things", b"long", b"1234")])
    found = Overlay(store)

    def reads(key: bytes) -> int:
        before = store.reads
        found.get("things", key)
        return store.reads - before

    assert [reads(b"long"), reads(b"long")] == [1, 1], "too long to be remembered"
    assert [reads(b"short"), reads(b"short"), reads(b"absent"), reads(b"absent")] == [1, 0, 1, 0]
    assert reads(b"third") == 1
    assert [reads(b"third"), reads(b"short")] == [0, 1], "all but the last were forgotten to make room"
    found.forget()
    assert reads(b"third") == 1


@pytest.mark.parametrize(("rows", "size_bytes", "remembered"), [(3, 100, True), (2, 100, False), (3, 4, False)])
def test_rows_of_dropped_layers_are_remembered_within_bounds(
    monkeypatch: pytest.MonkeyPatch, rows: int, size_bytes: int, remembered: bool
):
    monkeypatch.setattr(overlay_module, "MAX_REMEMBERED", rows)
    monkeypatch.setattr(overlay_module, "MAX_REMEMBERED_BYTES", size_bytes)
    store = CountingStore(FAMILIES.names)
    found = Overlay(store)
    found.open_layer(1)
    found.set_all({("things", b"a"): b"12345", ("things", b"b"): None, ("things", b"c"): b""})
    found.open_layer(2)
    found.set("things", b"b", b"later")
    store.write([("things", b"a", b"12345"), ("things", b"c", b"")])
    found.drop_layer(1)
    assert [found.get("things", key) for key in (b"a", b"b", b"c")] == [b"12345", b"later", b""]
    assert store.reads == (0 if remembered else 2)
    assert len(found) == 1
