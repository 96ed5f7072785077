from __future__ import annotations

import pytest

from om_processors.errors import OMError
from om_processors.namespace import names
from om_processors.namespace.names import (
    MAX_KEY_NAME_BYTES,
    check_bucket_name,
    check_key_name,
    check_new_key_name,
    check_place,
    check_text,
    check_volume_name,
)


@pytest.mark.parametrize("name", ["abc", "a-b", "a.b", "1a2", "a" * 63, "a--b", "vol1", "0-0", "1-2-3"])
def test_legal_volume_and_bucket_names(name):
    check_volume_name(name)
    check_bucket_name(name)


ILLEGAL = [
    ("", "0 characters"),
    ("ab", "2 characters"),
    ("a" * 64, "64 characters"),
    ("aBc", "'B' is not allowed"),
    ("a_b", "'_' is not allowed"),
    ("a/b", "'/' is not allowed"),
    ("a#b", "'#' is not allowed"),
    ("aéb", "'é' is not allowed"),
    ("abc\n", "is not allowed"),
    (".abc", "starts or ends"),
    ("abc.", "starts or ends"),
    ("-abc", "starts or ends"),
    ("abc-", "starts or ends"),
    ("a..b", "contains '..'"),
    ("a.-b", "contains '.-'"),
    ("a-.b", "contains '-.'"),
    ("10.0.0.1", "IPv4"),
    ("12345", "all numeric"),
    ("1.234", "all numeric"),
]


@pytest.mark.parametrize(("name", "fault"), ILLEGAL)
def test_illegal_volume_and_bucket_names(name, fault):
    with pytest.raises(OMError) as volume:
        check_volume_name(name)
    assert volume.value.status == "INVALID_VOLUME_NAME"
    assert fault in volume.value.message
    with pytest.raises(OMError) as bucket:
        check_bucket_name(name)
    assert bucket.value.status == "INVALID_BUCKET_NAME"
    assert repr(name) in bucket.value.message


@pytest.mark.parametrize(
    "key",
    ["a", "/", "a/b/c", "//", " ", "a\x00b", "ключ", "🗝", ".snapshots", "a/.snapshot", ".", "x" * MAX_KEY_NAME_BYTES],
)
def test_legal_key_names(key):
    check_key_name(key)
    check_new_key_name(key)


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("", "empty"),
        ("x" * (MAX_KEY_NAME_BYTES + 1), "4097 bytes"),
        ("é" * (MAX_KEY_NAME_BYTES // 2 + 1), "4098 bytes"),
        ("a\udcffb", "no Unicode text"),
    ],
)
def test_illegal_key_names(key, fault):
    with pytest.raises(OMError, match="INVALID_KEY_NAME") as refusal:
        check_key_name(key)
    assert fault in refusal.value.message
    assert len(refusal.value.message) < 400


@pytest.mark.parametrize("key", [".snapshot", ".snapshot/", ".snapshot/snap1/key"])
def test_snapshot_paths_are_reserved_for_new_keys_only(key):
    check_key_name(key)
    with pytest.raises(OMError, match=r"INVALID_KEY_NAME.*reserved"):
        check_new_key_name(key)


def test_long_illegal_name_is_cut_in_the_message():
    with pytest.raises(OMError) as refusal:
        check_volume_name("A" * 10_000)
    assert len(refusal.value.message) < 400


def test_a_long_name_is_not_remembered():
    """4,096 requests with names of a mebibyte each filled four gibibytes of a leader's memory."""
    for fault in (check_volume_name, check_bucket_name, lambda name: check_place(name, name)):
        before = names._character_fault.cache_info().currsize
        with pytest.raises(OMError):
            fault("v" * 1_000_000)
        assert names._character_fault.cache_info().currsize == before


def test_text_must_be_unicode():
    check_text("owner", "ann")
    with pytest.raises(OMError, match="INVALID_REQUEST: illegal owner"):
        check_text("owner", "\ud800")
