"""Trimming of ``om.log``: on an operator's word, and regularly by each shard's leader (design, section 7).

Rules:
    - The rule of ``replicated_db/core/trimming/trim_rule.py`` decides how far; here is who asks, and when.
    - Regular trimming keeps the records of the last ``trim_log_after_ms``. It logs a base each sixteenth of that time,
      if the shard was written meanwhile, and trims to the newest base that is old enough. It leaves nobody behind.
    - A base is logged only while a majority of the members has the leader's digests: a base flags all who differ.
    - If the brokers or a member do not answer, the next turn tries again. A refusal is told when its reason changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from om_processors.config import NodeConfig
from om_processors.fleet.proposer import Proposer
from replicated_db.core.errors import StoreFailure
from replicated_db.core.ports import Clock, LogUnavailable
from replicated_db.core.trimming.places import MemberPlace
from replicated_db.core.trimming.trim_rule import TrimDecision, TrimWish
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from replicated_db.shell.trimming.log_trimmer import Holds, LogTrimmer, no_holds
from schemas.leader_names import node_and_address
from schemas.records.messages import OWN_DIGESTS, LogDigestBase
from schemas.topics import LEADER_GROUP, OM_LOG

TURN_S = 20.0
BASES_KEPT = 16
"""Bases that regular trimming logs within the time that it keeps."""

LEAST_INTERVAL_MS = 60_000
"""The least time between two bases that regular trimming logs."""

GROUP_TIMEOUT_S = 5.0
BASIS = "the leader's own, to trim the log to"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseAnswer:
    """Whether a base is on its way; if not, why. ``index`` is the shard's at that moment."""

    asked: bool
    index: int
    why: str = ""


class OMLogTrimming:
    """Trims the shards that this node leads. For any thread."""

    def __init__(
        self, config: NodeConfig, topic_id: str, loops: Mapping[int, LeaderLoop], proposer: Proposer, clock: Clock,
        holds: Holds = no_holds,
    ) -> None:  # fmt: skip
        self._config = config
        self._loops = loops
        self._proposer = proposer
        self._holds = holds
        self._trimmer = LogTrimmer(
            config.bootstrap_servers, OM_LOG, OM_LOG, cluster=config.cluster, topic_id=topic_id, secret=config.secret,
            clock=clock,
        )  # fmt: skip

    def leads(self, shard: int) -> bool:
        """Whether this node leads a shard."""
        return self._loops[shard].leading

    def place(self, shard: int) -> MemberPlace:
        """Return where this node's replica stands, on the disk. Raises StoreFailure."""
        return self._loops[shard].replica.durable_place(self._holds(shard))

    def look(self, shard: int, wish: TrimWish, addresses: Mapping[str, str]) -> TrimDecision:
        """Return how far a shard's log may be trimmed. ``addresses``: of nodes that this node's settings do not name.

        Raises LogUnavailable.
        """
        return self._trimmer.look(shard, self.place(shard), self._addresses(addresses), wish)

    def trim(self, shard: int, wish: TrimWish, addresses: Mapping[str, str]) -> TrimDecision:
        """Trim a shard's log as far as the rule allows. Raises LogUnavailable."""
        return self._trimmer.trim(shard, self.place(shard), self._addresses(addresses), wish)

    def log_base(self, shard: int, addresses: Mapping[str, str]) -> BaseAnswer:
        """Ask for a base, unless the last one is of the present state. It takes effect like any request."""
        own = self.place(shard)
        if own.bases and own.index <= own.bases[-1].index + 1:  # its own batch has an index
            return BaseAnswer(asked=False, index=own.bases[-1].index)
        if (why := self._trimmer.agreed(shard, own, self._addresses(addresses))) is not None:
            return BaseAnswer(asked=False, index=own.index, why=why)
        body = LogDigestBase(shard=shard, index=OWN_DIGESTS, slots=[], sums=[], basis=BASIS)
        # With the index in the key, a base of a later state is asked for at once.
        self._proposer.propose(("base", shard, own.index), body)
        return BaseAnswer(asked=True, index=own.index)

    def base_ages_ms(self, shard: int) -> list[int]:
        """Return how long ago the bases were logged to which the log could be trimmed. Raises LogUnavailable."""
        return self._trimmer.base_ages_ms(shard, self._loops[shard].replica.bases)

    def age_ms(self, shard: int) -> int:
        """Return how long ago the log's first record was appended. Raises LogUnavailable."""
        return self._trimmer.age_ms(shard)

    def _addresses(self, others: Mapping[str, str]) -> Mapping[str, str]:
        """Return all known addresses: the brokers know the leaders' group, and the settings win over both."""
        return {**_group_addresses(self._config.bootstrap_servers), **others, **dict(self._config.node_addresses)}

    def close(self) -> None:
        """Close all connections."""
        self._trimmer.close()


def _group_addresses(bootstrap_servers: str) -> dict[str, str]:
    """Return the addresses of the nodes in the leaders' group; none if the brokers do not tell."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        asked = admin.describe_consumer_groups([LEADER_GROUP], request_timeout=GROUP_TIMEOUT_S)
        members = asked[LEADER_GROUP].result(GROUP_TIMEOUT_S + 1).members
    except (KafkaException, TimeoutError):
        return {}
    found = (node_and_address(member.client_id) for member in members)
    return {name: address for name, address in found if address}


class LogTrimLoop(Background):
    """Trims regularly, on a thread of its own; ``keep_ms`` of 0 = never."""

    def __init__(
        self, trimming: OMLogTrimming, shards: int, keep_ms: int, note: Note, fatal: Callable[[BaseException], None]
    ) -> None:
        super().__init__("log trimming", fatal)
        self._trimming = trimming
        self._shards = shards
        self._wish = TrimWish(keep_ms=keep_ms)
        self._interval_ms = max(keep_ms // BASES_KEPT, LEAST_INTERVAL_MS)
        self._note = note
        self._told: dict[int, str] = {}

    def run(self) -> None:
        """Take turns."""
        while self._wish.keep_ms and not self._stop.wait(TURN_S):
            for shard in range(self._shards):
                if self._trimming.leads(shard) and not self._stop.is_set():
                    self.turn(shard)

    def turn(self, shard: int) -> None:
        """Log a base if one is due, and trim to one that is old enough."""
        try:
            ages_ms = self._trimming.base_ages_ms(shard)
            newest_ms = min(ages_ms) if ages_ms else self._trimming.age_ms(shard)
            if newest_ms >= self._interval_ms:
                asked = self._trimming.log_base(shard, {})
                if asked.why:
                    self._tell(shard, f"no base is logged: {asked.why}")
                    return
            if max(ages_ms, default=-1) < self._wish.keep_ms:
                return
            done = self._trimming.trim(shard, self._wish, {})
        except LogUnavailable as error:
            self._tell(shard, f"not trimmed: {error}")
            return
        except StoreFailure as error:
            self._fatal(error)
            return
        if done.records:
            self._tell(shard, f"the log is trimmed to offset {done.offset}, {done.records:,} records are deleted")
        elif done.held_by.rule not in ("base", "keep"):
            self._tell(shard, f"the log is not trimmed: {done.held_by.why}")

    def _tell(self, shard: int, text: str) -> None:
        if self._told.get(shard) != text:
            self._told[shard] = text
            self._note(text, shard=shard)
