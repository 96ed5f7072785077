"""What one types to ``stratolog sh``: addresses, sizes, metadata, positions."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from stratolog.commands.common import addresses
from stratolog.commands.common.addresses import Address

PART = st.text(alphabet=st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1)


@given(PART, PART, st.text(min_size=1))
def test_an_address_reads_back_what_it_prints(volume: str, bucket: str, key: str) -> None:
    address = Address(volume=volume, bucket=bucket, key=key)
    assert addresses.key_address(str(address)) == address
    address = Address(volume=volume, bucket=bucket)
    assert addresses.bucket_address(str(address)) == address
    address = Address(volume=volume)
    assert addresses.volume_address(str(address)) == address


@pytest.mark.parametrize("text", ["/vol1", "vol1", "/vol1/"])
def test_a_volume(text: str) -> None:
    assert addresses.volume_address(text) == Address(volume="vol1")


@pytest.mark.parametrize("text", ["/vol1/b1", "vol1/b1", "/vol1/b1/"])
def test_a_bucket(text: str) -> None:
    assert addresses.bucket_address(text) == Address(volume="vol1", bucket="b1")


@pytest.mark.parametrize("text", ["/v/b/", "v/b", "/v", "v/"])
def test_a_volume_or_a_bucket(text: str) -> None:
    assert addresses.place_address(text) == Address(volume="v", bucket="b" if "b" in text else "")


@pytest.mark.parametrize("text", ["", "/", "/v/b/k", "//b"])
def test_neither_a_volume_nor_a_bucket(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        addresses.place_address(text)


@pytest.mark.parametrize(
    ("text", "key"), [("/v/b/a/c.txt", "a/c.txt"), ("v/b/k", "k"), ("/v/b//k", "/k"), ("/v/b/dir/", "dir/")]
)
def test_a_key_is_taken_as_it_is(text: str, key: str) -> None:
    assert addresses.key_address(text) == Address(volume="v", bucket="b", key=key)


@pytest.mark.parametrize("text", ["", "/", "//", "/v/b", "/v/b/k"])
def test_no_volume(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not the address of a volume"):
        addresses.volume_address(text)


@pytest.mark.parametrize("text", ["", "/v", "/v/", "//b", "/v/b/k"])
def test_no_bucket(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not the address of a bucket"):
        addresses.bucket_address(text)


@pytest.mark.parametrize("text", ["", "/v", "/v/b", "/v/b/", "//b/k", "/v//k"])
def test_no_key(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not the address of a key"):
        addresses.key_address(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("4096", 4096), ("100B", 100), ("1KB", 1024), ("1k", 1024), ("10GB", 10 * 1024**3), ("10 gb", 10 * 1024**3),
        ("1.5TB", 3 * 1024**4 // 2), ("2GiB", 2 * 1024**3), ("1PB", 1024**5), ("7EB", 7 * 1024**6),
        (str(2**63 - 1), 2**63 - 1),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert addresses.size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "10XB", "GB", "1.5", "0.1B", "8EB", str(2**63), "1e3", "10IB", "١"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a"):
        addresses.size_in_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KB"), (1536, "1.5 KB"), (10 * 1024**3, "10 GB"), (2**63 - 1, "8 EB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert addresses.shown_size(size) == text


def test_metadata() -> None:
    assert addresses.metadata_item("a=b=c") == ("a", "b=c")
    assert addresses.metadata_item("a=") == ("a", "")
    for text in ("", "a", "=b"):
        with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
            addresses.metadata_item(text)


def test_positions() -> None:
    assert addresses.positions("0:17, 1:4") == {0: 17, 1: 4}
    for text in ("", "0", "0:", "0:1,", "a:1", "-1:2"):
        with pytest.raises(typer.BadParameter, match="SHARD:INDEX"):
            addresses.positions(text)


@pytest.mark.parametrize(("text", "item"), [("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c"))])
def test_a_property_may_be_empty(text: str, item: tuple[str, str]) -> None:
    assert addresses.property_item(text) == item


@pytest.mark.parametrize("text", ["", "a", "=", "=b"])
def test_a_property_without_a_name_or_a_sign_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not NAME=VALUE, nor NAME= to remove a property"):
        addresses.property_item(text)
