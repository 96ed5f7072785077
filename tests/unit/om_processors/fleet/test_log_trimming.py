"""Trimming of ``om.log``: what is proposed, and at which addresses members are asked."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from om_processors.fleet import log_trimming
from om_processors.fleet.log_trimming import BASIS, ask_base, member_addresses
from replicated_db.core.trimming.trim_rule import TrimWish
from replicated_db.shell.trimming.log_trimming import BaseAnswer, LogTrimming
from schemas.records.messages import OWN_DIGESTS, LogDigestBase


class Trimmer:
    """The trimmer below: says whether a base may be logged, and keeps what it is asked."""

    def __init__(self) -> None:
        self.against: str | None = None
        self.asked: list[tuple[Any, ...]] = []

    def agreed(self, *given: Any) -> str | None:
        self.asked.append(("agreed", *given))
        return self.against

    def trim(self, *given: Any) -> None:
        self.asked.append(("trim", *given))


class Shard:
    """A node that leads shard 1, its replica and its proposer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[tuple[int, ...]] = []
        self.bases: tuple[Any, ...] = ()
        self.index, self.offset = 9, 20
        self.proposed: list[Any] = []
        this: Any = self
        config: Any = SimpleNamespace(bootstrap_servers="127.0.0.1:1", node_addresses=(("om1", "settings:1"),))
        loops: Any = {shard: SimpleNamespace(leading=shard == 1, replica=self, log_time_ms=int) for shard in (0, 1)}
        group = {"om1": "group:1", "om2": "group:2", "om3": "group:3"}
        monkeypatch.setattr(log_trimming, "_group_addresses", lambda _: group)
        trimmer: Any = Trimmer()
        self.trimmer = trimmer
        self.trimming = LogTrimming(
            trimmer, loops, partial(ask_base, this), partial(member_addresses, config), lambda shard: (70 + shard,)
        )

    def durable_place(self, holds: tuple[int, ...]) -> Any:
        self.held.append(holds)
        return SimpleNamespace(bases=self.bases, index=self.index, offset=self.offset)

    def propose(self, key: Any, body: Any) -> bool:
        self.proposed.append((key, body))
        return True


def test_members_are_asked_where_the_settings_the_brokers_or_the_operator_say(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Shard(monkeypatch)
    assert case.trimming.led() == [1]
    case.trimming.trim(1, TrimWish(keep_ms=5), {"om3": "operator:3", "om4": "operator:4"})
    (asked,) = case.trimmer.asked
    assert {"om1": "settings:1", "om2": "group:2", "om3": "group:3", "om4": "operator:4"} in asked
    assert case.held == [(71,)], "what transfers of this node hold is told"


def test_a_base_is_proposed_once_for_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Shard(monkeypatch)
    assert case.trimming.log_base(1, {}) == BaseAnswer(asked=True, index=9)
    body = LogDigestBase(shard=1, index=OWN_DIGESTS, slots=[], sums=[], basis=BASIS)
    assert case.proposed == [(("base", 1, 9), body)]
    case.bases = (SimpleNamespace(index=8, offset=20),)
    assert not case.trimming.log_base(1, {}).asked, "nothing has happened since but the base"
    case.index = 10
    assert case.trimming.log_base(1, {}).asked
    case.trimmer.against = "om2 has another digest"
    assert case.trimming.log_base(1, {}).why == "om2 has another digest"
    assert [key for key, _ in case.proposed] == [("base", 1, 9), ("base", 1, 10)]


def test_without_brokers_nobody_is_known_from_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_trimming, "GROUP_TIMEOUT_S", 0.05)
    assert log_trimming._group_addresses("127.0.0.1:1") == {}
