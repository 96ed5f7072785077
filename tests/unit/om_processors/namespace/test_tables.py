from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from om_processors.namespace import tables
from schemas.codecs.codec import encode
from schemas.column_families import OPEN_KEY_TABLE
from schemas.records.rows import BlockLocation, KeyInfo
from tests.support.om.dict_transaction import DictTables, DictTransaction

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def info(number: int) -> KeyInfo:
    block = BlockLocation(container_id=number, local_id=number, offset=0, length=1, pipeline="p")
    return KeyInfo(
        volume="vol1", bucket="bucket1", key="k", owner="ann", object_id=number, update_id=number, size=1,
        replication="RATIS/THREE", blocks=[block], metadata={"m": str(number)}, creation_time_ms=1, modification_time_ms=1,
    )  # fmt: skip


@given(TEXT, st.lists(TEXT))
def test_prefix_stop_bounds_exactly_what_starts_with_the_prefix(prefix, texts):
    start, stop = prefix.encode(), tables.prefix_stop(prefix.encode())
    for text in [*texts, prefix, prefix + "\U0010ffff", *(prefix + text for text in texts)]:
        assert (start <= text.encode() < stop) == text.encode().startswith(start)


def test_an_open_key_is_read_as_it_was_written_remembered_or_not():
    base = DictTables()
    tx = DictTransaction(base, 1)
    count = tables.OPEN_KEYS + 10
    for number in range(count):
        tables.put_open_key(tx, b"/%d" % number, info(number))
    for number in (0, count // 2, count - 1):
        assert tables.get_open_key(tx, b"/%d" % number) == info(number)


def test_what_is_remembered_is_bounded_and_recent():
    base = DictTables()
    memo = tables._open_keys
    for number in range(3 * tables.OPEN_KEYS):
        tables.put_open_key(DictTransaction(base, 1), b"/k", info(number))
    assert len(memo._younger) + len(memo._older) <= tables.OPEN_KEYS
    last = 3 * tables.OPEN_KEYS - 1
    for number in range(last - tables.OPEN_KEYS // 2 + 1, last + 1):
        assert memo.recall(encode(info(number))) is not None


def test_a_long_row_is_not_remembered():
    base = DictTables()
    long = replace(info(-9), blocks=info(-9).blocks * tables.OPEN_KEY_BYTES)
    tx = DictTransaction(base, 1)
    tables.put_open_key(tx, b"/k", long)
    assert tables._open_keys.recall(encode(long)) is None
    assert tables.get_open_key(tx, b"/k") == long


def test_a_value_that_another_process_wrote_is_decoded():
    base = DictTables()
    base.tables[OPEN_KEY_TABLE][b"/k"] = encode(info(-5))
    assert tables.get_open_key(base, b"/k") == info(-5)
    assert tables.get_open_key(base, b"/missing") is None
