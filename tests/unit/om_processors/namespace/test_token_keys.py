"""When the key of block tokens is rolled, which keys are valid, and which one makes tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from om_processors.namespace.token_keys import (
    CLOCKS_MS,
    KEPT_MS,
    KEY_LIFE_MS,
    ROLL_MS,
    SPREAD_MS,
    key_to_issue_with,
    next_roll,
    valid_keys,
)
from schemas.access.block_tokens import TOKEN_KEYS_USER, TOKEN_LIFETIME_MS
from schemas.records.identity import CreateUser, RotateUser, UserRow
from tests.support.local.secret import SECRET

ROLLED_MS = 1_750_000_000_000
FIRST = UserRow(
    user=TOKEN_KEYS_USER, generation=17, previous_generation=0, previous_until_ms=0, administrator=False, groups=[],
    creation_time_ms=ROLLED_MS, modification_time_ms=ROLLED_MS,
)  # fmt: skip
SECOND = replace(FIRST, generation=90, previous_generation=17, previous_until_ms=ROLLED_MS + KEPT_MS)
HURRIED = replace(SECOND, previous_until_ms=ROLLED_MS)
KEY_OF = SECRET.block_token_key


@pytest.mark.parametrize(
    ("row", "age_ms", "roll"),
    [
        (None, 0, CreateUser(user=TOKEN_KEYS_USER)),
        (FIRST, 0, None),
        (FIRST, -CLOCKS_MS, None),  # this node's clock is behind that of the leader that rolled
        (FIRST, ROLL_MS - 1, None),
        (FIRST, ROLL_MS, RotateUser(user=TOKEN_KEYS_USER, overlap_ms=KEPT_MS)),
        (SECOND, ROLL_MS, RotateUser(user=TOKEN_KEYS_USER, overlap_ms=KEPT_MS)),
        (HURRIED, 3 * ROLL_MS, RotateUser(user=TOKEN_KEYS_USER, overlap_ms=KEPT_MS)),
    ],
)
def test_a_key_is_rolled_once_a_day(row: UserRow | None, age_ms: int, roll: CreateUser | RotateUser | None):
    assert next_roll(row, ROLLED_MS + age_ms) == roll


@pytest.mark.parametrize(
    ("row", "age_ms", "valid", "issues"),
    [
        (FIRST, 0, [17], 17),
        (FIRST, 5 * ROLL_MS, [17], 17),
        (SECOND, -CLOCKS_MS, [90, 17], 17),
        (SECOND, 0, [90, 17], 17),
        (SECOND, SPREAD_MS - 1, [90, 17], 17),
        (SECOND, SPREAD_MS, [90, 17], 90),
        (SECOND, KEPT_MS - 1, [90, 17], 90),
        (SECOND, KEPT_MS, [90], 90),
        (HURRIED, 0, [90], 90),
        (replace(HURRIED, previous_until_ms=ROLLED_MS + SPREAD_MS), 0, [90, 17], 90),
    ],
)
def test_the_key_of_before_is_valid_for_the_overlap_and_makes_tokens_while_the_new_one_is_told(
    row: UserRow, age_ms: int, valid: list[int], issues: int
):
    now_ms = ROLLED_MS + age_ms
    found = valid_keys(row, KEY_OF, now_ms)
    assert (found.newest, [key.key_id for key in found.keys]) == (row.generation, valid)
    assert [key.key for key in found.keys] == [KEY_OF(number) for number in valid]
    assert key_to_issue_with(row, KEY_OF, now_ms).key_id == issues


def test_no_token_outlives_its_key_by_a_roll_that_nobody_hurries():
    """The last token of the key of before is made SPREAD_MS after the roll, by a clock that may be behind."""
    assert SPREAD_MS + TOKEN_LIFETIME_MS <= KEPT_MS
    assert KEY_LIFE_MS > ROLL_MS + KEPT_MS
