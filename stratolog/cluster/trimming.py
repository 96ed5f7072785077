"""Trimming as a command does it.

The leader of a shard or a pipeline is asked to log a base, to say how far, and to trim.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import httpx

from stratolog.cluster.leadership import shard_views
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.nodes.answers import node_answer, node_status
from stratolog.nodes.core.leaders import is_leader
from stratolog.nodes.node_http import http_to, operator_auth, url_of
from transport.waiting.deadline import Deadline

ASK_TIMEOUT_S = 120.0
"""How long the leader may take: it asks every member, and each syncs its disk."""

LEADER_WAIT_S = 15.0
AUDIT_WORD_S = 8.0
"""How long a running audit may take until its first verdict on what lies behind a new base."""

POLL_S = 0.5
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_KEEP = re.compile(r"([0-9]{1,15})([smhd]?)")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What an operator asks for: see ``replicated_db/core/trimming/trim_rule.py``."""

    keep_records: int = 0
    keep_ms: int = 0
    leave_behind: tuple[str, ...] = ()
    without_audit: bool = False


def keep_from(text: str) -> tuple[int, int]:
    """Return (records, milliseconds) of what is to be kept: a number, or a number with s, m, h or d.

    >>> keep_from("1000"), keep_from("36h")
    ((1000, 0), (0, 129600000))
    """
    match = _KEEP.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a number of records, or an age such as 90m, 36h or 7d, not {text!r}")
    number, unit = int(match[1]), match[2]
    return (0, number * UNITS_MS[unit]) if unit else (number, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLeader:
    """Who trims a partition: the leader's name and HTTP address, and the HTTP addresses of members, as far as known."""

    name: str
    address: str
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ShardLog:
    """A shard's partition of ``om.log``."""

    number: int

    def __str__(self) -> str:
        return f"shard {self.number}"

    def leader(self, settings: Settings) -> LogLeader | None:
        """Return who leads the shard, None if nobody does now."""
        name = next((name for name, view in shard_views(settings, self.number).items() if is_leader(view)), None)
        members = tuple((node.name, node.address) for node in settings.nodes)
        return None if name is None else LogLeader(name=name, address=settings.node(name).address, members=members)


@dataclass(frozen=True, slots=True)
class PipelineLog:
    """A pipeline's partition of ``dn.log``."""

    number: int

    def __str__(self) -> str:
        return f"pipeline-{self.number}"

    def leader(self, settings: Settings) -> LogLeader | None:
        """Return who leads the pipeline, as its members say; None if nobody does now."""
        found = next((one for one in pipelines_of(settings) if one["partition"] == self.number), None)
        members = () if found is None else tuple((one["datanode"], one["http_address"]) for one in found["members"])
        for name, address in members:
            said = (node_status(address) if address else None) or {}
            if any(one["shard"] == self.number and one["role"] == "leader" for one in said.get("pipelines", ())):
                return LogLeader(name=name, address=address, members=members)
        return None


TrimmedLog: TypeAlias = ShardLog | PipelineLog


def pipelines_of(settings: Settings) -> list[Json]:
    """Return the pipelines, closed ones too, as the first node says that answers. Raises Unavailable."""
    for node in settings.nodes:
        if (answer := node_answer(node.address, "/v1/pipelines?consistency=stale")) is not None:
            return list(answer["pipelines"])
    raise Unavailable(f"no node answers: {', '.join(node.address for node in settings.nodes)}")


def look(settings: Settings, log: TrimmedLog, wish: Wish) -> Json:
    """Return what the leader says about trimming: how far, and what each rule allows. Raises Unavailable, UserError."""
    return _ask(settings, log, wish, "look")


def log_base(settings: Settings, log: TrimmedLog, wish: Wish) -> Json:
    """Have the leader log a base, unless the last one is of the present state. Raises Unavailable, UserError."""
    return _ask(settings, log, wish, "base")


def trim(
    settings: Settings, log: TrimmedLog, wish: Wish, *, wait_s: float, has_audit: bool, report: Callable[[str], None]
) -> Json:
    """Log a base, wait until it can be trimmed to, and trim; return the leader's decision.

    After ``wait_s`` the log is trimmed as far as the rules allow by then. ``has_audit``: whether an audit may be
    running that has not been heard of: it gets AUDIT_WORD_S to speak. Raises Unavailable, UserError.
    """
    report(f"{log}: the leader is asked for a base")
    base = log_base(settings, log, wish)
    if base["why"]:
        report(f"{log}: no base is logged: {base['why']}")
    told, audit_word = "", Deadline.after_s(AUDIT_WORD_S)
    patience = Deadline.after_s(wait_s if not (base["why"] or wish.keep_records or wish.keep_ms) else 0.0)
    while not patience.has_passed:
        found = look(settings, log, wish)
        at_base = found["base"] is not None and found["base"]["index"] >= base["index"]
        held_by = next(rule for rule in found["rules"] if rule["rule"] == found["held_by"])
        if at_base and (audit_word.has_passed or not base["asked"] or not has_audit or wish.without_audit):
            break
        if not base["asked"] and held_by["rule"] == "base":
            break
        if not at_base and held_by["rule"] != told:
            told = held_by["rule"]
            report(f"{log}: waiting: {held_by['rule']}: {held_by['why']}")
        time.sleep(POLL_S)
    return _ask(settings, log, wish, "trim")


def _ask(settings: Settings, log: TrimmedLog, wish: Wish, do: str) -> Json:
    parameters = {
        "do": do, "keep_records": str(wish.keep_records), "keep_ms": str(wish.keep_ms),
        "leave_behind": ",".join(wish.leave_behind), "without_audit": "true" if wish.without_audit else "false",
    }  # fmt: skip
    deadline = Deadline.after_s(LEADER_WAIT_S)
    while True:
        leader = log.leader(settings)
        told = f"{log} has no leader"
        if leader is not None:
            nodes = ",".join(f"{name}={address}" for name, address in leader.members if address)
            url = url_of(leader.address, f"/v1/shards/{log.number}/trim")
            try:
                answer = http_to(leader.address).post(
                    url, params={**parameters, "nodes": nodes}, timeout=ASK_TIMEOUT_S,
                    auth=operator_auth(settings),
                )  # fmt: skip
                body = answer.json()
            except (httpx.HTTPError, ValueError) as error:
                raise Unavailable(f"{leader.name}, which leads {log}, does not answer: {error!r}") from error
            if answer.status_code == httpx.codes.OK:
                return dict(body)
            told = f"{leader.name}: {body.get('message', body)}"
            if answer.status_code == httpx.codes.NOT_FOUND:
                raise UserError(f"{leader.name} runs software that cannot trim: upgrade it first")
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                raise UserError(told)
        if deadline.has_passed:
            raise Unavailable(f"{told}: try again")
        time.sleep(POLL_S)
