"""Where a client's block tokens come from: when it asks, when it asks again, and what it does without an answer."""

from __future__ import annotations

import pytest

from producers.blocks.block_tokens import MIN_ASK_S, NO_TOKENS, KeyTokens
from producers.errors import DatanodeError, RequestFailed
from producers.reads.read_views import TokenGrant
from schemas.stream_errors import BLOCK_TOKEN_EXPIRED, BLOCK_TOKEN_MISSING, DISK_FULL

BLOCK, NEXT = (7, 1), (7, 2)


class Nodes:
    def __init__(self, *, given: bool = True) -> None:
        self.now_s = 100.0
        self.given = given
        self.asked = 0
        self.lasts_ms = 4000
        self.blocks = [BLOCK]
        self.refusal: Exception | None = None
        self.silent = False
        self.tokens = KeyTokens(self.ask, lambda: self.given, now_s=lambda: self.now_s)

    def ask(self) -> TokenGrant | None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        if self.silent:
            return None
        return TokenGrant(
            tokens={block: b"%d-%d" % (self.asked, block[1]) for block in self.blocks}, lasts_ms=self.lasts_ms
        )


def test_a_token_is_asked_for_once_and_again_when_a_quarter_of_its_time_is_left():
    nodes = Nodes()
    assert [nodes.tokens.of(BLOCK), nodes.tokens.of(BLOCK), nodes.asked] == [b"1-1", b"1-1", 1]
    nodes.now_s += 2.9
    assert nodes.tokens.of(BLOCK) == b"1-1"
    nodes.now_s += 0.2
    assert nodes.tokens.of(BLOCK) == b"2-1"


def test_a_block_that_was_given_later_is_asked_for_at_once():
    nodes = Nodes()
    nodes.tokens.of(BLOCK)
    nodes.blocks.append(NEXT)
    assert nodes.tokens.of(NEXT) == b"2-2"
    assert nodes.tokens.of(BLOCK) == b"2-1"
    assert nodes.asked == 2


def test_nothing_is_asked_where_there_are_no_tokens_until_a_datanode_demands_one():
    nodes = Nodes(given=False)
    assert (nodes.tokens.of(BLOCK), nodes.asked) == (b"", 0)
    assert not nodes.tokens.refused(BLOCK, DISK_FULL)
    assert nodes.tokens.refused(BLOCK, BLOCK_TOKEN_MISSING)
    assert (nodes.tokens.of(BLOCK), nodes.asked) == (b"1-1", 1)


def test_a_token_that_is_refused_is_asked_for_anew_but_not_all_the_time():
    nodes = Nodes()
    nodes.tokens.of(BLOCK)
    assert nodes.tokens.refused(BLOCK, BLOCK_TOKEN_EXPIRED)
    assert (nodes.tokens.of(BLOCK), nodes.asked) == (b"1-1", 1)
    nodes.now_s += MIN_ASK_S
    assert (nodes.tokens.of(BLOCK), nodes.asked) == (b"2-1", 2)


def test_without_an_answer_the_old_token_is_shown_on_and_none_is_an_error():
    nodes = Nodes()
    nodes.tokens.of(BLOCK)
    nodes.now_s += 3.5
    nodes.refusal = RequestFailed("PERMISSION_DENIED", "user bob: no right READ")
    assert nodes.tokens.of(BLOCK) == b"1-1"
    with pytest.raises(
        DatanodeError, match="no token for block 7/2 is to be had: PERMISSION_DENIED: user bob"
    ) as found:
        nodes.tokens.of(NEXT)
    assert found.value.status == BLOCK_TOKEN_MISSING


def test_nodes_that_give_none_are_asked_seldom():
    nodes = Nodes()
    nodes.silent = True
    assert [nodes.tokens.of(BLOCK) for _ in range(20)] == [b""] * 20
    assert nodes.asked == 1
    nodes.now_s += MIN_ASK_S
    assert (nodes.tokens.of(BLOCK), nodes.asked) == (b"", 2)


def test_tokens_that_came_with_the_locations_are_taken():
    nodes = Nodes()
    nodes.tokens.take(TokenGrant(tokens={BLOCK: b"given"}, lasts_ms=1000))
    assert (nodes.tokens.of(BLOCK), nodes.asked) == (b"given", 0)
    assert "given" not in repr(TokenGrant(tokens={BLOCK: b"given"}, lasts_ms=1000))


def test_who_needs_none_has_none():
    assert NO_TOKENS.of(BLOCK) == b""
    assert not NO_TOKENS.refused(BLOCK, BLOCK_TOKEN_MISSING)


def test_many_keys_with_one_source_do_not_ask_one_after_the_other_when_nobody_answers():
    nodes = Nodes()
    nodes.refusal = RequestFailed("TIMED_OUT", "no node answers")
    for local_id in range(16):
        with pytest.raises(DatanodeError, match="no node answers"):
            nodes.tokens.of((7, local_id))
    assert nodes.asked == 1
    nodes.refusal = None
    nodes.now_s += MIN_ASK_S
    assert nodes.tokens.of(BLOCK) == b"2-1"
