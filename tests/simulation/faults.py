"""Everything that may happen in a simulated cluster: the ordinary steps, and the faults.

An action is a method that takes a number; where it is not possible it does nothing. ``ORDINARY`` and ``FAULTS`` give their weights; a seed
chooses which faults it has (a few of them at a time go deeper than all at once) and draws the list of actions.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from xxhash import xxh3_128_digest

from om_processors.execution.requests import LATE_REQUEST_TYPES
from replicated_db.core.tables.merge import decode_int64, encode_int64
from replicated_db.core.trimming.trim_rule import TrimFacts, TrimWish, decide, lost
from schemas.codecs.codec import decode, encode, encode_at
from schemas.column_families import (
    DELETED_TABLE,
    KEY_TABLE,
    OM_COLUMN_FAMILIES,
    OPEN_KEY_TABLE,
    SNAPSHOT_TABLE,
    USAGE_TABLE,
)
from schemas.records.log import LATE_MODE, LEADER_MODE, DigestBase, Genesis, LeaderClaim, Tick
from schemas.records.messages import (
    OWN_DIGESTS,
    AddNode,
    CancelPrepare,
    CommitKey,
    CreateBucket,
    CreateKey,
    CreateSnapshot,
    DeleteKey,
    DeleteSnapshot,
    ExpireOpenKeys,
    Finalize,
    LeaderRequest,
    LogDigestBase,
    Prepare,
    PurgeBlocks,
    PurgeSnapshots,
    PutKey,
    RemoveDatanode,
    RemoveNode,
    RenameKey,
    RenameSnapshot,
    Request,
    RequestBody,
    SetBucketProperty,
    SetRequestMode,
    SetSnapshotProperty,
    ShardCommand,
)
from tests.simulation.clients import BUCKETS, DATANODES, FIRST_CALLS, KEYS, SNAPSHOTS, VOLUME
from tests.simulation.cluster import CLUSTER, NAMES, UNSYNCED_WRITES, Node
from tests.simulation.truth import HIGHEST_LEVEL
from tests.simulation.world import Action, Door, World
from tests.support.replicated.kit import prune

STEPS = 350
SHARE_OF_FAULTS = 0.3
"""How many of all kinds of faults a seed has."""
FAMILIES_AT: dict[int, int | None] = {1: -4, 2: -4, 7: -1, 9: None, 10: None}
"""How many of today's column families, from the end, software of an earlier level did not know; of the others: 2."""

SECOND_MS = 1000
YEAR_MS = 365 * 24 * 3600 * SECOND_MS
JUMPS_MS = (-3 * SECOND_MS, 5 * SECOND_MS, 90 * SECOND_MS, -400 * SECOND_MS, YEAR_MS, -YEAR_MS, 0)
SHORT_MS = (1, 20, 300, 1100)
LONG_MS = (6_000, 40_000, 250_000, 700_000)

ORDINARY = {
    "go_on": 40, "deliver": 16, "call": 22, "respond": 8, "resend": 3, "elapse": 3, "rebalance": 6, "assign": 1, "read": 3,
    "restart": 5, "prune": 1, "flush": 4, "purge": 3, "expire_open_keys": 1,
    "churn": 8, "snapshot": 7, "purge_snapshots": 2, "clean_up": 2,
}  # fmt: skip

FAULTS = {
    "crash": 2, "power_failure": 1, "crash_in_a_write": 2, "pause": 2, "wake": 5, "cut_off": 2, "connect": 5,
    "zombie": 2, "two_claim": 1,
    "expire_append": 3, "lose_report": 3, "hold_report": 4, "release_report": 4, "report_without_offset": 1,
    "report_too_high": 1, "report_too_low": 1, "append_twice": 2, "overtake": 3, "orphan": 4, "append_again": 2, "forge_twin": 2,
    "lose_request": 2, "late_request": 6, "reuse_call_id": 2, "garbage": 1, "lose_response": 2,
    "cut_requests": 1, "trim_requests": 1, "cut_log": 1,
    "skip_records": 2, "rewind": 2, "miss_records": 1,
    "jump_node": 2, "jump_broker": 1, "jump_client": 2, "long_time": 2, "damage_row": 3, "poison_log": 1,
    "set_mode": 10, "operate": 3,
}  # fmt: skip

TRIMS = 8
"""How often a base is logged, and as often the log is trimmed, in a seed that has trimming at all: half of the seeds."""

RESERVATIONS = 8
"""How often a client asks for blocks, and thrice for something about them, in three seeds of four."""
SETTLE = [
    ("go_on", 15), ("deliver", 3), ("go_on", 15), ("deliver", 3), ("go_on", 15), ("respond", 3), ("respond", 3),
    ("respond", 3),
]  # fmt: skip
"""A client most likely hears what has become of its request: one that knows of no reservation can use none."""

DOOR_CHANGES = 12
"""How often the clients change doors, in a seed in which they do."""

CALM = [
    *[(name, node) for name in ("connect", "wake", "restart") for node in range(3)],
    ("rebalance", 0), ("go_on", 15), ("go_on", 31), ("deliver", 3), ("go_on", 15), ("log_base", 0), ("go_on", 15),
    ("deliver", 3), ("go_on", 31), ("deliver", 3), ("go_on", 15), ("go_on", 47), ("trim_log", 0),
]  # fmt: skip
"""All nodes run, and what they say is known: the log is trimmed most likely."""


def actions_of(seed: int, steps: int = STEPS) -> list[Action]:
    """Return the actions of a seed."""
    rng = random.Random(seed)
    chosen = {name: weight * rng.choice((1, 1, 3)) for name, weight in FAULTS.items() if rng.random() < SHARE_OF_FAULTS}
    if "poison_log" in chosen and rng.random() < 0.7:  # it ends a run
        del chosen["poison_log"]
    if "set_mode" in chosen:  # replicas that execute spread a damaged row, and nothing in the log says so
        chosen.pop("damage_row", None)
    weights = ORDINARY | chosen
    names = rng.choices(list(weights), list(weights.values()), k=steps)
    level = rng.choice((11, 11, 10, 9, 8, 7, 6, 4, 2, 1))
    prelude = [("begin_at_level", level)] if level < HIGHEST_LEVEL else []
    prelude += [("assign", 0), *[("go_on", 15)] * 3, ("deliver", 0), *[("go_on", 15)] * 2]
    prelude += [("call", 0), ("call", 0), ("go_on", 15), ("deliver", 7), ("go_on", 15)]
    drawn = [(name, rng.getrandbits(24)) for name in names]
    return prelude + with_healing(seed, with_reservations(seed, with_doors(seed, with_trims(seed, drawn))))


def with_healing(seed: int, actions: list[Action]) -> list[Action]:
    """Let half of the seeds heal by the direct door; drawn apart, as trimming is."""
    rng = random.Random(f"healing {seed}")
    return [*actions, ("heal_directly", 0)] if rng.random() < 1 / 2 else actions


def with_reservations(seed: int, actions: list[Action]) -> list[Action]:
    """Let the clients reserve blocks, use them and give them back; drawn apart, as trimming is."""
    rng = random.Random(f"reservations {seed}")
    if rng.random() < 3 / 4:
        for place in sorted((rng.randrange(len(actions)) for _ in range(RESERVATIONS)), reverse=True):
            client = rng.randrange(2)
            asked = [("reserve", rng.getrandbits(23) << 1 | client) for _ in range(4)]
            actions[place:place] = [asked[0], *SETTLE, *asked[1:]]
    return actions


def with_doors(seed: int, actions: list[Action]) -> list[Action]:
    """Let the clients of two seeds of three change doors now and then; drawn apart, as trimming is."""
    rng = random.Random(f"doors {seed}")
    if rng.random() < 2 / 3:
        for _ in range(DOOR_CHANGES):
            actions.insert(rng.randrange(len(actions)), ("use_door", rng.getrandbits(24)))
    return actions


def with_trims(seed: int, actions: list[Action]) -> list[Action]:
    """Add trimming to half of the seeds, at any moments. It is drawn apart, so that the others stay what they were."""
    rng = random.Random(f"trimming {seed}")
    if rng.random() < 0.5:
        for name in ("log_base", "trim_log") * TRIMS:
            actions.insert(rng.randrange(len(actions)), (name, rng.getrandbits(24)))
        for place in sorted((rng.randrange(len(actions)) for _ in range(TRIMS)), reverse=True):
            actions[place:place] = CALM
    return actions


class Faults:
    """The actions, on one world."""

    def __init__(self, world: World) -> None:
        self.world = world

    # -- ordinary steps ----------------------------------------------------------------------------------------------

    def use_door(self, number: int) -> None:
        self.world.door = (Door.DIRECT, Door.DIRECT, Door.BOTH, Door.KAFKA)[number % 4]

    def heal_directly(self, _number: int) -> None:
        """Once the faults have ended, requests take the direct door alone."""
        self.world.healing_door = Door.DIRECT

    def go_on(self, number: int) -> None:
        self.world.run(number, 1 + number % 16)

    def deliver(self, number: int) -> None:
        appender = self.world.appender(number >> 8)
        for _ in range(1 + number % 4):
            if appender is not None and appender.in_flight:
                appender.deliver()

    def call(self, number: int) -> None:
        world = self.world
        client = world.clients[number % len(world.clients)]
        world.begin(client, client.body(number >> 2))

    def reserve(self, number: int) -> None:
        """A client reserves blocks, writes a key with some, or gives them back."""
        client = self.world.clients[number % len(self.world.clients)]
        if client.begun >= FIRST_CALLS:
            self.world.begin(client, client.reservation_body(number // len(self.world.clients)))

    def flush(self, number: int) -> None:
        """A replica's table cache is written behind; without late validation there is nothing in it."""
        node = self.world.node(number)
        if node.ready and not node.store.crash:
            node.replica.flush_behind()

    def respond(self, number: int) -> None:
        for _ in range(1 + number % 4):
            self.world.respond(number >> 4)

    def resend(self, _number: int) -> None:
        self.world.resend()

    def elapse(self, number: int) -> None:
        self.world.scheduler.now_ms += SHORT_MS[number % len(SHORT_MS)]

    def assign(self, number: int) -> None:
        """The coordinator moves the shard: who had it is told, and drains."""
        world = self.world
        for node in world.nodes.values():
            if node.leading is not None:
                node.stop.set()
        self._lead(world.node(number))

    # -- operators ---------------------------------------------------------------------------------------------------

    def set_mode(self, number: int) -> None:
        """Requests of a type, mostly of the common ones, are executed by every replica from now on, or by the leader again."""
        common = [
            one.__name__
            for one in (CreateKey, CommitKey, PutKey, DeleteKey, RenameKey, SetBucketProperty, CreateBucket)
        ]
        kinds = common + [name for name in LATE_REQUEST_TYPES if name not in common]
        kind = kinds[(number >> 8) % len(kinds)]
        if (number >> 16) % 4 == 0 and DATANODES[0] in self.world.truth.model.datanodes:  # else hardly ever in time
            kind = RemoveDatanode.__name__
        mode = LEADER_MODE if number >> 6 & 3 == 0 else LATE_MODE
        self._operate(number, SetRequestMode(shard=0, request_type=kind, mode=mode))

    def operate(self, number: int) -> None:
        bodies = (
            AddNode(shard=0, node="n4"), RemoveNode(shard=0, node="n4"), Prepare(shard=0, checkpoint="upgrade"),
            CancelPrepare(shard=0), CancelPrepare(shard=0),
            Finalize(shard=0, level=2 + (number >> 8) % HIGHEST_LEVEL), None,  # one that is not known, too
        )  # fmt: skip
        self._operate(number, bodies[(number >> 2) % len(bodies)] or self._digest_base())

    def _digest_base(self) -> LogDigestBase:
        """Restart the sums at what the log gives now; should a request come before it, it is refused."""
        self.world.note("digest base asked for")
        slots, sums = self.world.truth.slots()
        return LogDigestBase(shard=0, index=self.world.truth.index, slots=slots, sums=sums, basis="oracle")

    def log_base(self, number: int) -> None:
        """A base of the leader's own digests is asked for."""
        self._operate(number, LogDigestBase(shard=0, index=OWN_DIGESTS, slots=[], sums=[], basis="trim"))

    def trim_log(self, number: int) -> None:
        """The log is trimmed as far as the rule allows at this moment."""
        world = self.world
        leader = next((node for node in world.nodes.values() if node.loop.leading), None)
        own = None if leader is None else leader.durable_place()
        if leader is None or isinstance(own, str | None):
            world.note("not trimmed: no leader")
            return
        answers = {name: node.durable_place() for name, node in world.nodes.items()}
        entries = world.log.entries
        for name, place in answers.items():
            if not isinstance(place, str) and world.log.first <= place.offset < len(entries):
                answers[name] = lost(place, xxh3_128_digest(entries[place.offset].value).hex()) or place
        logged_at_ms = {
            base: entries[base.offset].timestamp_ms for base in own.bases
            if base.offset < len(entries) and isinstance(decode(entries[base.offset].value), DigestBase)
        }  # fmt: skip
        facts = TrimFacts(
            first=world.log.first, end=len(world.log.entries), now_ms=world.broker_ms(), answers=answers,
            logged_at_ms=logged_at_ms,
        )  # fmt: skip
        done = decide(facts, TrimWish(keep_records=number % 7))
        if done.records:
            world.log.trim(done.offset)
            self._done("log trimmed", f"to {done.offset}")
        else:
            world.note(f"not trimmed: {done.held_by.rule}")

    def begin_at_level(self, level: int) -> None:
        """The log was created by older software, which knew neither the tables nor the requests of later levels."""
        world = self.world
        nonce = world.ids.nonce()
        world.log.append(
            encode(LeaderClaim(term=1, nonce=nonce, node="n0", address="n0", claimed_at_ms=world.broker_ms()))
        )
        genesis = Genesis(
            term=1, nonce=nonce, seq=1, prev_chain=world.truth.chain, cluster=CLUSTER, shard=0, shards=1,
            replicas=list(NAMES), column_families=list(OM_COLUMN_FAMILIES[: FAMILIES_AT.get(level, -2)]), feature_level=level,
        )  # fmt: skip
        world.log.append(encode_at(genesis, level))
        self._done("log of older software", f"at level {level}")

    def purge(self, number: int) -> None:
        """Rows of deletedTable are to be forgotten."""
        self._operate(number, PurgeBlocks(shard=0, rows=self._some_rows(DELETED_TABLE, number, number >> 15 << 8)))

    def churn(self, number: int) -> None:
        """A client commits what it has opened, or else deletes a key that is there, or opens one: versions for snapshots to need."""
        client, number = self.world.clients[number % len(self.world.clients)], number // len(self.world.clients)
        if client.begun < FIRST_CALLS:
            return
        there = sorted(key.decode() for cf, key in self.world.truth.rows if cf == KEY_TABLE)
        kind, number = number % 4, number // 4
        if client.sessions and kind:
            bucket, key, session = client.sessions.pop(number % len(client.sessions))
            size = min(kind, sum(block.length for block in session.blocks))
            body: RequestBody = CommitKey(
                volume=VOLUME, bucket=bucket, key=key, session_id=session.session_id, size=size,
                blocks=client._blocks(session, size),
            )  # fmt: skip
        elif there and kind < 2:
            _, volume, bucket, key = there[number % len(there)].split("/", 3)
            body = DeleteKey(volume=volume, bucket=bucket, key=key)
        else:
            body = CreateKey(volume=VOLUME, bucket=BUCKETS[0], key=KEYS[number % 2], size=1000)
            if number % 3 == 0:
                data = bytes([number % 251]) * (number % 50)
                body = PutKey(volume=VOLUME, bucket=BUCKETS[0], key=KEYS[number % 2], data=data)
        self.world.begin(client, body)

    def snapshot(self, number: int) -> None:
        """A client asks for something about snapshots."""
        kind, number = number % 12, number // 12
        place: dict[str, Any] = {"volume": VOLUME, "bucket": BUCKETS[number % 8 == 0]}
        name = SNAPSHOTS[number // 8 % len(SNAPSHOTS)]
        body: RequestBody = CreateSnapshot(**place, snapshot=name)
        if kind < 1:
            body = CreateSnapshot(**place)
        elif kind < 4:
            body = DeleteSnapshot(**place, snapshot=name)
        elif kind < 5:
            body = RenameSnapshot(**place, snapshot=name, to=f"snap{number // 64 % 6}")
        elif kind < 6:
            body = SetSnapshotProperty(**place, snapshot=name, properties={"a": "1"[: number >> 6 & 1]})
        client = self.world.clients[(number >> 8) % len(self.world.clients)]
        if client.begun >= FIRST_CALLS:
            self.world.begin(client, body)

    def purge_snapshots(self, number: int) -> None:
        """Deleted snapshots are to be purged; some requests name one that is not there, or is active."""
        there = sorted(key for cf, key in self.world.truth.rows if cf == SNAPSHOT_TABLE and b"/#" in key)
        more = (b"/vol/bucket/#1", b"/vol/bucket/snap1")[(number >> 8) % 2 : 1] if number >> 9 & 3 == 0 else ()
        self._operate(number, PurgeSnapshots(shard=0, rows=[*there[: (number >> 4) % 4], *more]))

    def clean_up(self, number: int) -> None:
        """A replica removes the checkpoints of purged snapshots."""
        node = self.world.node(number)
        if node.ready:
            node.cleanup.turn()

    def expire_open_keys(self, number: int) -> None:
        """Open keys are to expire; of a time that lies in the future for some clocks."""
        rows = self._some_rows(OPEN_KEY_TABLE, number, number >> 15 << 8 | 255)
        before_ms = self.world.truth.timestamp_ms + (-SECOND_MS, -20, 0, 0, 0, SECOND_MS)[(number >> 15) % 6]
        self._operate(number, ExpireOpenKeys(shard=0, modified_before_ms=before_ms, rows=rows))

    def _some_rows(self, table: str, number: int, absent_id: int) -> list[bytes]:
        """Return keys of a table's rows: some that are there, and perhaps one that is not."""
        there = sorted(key for cf, key in self.world.truth.rows if cf == table)
        first = (number >> 2) % max(len(there), 1)
        rows = there[first : first + (number >> 8) % 4]
        if number >> 12 & 1:
            rows.append(f"/{VOLUME}/{BUCKETS[0]}/{KEYS[number >> 13 & 3]}/{absent_id}".encode())
        return rows

    def _operate(self, number: int, body: ShardCommand | LeaderRequest) -> None:
        client = self.world.clients[number % len(self.world.clients)]
        if client.begun >= FIRST_CALLS:
            self.world.begin(client, body)

    def prune(self, number: int) -> None:
        node = self.world.node(number)
        if node.ready and not node.store.crash:
            prune(node.replica)

    def rebalance(self, number: int) -> None:
        """The coordinator notices that nobody leads."""
        if not any(node.leading and node.running for node in self.world.nodes.values()):
            self._lead(self.world.node(number))

    def _lead(self, node: Node) -> None:
        world = self.world
        if node.name not in world.invariants.tainted and node.lead():
            world.tell(f"{node.name} is to lead")

    def read(self, number: int) -> None:
        self.world.read(self.world.node(number), number >> 4)

    def restart(self, number: int) -> None:
        node = self.world.node(number)
        if not node.up:
            # Who has no peer to take a checkpoint from is started as it is: an operator loses nothing by that.
            if node.name in self.world.invariants.diverged and number >> 8 & 1 and self.world.may_rebuild(node):
                self.world.rebuild(node)
            else:
                node.boot()
            self.world.tell(f"{node.name} starts")

    # -- processes ---------------------------------------------------------------------------------------------------

    def crash(self, number: int) -> None:
        node = self.world.node(number)
        if node.up:
            node.crash()
            self._done("crash", node.name)

    def power_failure(self, number: int) -> None:
        node = self.world.node(number)
        if node.up:
            node.crash((number >> 4) % UNSYNCED_WRITES)
            self._done("power failure", node.name)

    def crash_in_a_write(self, number: int) -> None:
        self.world.node(number).store.crash = ("before", "after")[number >> 4 & 1]

    def pause(self, number: int) -> None:
        node = self.world.node(number)
        if node.up and node.running:
            node.running = False
            self._done("pause", node.name)

    def wake(self, number: int) -> None:
        node = self.world.node(number)
        if node.up:
            node.running = True

    def zombie(self, number: int) -> None:
        """Another node gets the shard; who had it hears nothing of that and goes on."""
        if any(node.leading for node in self.world.nodes.values()):
            self._lead(self.world.node(number))
            self._done("zombie", "")

    def two_claim(self, number: int) -> None:
        """Two nodes believe at once that the shard is theirs."""
        self._lead(self.world.node(number))
        self._lead(self.world.node(number + 1))
        self._done("two claim", "")

    # -- brokers as nodes see them -----------------------------------------------------------------------------------

    def cut_off(self, number: int) -> None:
        node = self.world.node(number)
        if node.log.end is None:
            node.log.end = max(node.replica.read_offset + 1, len(self.world.log.entries) - (number >> 4) % 8)
            self._done("cut off", f"{node.name} sees the log's end at {node.log.end}")

    def connect(self, number: int) -> None:
        self.world.node(number).log.end = None

    # -- appends and their reports -----------------------------------------------------------------------------------

    def expire_append(self, number: int) -> None:
        """A record never reaches the broker, though younger ones do: it may be in the middle of the pipeline."""
        appender = self.world.appender(number)
        if appender is not None:
            place = (number >> 8) % len(appender.in_flight)
            token, _ = appender.in_flight.pop(place)
            late = bool(number >> 12 & 1)
            appender.report(token, -1, "timed out", held=late)
            self._done("expired first" if place == 0 else "expired in the middle", f"{appender.node}, seq {token}")

    def lose_report(self, number: int) -> None:
        self._land("report lost", number, -1, "timed out")

    def hold_report(self, number: int) -> None:
        appender = self.world.appender(number)
        if appender is not None:
            appender.report(*appender.land(), held=True)
            self._done("report held", appender.node)

    def release_report(self, number: int) -> None:
        """A held report arrives: the youngest first, if the number says so."""
        for appender in self.world.log.appenders:
            if appender.held:
                appender.arrived.append(appender.held.pop(-1 if number & 1 else 0))
                self._done("report late", appender.node)

    def report_without_offset(self, number: int) -> None:
        self._land("report without offset", number, -1, None)

    def report_too_high(self, number: int) -> None:
        appender = self.world.appender(number)
        if appender is not None and not appender.out_of_sequence:
            token, offset = appender.land()
            appender.report(token, offset + 1 + (number >> 8) % 3)
            self._done("report too high", appender.node)

    def report_too_low(self, number: int) -> None:
        """A report names a place that the leader knows to be taken: it must stop."""
        appender = self.world.appender(number)
        if appender is not None and appender.claim_offset >= 0 and not appender.out_of_sequence:
            token, _ = appender.land()
            appender.report(token, appender.claim_offset)
            self.world.invariants.may_stop[appender.node] = "report too low"
            self._done("report too low", appender.node)

    def _land(self, what: str, number: int, offset: int, error: str | None) -> None:
        appender = self.world.appender(number)
        if appender is not None:
            token, _ = appender.land()
            appender.report(token, offset, error)
            self._done(what, f"{appender.node}, seq {token}")

    def append_twice(self, number: int) -> None:
        """The broker gets a record twice, and the report is that of the one or the other."""
        appender = self.world.appender(number)
        if appender is not None and not appender.out_of_sequence:
            token, value = appender.in_flight[0]
            first, second = appender.land()[1], self.world.log.append(value)
            appender.report(token, first if number >> 8 & 1 else second)
            self._done("appended twice", appender.node)

    def overtake(self, number: int) -> None:
        """A younger record reaches the broker first; a leader that sees its offsets run backwards must stop."""
        appender = self.world.appender(number)
        if appender is not None and len(appender.in_flight) > 1:
            appender.deliver(1)
            self.world.invariants.may_stop[appender.node] = "overtaken"
            self._done("overtaken", appender.node)

    def orphan(self, number: int) -> None:
        """What a leader that is gone had in flight arrives after all."""
        orphans = self.world.log.orphans
        if orphans:
            self._done("orphan", "")
            self.world.log.append(orphans.pop(number % len(orphans)))

    def append_again(self, number: int) -> None:
        entries = self.world.log.entries
        if entries:
            self._done("appended again", "")
            self.world.log.append(entries[-1 - number % min(len(entries), 12)].value)

    def forge_twin(self, number: int) -> None:
        """A candidate that did not wait to read its own claim writes under the term that another has."""
        truth = self.world.truth
        if truth.term:
            twin = Tick(
                term=truth.term, nonce=self.world.ids.nonce(), seq=truth.seq + 1 + (number & 1), prev_chain=truth.chain
            )
            self._done("twin", "")
            self.world.log.append(encode(twin))

    # -- requests and responses --------------------------------------------------------------------------------------

    def lose_request(self, _number: int) -> None:
        self.world.lose_next_request = True
        self._done("request lost", "")

    def late_request(self, number: int) -> None:
        """A copy of some earlier request arrives, perhaps much later than its answer."""
        past = self.world.past_requests
        if past:
            self.world.send(past[number % len(past)])
            self._done("late request", "")

    def reuse_call_id(self, number: int) -> None:
        past = self.world.past_requests
        if past:
            request: Request = decode(past[number % len(past)])
            body = DeleteKey(volume=VOLUME, bucket=BUCKETS[0], key=KEYS[number >> 8 & 3])
            if body != request.body:
                self.world.send(self.world.register(encode(replace(request, body=body))))
                self._done("call id reused", "")

    def garbage(self, number: int) -> None:
        self.world.send(number.to_bytes(3, "big") * (1 + number % 5))

    def lose_response(self, number: int) -> None:
        responses = self.world.responses
        if responses:
            responses.pop(number % len(responses))
            self._done("response lost", "")

    # -- partitions --------------------------------------------------------------------------------------------------

    def cut_requests(self, number: int) -> None:
        requests = self.world.requests
        if requests.records:
            requests.cut(requests.end - 1 - number % 5)
            self._done("requests cut", "")

    def trim_requests(self, number: int) -> None:
        requests = self.world.requests
        requests.trim(requests.end - number % 5)
        self._done("requests trimmed", "")

    def cut_log(self, number: int) -> None:
        """All brokers lose the tail of the log, acknowledged or not. Who has applied it must stop, and nobody may be fooled."""
        world = self.world
        entries = world.log.entries
        end = len(entries) - 1 - number % 4
        if end < max(4, world.log.first + 2) or world.truth.halted is not None:
            return
        # With its beginning trimmed away, a log cannot rebuild a replica: one must be left to take a checkpoint from.
        if world.log.first and all(self._is_spent(node, end) for node in world.nodes.values()):
            return
        if world.seen[
            "digest base asked for"
        ]:  # it may be of what is lost: a false one then, which every replica contradicts
            return
        self._done("log cut", f"at {end}")
        world.invariants.may_halt += ("halt: term missed", "halt: claim missed")  # rightly: a claim is lost
        world.log.cut(end)
        invariants = world.invariants
        truth = world.new_truth()
        for entry in entries:
            truth.read(entry)
        invariants.lose(truth)
        world.truth = truth
        for appender in world.log.appenders:
            if appender.out_of_sequence:
                invariants.diverged[appender.node] = "will apply what was lost"
        for node in world.nodes.values():
            if self._has_read(node, end):
                self._survive_loss(node, number)
            elif node.ready and node.fetch_offset > end:
                invariants.may_stop[node.name] = "its consumer has a place that is lost"
            if node.log.end is not None:
                node.log.end = min(node.log.end, end)

    def _is_spent(self, node: Node, end: int) -> bool:
        """Whether nobody could take a checkpoint from a node after a loss: what it has is wrong, or is before the log's beginning."""
        invariants = self.world.invariants
        is_behind = node.stored_position().offset < self.world.log.first
        return (
            is_behind
            or self._has_read(node, end)
            or node.name in invariants.diverged
            or node.name in invariants.tainted
            or any(one.last_offset >= end and one.node == node.name for one in self.world.log.appenders)
        )

    def _has_read(self, node: Node, end: int) -> bool:
        return max(node.log.read_to, node.stored_position().offset) >= end

    def _survive_loss(self, node: Node, number: int) -> None:
        """A node has read what is lost: its consumer is told so (out of range) and the process ends, unless it was paused too long for that."""
        invariants = self.world.invariants
        invariants.diverged[node.name] = "read what was lost"
        if number >> 8 & 1 and node.up:
            node.crash()
        elif node.up:
            invariants.may_halt += ("halt: broken",)

    def poison_log(self, number: int) -> None:
        """A record that proves a loss, or contradicts what precedes it: every reader must stop there."""
        truth = self.world.truth
        if not truth.term or len(self.world.log.entries) < 30:
            return
        ahead, kind = truth.term + 2, number % 3
        header: dict[str, Any] = {
            "term": truth.term,
            "nonce": truth.nonce,
            "seq": truth.seq + 1,
            "prev_chain": bytes(32),
        }
        records = (
            Tick(**header), Tick(**header | {"term": ahead}),
            LeaderClaim(term=ahead, nonce=bytes(16), node="n1", address="n1", claimed_at_ms=0),
        )  # fmt: skip
        self._done("log poisoned", "")
        self.world.invariants.may_halt += ("halt: broken", "halt: term missed", "halt: claim missed")
        self.world.log.append(encode(records[kind]))

    # -- followers ---------------------------------------------------------------------------------------------------

    def skip_records(self, number: int) -> None:
        """A node's consumer loses its place and leaves records out: the follower must notice, and fetch them."""
        node = self.world.node(number)
        if node.ready:
            node.fetch_offset = min(node.fetch_offset + 1 + (number >> 4) % 3, len(self.world.log.entries))
            self._done("records skipped", node.name)

    def rewind(self, number: int) -> None:
        """A node's consumer gets records again."""
        node = self.world.node(number)
        if node.ready:
            node.fetch_offset = max(self.world.log.first, node.fetch_offset - 1 - (number >> 4) % 6)
            self._done("records again", node.name)

    def miss_records(self, number: int) -> None:
        """A record is offered to a replica that has not seen the one before: it must stop, and change nothing."""
        node = self.world.node(number)
        offset = node.replica.read_offset + 2
        if node.ready and offset < len(self.world.log.entries):
            before = node.replica.position
            self.world.invariants.may_stop[node.name] = "missed records"
            node.offer_out_of_turn(self.world.log.entries[offset])
            self._done("records missed", f"{node.name} at {before.offset}")

    # -- clocks ------------------------------------------------------------------------------------------------------

    def jump_node(self, number: int) -> None:
        self.world.node(number).clock.skew_ms = self._jump("node's clock", number >> 4)

    def jump_broker(self, number: int) -> None:
        self.world.broker_skew_ms = self._jump("broker's clock", number >> 4)
        if number & 1:  # the nodes' clocks follow the same wrong time server
            for node in self.world.nodes.values():
                node.clock.skew_ms = self.world.broker_skew_ms

    def jump_client(self, number: int) -> None:
        world = self.world
        world.clients[number % len(world.clients)].skew_ms = self._jump("client's clock", number >> 4)

    def _jump(self, whose: str, number: int) -> int:
        jump_ms = JUMPS_MS[number % len(JUMPS_MS)]
        self._done(f"{whose} {'a year' if abs(jump_ms) == YEAR_MS else 'seconds'}", f"{jump_ms} ms")
        return jump_ms

    def long_time(self, number: int) -> None:
        self.world.scheduler.now_ms += LONG_MS[number % len(LONG_MS)]
        self._done("long time", "")

    # -- disks -------------------------------------------------------------------------------------------------------

    def damage_row(self, number: int) -> None:
        """A row of a follower changes behind its back."""
        world = self.world
        node = world.node(number)
        if not node.ready or node.leading or world.invariants.tainted or world.invariants.diverged:
            return
        family = (KEY_TABLE, USAGE_TABLE)[number >> 4 & 1]
        rows = list(node.store.iterate(family, f"/{VOLUME}/{BUCKETS[0]}/".encode()))
        if rows:
            key, value = rows[(number >> 8) % len(rows)]
            damaged = encode_int64(decode_int64(value) + 1) if family == USAGE_TABLE else value + b"!"
            node.store.damage(family, key, damaged)
            world.invariants.tainted[node.name] = (family, key)
            self._done("row damaged", f"{node.name}: {family} {key!r}")

    def _done(self, what: str, detail: str) -> None:
        self.world.note(what)
        self.world.tell(f"{what} {detail}".rstrip())
