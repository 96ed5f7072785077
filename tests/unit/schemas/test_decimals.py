"""Numbers that a caller has written with thousands of digits: each reader names them, and none raises int's own error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from om_processors.errors import OMError
from om_processors.serving.consistency import parse_session
from producers.errors import InvalidArgument
from producers.requests.engine import _door
from replicated_db.core.bootstrap.listing import BadListing
from replicated_db.shell.bootstrap.transfer_pages import _number
from replicated_db.shell.web.shard_pages import BadQuery, number, replica_of
from schemas.codecs.decimals import MAX_DECIMAL, decimal_of
from schemas.kafka.connection import BadKafkaSetting, read_option
from spark_streaming.tables.core.versions import parse_indexes
from stratolog.commands.bench import _levels
from stratolog.commands.common.addresses import positions, size_in_bytes
from stratolog.configuration.loading import load_settings
from stratolog.errors import UserError
from transport.datanodes.dialing import NoConnection, split_address

LONG = "9" * 5_000
"""More digits than int() takes, which raises a ValueError of its own."""


@pytest.mark.parametrize("digits", [4_299, 4_300, 4_301, 100_000])
def test_no_number_of_digits_is_an_error(digits: int) -> None:
    assert decimal_of("0" * digits + "7") == 7
    assert decimal_of("1" * digits) is None


def test_the_limit_is_read_and_what_is_beyond_is_not() -> None:
    assert decimal_of(str(MAX_DECIMAL)) == MAX_DECIMAL
    assert decimal_of(str(MAX_DECIMAL + 1)) is None
    assert [decimal_of(text) for text in ("", " 1", "1_0", "+1", "1.0", "١")] == [None] * 6


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda: number({"limit": LONG}, "limit", 1, 1, 1000), BadQuery),
        (lambda: replica_of({}, LONG), BadQuery),
        (lambda: parse_session(f"0:{LONG}"), OMError),
        (lambda: parse_session(f"{LONG}:0"), OMError),
        (lambda: _number(LONG), BadListing),
        (lambda: read_option("socket.timeout.ms", LONG), BadKafkaSetting),
        (lambda: split_address(f"host:{LONG}"), NoConnection),
        (lambda: _door(f"host:{LONG}"), InvalidArgument),
        (lambda: parse_indexes(LONG), ValueError),
        (lambda: _levels(LONG), UserError),
        (lambda: positions(f"0:{LONG}"), typer.BadParameter),
        (lambda: size_in_bytes(LONG), typer.BadParameter),
    ],
)  # fmt: skip
def test_a_number_with_thousands_of_digits_is_named(read: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error) as told:
        read()
    assert "integer string" not in str(told.value)


def test_a_settings_file_with_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "stratolog.toml"
    file.write_text(f"shards = {LONG}\n")
    with pytest.raises(UserError, match="settings file"):
        load_settings(file)
