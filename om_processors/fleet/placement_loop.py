"""The loop that carries out the decisions of ``placement``, on every node.

It places while this node leads shard 0, and deletes blocks (``block_deletion``) for each shard that this node leads.

Rules:
    - Rows change only by requests (``proposer``); datanodes are told over TCP (``datanode_client``). Each turn decides
      afresh, so a later turn, here or on the next leader, puts right what was lost, refused or done twice.
    - Addresses come from heartbeats, never from the rows: a datanode may have started again elsewhere. Members are told
      where the others are.
    - A turn never waits for a datanode. A message that was accepted is sent again after REMIND_MS if heartbeats still
      do not show its effect.
    - The topic gets more partitions before a pipeline needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

from om_processors.config import NodeConfig
from om_processors.fleet.block_deletion import BlockDeletion
from om_processors.fleet.core import pipeline_making, placement
from om_processors.fleet.core.fleet import Datanode, Picture
from om_processors.fleet.datanode_client import FETCH_TIMEOUT_S, MAX_UNDER_WAY, Courier
from om_processors.fleet.heartbeats import FleetView
from om_processors.fleet.proposer import Proposer
from om_processors.fleet.token_keys import TokenKeyRounds
from replicated_db.core.ports import Clock
from replicated_db.shell.leader_loop import LeaderLoop
from replicated_db.shell.logs import Note
from replicated_db.shell.process import Background
from schemas.kafka.client_settings import client_settings
from schemas.records.datanode import CloseContainer, ClosePipeline, FetchContainer, OpenPipeline, PipelineRow
from schemas.records.messages import CreatePipeline
from schemas.sharding import MAX_PIPELINES, SYSTEM_SHARD
from schemas.topics import DN_AUDIT, DN_LOG

TURN_S = 0.5
RETRY_MS = 2_000
"""A message that was refused or got no answer is sent again after this time."""
REMIND_MS = 10_000
"""An accepted message whose effect does not show in heartbeats is sent again after this time."""
COPY_REMIND_MS = 120_000
"""The same for a copy that a datanode has begun: it takes as long as the container is large."""
SOURCES_REMIND_MS = 3_600_000
"""The same for the other holders of a container, if they have not changed."""
MAX_SOURCES_PER_TURN = 20
"""Copies whose holders are told their sources in one turn: a new leader tells all of them."""
MAX_SOURCES_PER_DATANODE = 2
"""Unanswered messages about sources to one datanode: a silent datanode must not keep the courier from all others."""
MAX_ADDRESSES_PER_TURN = 16
"""Members that are told in one turn where the others are: a new leader tells all of them."""
MAX_REMEMBERED = 10_000
GROW_PARTITIONS = 32
"""Partitions by which dn.log grows at once."""
ADMIN_TIMEOUT_S = 10.0


class PlacementLoop(Background):
    """The loop of one node, on a thread of its own."""

    def __init__(
        self, config: NodeConfig, view: FleetView, loops: Mapping[int, LeaderLoop], proposer: Proposer,
        courier: Courier, clock: Clock, note: Note, fatal: Callable[[BaseException], None],
        token_keys: TokenKeyRounds | None = None,
    ) -> None:  # fmt: skip
        """``token_keys`` has the keys of block tokens rolled and told; None: there are no tokens."""
        super().__init__("placement", fatal)
        self._config = config
        self._view = view
        self._loops = loops
        self._proposer = proposer
        self._courier = courier
        self._clock = clock
        self._note = note
        self._token_keys = token_keys
        self._replicas = min(pipeline_making.PIPELINE_REPLICAS, len(config.datanodes))
        self._not_before: dict[Hashable, tuple[int, bool]] = {}
        """By message that was sent: when it may be sent again, and whether it was accepted. Beyond MAX_REMEMBERED, what
        may be sent again first is forgotten.
        """
        self._named: dict[tuple[int, str], tuple[bytes, tuple[str, ...], int]] = {}
        """By container and holder of a copy: the holder's incarnation, the sources that it was told, and when it is
        told again. There are as many entries as copies in the picture.
        """
        self._moved: dict[tuple[int, str], tuple[tuple[bytes, tuple[str, ...]] | None, int]] = {}
        """By pipeline and member: the member's incarnation, the addresses that it knows, and when it is told again if
        it has not answered.
        """
        self._there = range(0)
        """Partitions that the pipelines' log had when last seen."""
        self._deletions = {
            shard: BlockDeletion(
                shard, loop.replica, proposer, courier, clock, note, config.deleted_block_grace_ms, loop.log_time_ms
            )
            for shard, loop in loops.items()
        }

    def run(self) -> None:
        """Take turns."""
        while not self._stop.wait(TURN_S):
            self.turn()

    def turn(self) -> None:
        """Decide and act once, for the shards that this node leads."""
        leading = [shard for shard, loop in self._loops.items() if loop.leading]
        if not leading:
            return
        picture = self._view.refresh()
        self._courier.give_up(
            lambda key: isinstance(key, tuple) and key[0] == "fetch" and not picture.member(key[2]).alive
        )
        if SYSTEM_SHARD in leading:
            if self._token_keys is not None:  # before pipelines are opened: their first blocks need tokens
                self._token_keys.turn(picture)
            self._place(picture)
        for shard in leading:
            self._deletions[shard].turn(picture)
        if SYSTEM_SHARD in leading:
            self._name_sources(picture)  # there may be many of these, so the courier takes all other messages first

    def _place(self, picture: Picture) -> None:
        for retire in pipeline_making.retirements(picture):
            if self._proposer.propose(("retire", retire.partition), retire):
                self._note(f"pipeline-{retire.partition} is retired: {retire.reason}", shard=SYSTEM_SHARD)
        for state in placement.reached(picture):
            if self._proposer.propose(("state", state.datanode, state.state), state):
                self._note(f"datanode {state.datanode} is {state.state}", shard=SYSTEM_SHARD)
        create = pipeline_making.new_pipeline(picture, self._replicas)
        if create is not None:
            self._create(create)
        to_open = placement.to_open(picture)
        last = max((row.partition for row, _ in to_open), default=0)
        # Another node may have asked for a pipeline whose partition nobody has made.
        if to_open and last not in self._there:
            self._ensure_partition(last)
        for row, datanode in to_open:
            if row.partition in self._there:
                self._tell(("open", row.partition, row.generation, datanode.name), datanode, _open(picture, row))
        self._tell_addresses(picture)
        for row, datanode in placement.to_close(picture):
            close = ClosePipeline(partition=row.partition, generation=row.generation)
            self._tell(("close", row.partition, row.generation, datanode.name), datanode, close)
        for container, members in placement.full_containers(picture, self._config.container_bytes):
            number = container.container_id
            request = CloseContainer(partition=container.partition, container_id=number)
            # The leader is asked first; a member that does not lead forwards the request.
            self._tell(("container", number), members[0], request)
        self._copy(picture)

    def _create(self, create: CreatePipeline) -> None:
        key = ("create", create.partition)
        if (
            self._proposer.is_due(key)
            and self._ensure_partition(create.partition)
            and self._proposer.propose(key, create)
        ):
            names = ", ".join(member.datanode for member in create.members)
            self._note(f"pipeline-{create.partition} of {names} is proposed", shard=SYSTEM_SHARD)

    def _tell_addresses(self, picture: Picture) -> None:
        """Tell members of pipelines, also of closed ones, the others' present addresses if these changed or the member
        restarted.

        A member knows the addresses that the pipeline was opened with, and repairs its blocks from there.
        """
        now_ms = self._clock.elapsed_ms()
        left = MAX_ADDRESSES_PER_TURN
        rows = {row.partition: row for row in picture.pipelines}
        self._moved = {place: said for place, said in list(self._moved.items()) if place[0] in rows}
        for row in picture.pipelines:
            members = [picture.found_at(one) for one in row.members]
            if not picture.settled and any(picture.member(one.datanode).heartbeat is None for one in row.members):
                continue  # the row may be older than what the members know
            for one in row.members:
                node = picture.member(one.datanode)
                report = node.report(row.partition)
                if not left or not node.alive or node.heartbeat is None or report is None:
                    continue
                if report.generation != row.generation:
                    continue  # to_open tells it everything
                said = (node.heartbeat.incarnation, tuple(member.address for member in members))
                known, next_ms = self._moved.get((row.partition, node.name), (None, 0))
                if known == said or now_ms < next_ms:
                    continue
                place = (row.partition, node.name)
                self._moved[place] = known, now_ms + REMIND_MS
                left -= self._courier.send(
                    ("addresses", *place), node.heartbeat.address, _open(picture, row), datanode=node.name,
                    done=partial(self._was_told, place, said),
                )  # fmt: skip

    def _was_told(
        self, place: tuple[int, str], said: tuple[bytes, tuple[str, ...]],
        answer: Any,  # noqa: ARG002
    ) -> None:  # fmt: skip
        self._moved[place] = said, 0

    def _copy(self, picture: Picture) -> None:
        for copy in placement.copies(picture, self._fetching()):
            target = picture.member(copy.target)
            request = FetchContainer(
                partition=copy.partition, container_id=copy.container_id, sources=list(copy.sources)
            )
            key = ("fetch", copy.container_id, copy.target)
            self._tell(key, target, request, FETCH_TIMEOUT_S)

    def _name_sources(self, picture: Picture) -> None:
        """Tell holders of copies whom to ask, if that has changed or the holder has started again."""
        now_ms = self._clock.elapsed_ms()
        before, self._named = self._named, {}
        under_way = self._courier.under_way
        left = max(0, min(MAX_SOURCES_PER_TURN, MAX_UNDER_WAY // 2 - len(under_way)))
        busy = Counter(key[2] for key in under_way if isinstance(key, tuple) and key[0] == "sources")
        for copy in placement.copy_sources(picture):
            place = (copy.container_id, copy.target)
            holder = picture.member(copy.target)
            if holder.heartbeat is None:
                continue
            said = (holder.heartbeat.incarnation, copy.sources)
            known = before.get(place)
            if known is not None:
                self._named[place] = known
                if known[:2] == said and now_ms < known[2]:
                    continue
            if not left or busy[copy.target] >= MAX_SOURCES_PER_DATANODE:
                continue
            request = FetchContainer(
                partition=copy.partition, container_id=copy.container_id, sources=list(copy.sources)
            )
            if self._courier.send(
                ("sources", *place), holder.heartbeat.address, request, datanode=copy.target,
                done=partial(self._were_named, place, said),
            ):  # fmt: skip
                left -= 1
                busy[copy.target] += 1
                self._named[place] = *said, now_ms + RETRY_MS

    def _were_named(
        self, place: tuple[int, str], said: tuple[bytes, tuple[str, ...]],
        answer: Any,  # noqa: ARG002
    ) -> None:  # fmt: skip
        # If a turn that runs meanwhile overwrites this entry, the same message is sent once more.
        self._named[place] = *said, self._clock.elapsed_ms() + SOURCES_REMIND_MS

    def _fetching(self) -> set[tuple[int, str]]:
        """Return the copies that are under way or were just begun, as (container, datanode)."""
        now_ms = self._clock.elapsed_ms()
        begun = [key for key, (until_ms, taken) in list(self._not_before.items()) if taken and until_ms > now_ms]
        keys = [key for key in (*self._courier.under_way, *begun) if isinstance(key, tuple) and key[0] == "fetch"]
        return {(key[1], key[2]) for key in keys}

    def _tell(self, key: Hashable, datanode: Datanode, request: Any, timeout_s: float | None = None) -> bool:
        """Tell a datanode something, unless it was told the same a moment ago or is being told."""
        now_ms = self._clock.elapsed_ms()
        if datanode.heartbeat is None or now_ms < self._not_before.get(key, (0, False))[0]:
            return False
        self._not_before.pop(key, None)
        more = {} if timeout_s is None else {"timeout_s": timeout_s}
        sent = self._courier.send(
            key, datanode.heartbeat.address, request, datanode=datanode.name, done=partial(self._was_accepted, key),
            **more
        )  # fmt: skip
        if sent:
            self._not_before.setdefault(key, (now_ms + RETRY_MS, False))  # it may have been accepted by now
            while len(self._not_before) > MAX_REMEMBERED:
                first, _ = min(list(self._not_before.items()), key=itemgetter(1))
                self._not_before.pop(first, None)
        return sent

    def _was_accepted(self, key: Hashable, answer: Any) -> None:  # noqa: ARG002 - the effect shows in heartbeats
        copying = isinstance(key, tuple) and key[0] == "fetch"
        wait_ms = COPY_REMIND_MS if copying else REMIND_MS
        self._not_before[key] = self._clock.elapsed_ms() + wait_ms, True
        if isinstance(key, tuple) and copying:
            self._note(f"container {key[1]} is copied to {key[2]}", shard=SYSTEM_SHARD)

    def _ensure_partition(self, partition: int) -> bool:
        """Give the pipelines' log and the topic of their reports more partitions if ``partition`` is missing; return
        whether it is there.
        """
        try:
            admin = AdminClient(client_settings(self._config.bootstrap_servers, {"log_level": 0}))
            topics = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
            there = {name: len(topics[name].partitions) for name in (DN_AUDIT, DN_LOG)}
            self._there = range(min(there.values()))
            if partition in self._there:
                return True
            total = max(*there.values(), min(MAX_PIPELINES, max(partition + 1, there[DN_LOG] + GROW_PARTITIONS)))
            # the topic of reports first: no pipeline may report where reports cannot be sent
            for name, count in there.items():
                if count < total:
                    admin.create_partitions([NewPartitions(name, total)])[name].result(ADMIN_TIMEOUT_S)
                    self._note(f"{name} has {total} partitions now", shard=SYSTEM_SHARD)
        # After a time-out nobody knows whether there are more now; a later turn looks.
        except (KafkaException, KeyError, TimeoutError) as error:
            self._note(f"no partition {partition} of {DN_LOG} for now: {error!r}", shard=SYSTEM_SHARD)
            return False
        self._there = range(total)
        return True


def _open(picture: Picture, row: PipelineRow) -> OpenPipeline:
    """Return the message that opens a pipeline, with its members' present addresses."""
    members = [picture.found_at(one) for one in row.members]
    return OpenPipeline(pipeline=row.pipeline, partition=row.partition, generation=row.generation, members=members)
