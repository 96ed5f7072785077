"""Clients of a simulated cluster: the SDK's real core (``producers.requests.core.calls``) over a network that loses, repeats and delays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from producers.requests.core.calls import Calls, Outcome, Policy
from producers.requests.keys import fit_blocks
from schemas.codecs.codec import decode
from schemas.datanode_states import DATANODE_STATES, DECOMMISSIONED, DECOMMISSIONING
from schemas.records.datanode import Member
from schemas.records.messages import (
    AllocateBlock,
    CommitKey,
    CommitReserved,
    CreateBucket,
    CreateKey,
    CreatePipeline,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    DeleteVolume,
    KeySession,
    PutKey,
    ReleaseBlocks,
    RemoveDatanode,
    RenameKey,
    RequestBody,
    ReserveBlocks,
    Response,
    RetirePipeline,
    SetBucketProperty,
    SetDatanodeState,
    SetVolumeProperty,
)
from schemas.records.rows import BlockLocation
from tests.support.local.secret import SECRET
from tests.support.om.om_model import Model

MAX_IN_FLIGHT = 10
MAX_SESSIONS = 12
FIRST_CALLS = 2
"""A client's first calls make a volume and a bucket, as programs do."""
BLOCK_BYTES = 256 * 1024 * 1024
VOLUME, OTHER_VOLUME = "vol", "vol2"
BUCKETS = ("bucket", "bucket2")
KEYS = ("a", "b", "c", "d")
SNAPSHOTS = ("snap1", "snap1", "snap1", "snap2", "snap2", "snap1", "snap3", "Snap")
DATANODES = ("dn1", "dn2", "dn3", "dn4")
PARTITIONS = (0, 0, 0, 1, 1, 256)
SIZES = (0, 1, 1000, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 7, -1)
INLINE_SIZES = (0, 1, 40, 1000, 7, 1, 16 * 1024, 16 * 1024 + 1)
COUNTS = (1, 2, 3, 5, 64, 2, 0, 65)
"""How many blocks are reserved."""
LENGTHS = (1, 40, 1000, 1024 * 1024)


ABSENT = BlockLocation(container_id=1, local_id=1, offset=0, length=1, pipeline="none")


def commit_reserved(
    given: KeySession, bucket: str, key: str, blocks: list[BlockLocation], length: int, surplus: bool = False
) -> CommitReserved:
    """Return what commits a key of so many bytes in each block; with ``surplus`` its size is one more."""
    written = [
        replace(block, offset=number * length, length=length, bcs_id=number + 1) for number, block in enumerate(blocks)
    ]
    return CommitReserved(
        volume=VOLUME, bucket=bucket, key=key, session_id=given.session_id, size=length * len(blocks) + surplus,
        blocks=written,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class Client:
    """One process with the SDK. ``skew_ms`` is how far its wall clock is off."""

    number: int
    skew_ms: int = 0
    calls: Calls = field(init=False)
    sessions: list[tuple[str, str, KeySession]] = field(default_factory=list)
    reservations: list[tuple[str, KeySession]] = field(default_factory=list)
    """Buckets, and what is left of reservations in them, as far as this client knows."""
    fleet: Model = field(default_factory=Model)
    """Pipelines and datanodes as they are now."""
    remembered: tuple[str, int] = (DATANODES[0], 0)
    """A datanode, and when its state began as it was looked at before."""
    begun: int = 0
    ended: int = 0
    expired: int = 0
    """How many of these ended at their deadline, without an answer."""

    def __post_init__(self) -> None:
        self.calls = Calls(
            bytes([self.number]) * 16, caller=f"user{self.number}", reply_partition=self.number, shards=1,
            policy=Policy(max_in_flight=MAX_IN_FLIGHT, deadline_ms=200_000), jitter=lambda: 0.0, secret=SECRET,
        )  # fmt: skip

    def begin(self, body: RequestBody, now_ms: int, wall_ms: int) -> bytes | None:
        """Return the bytes of a new call, None if there is no room for it."""
        if len(self.calls) >= MAX_IN_FLIGHT:
            return None
        self.begun += 1
        return self.calls.begin(body, lambda outcome: self._done(body, outcome), now_ms=now_ms, wall_ms=wall_ms).value

    def _done(self, body: RequestBody, outcome: Outcome) -> None:
        self.ended += 1
        if isinstance(outcome, Response) and isinstance(outcome.result, KeySession):
            if isinstance(body, CreateKey):
                self.sessions.append((body.bucket, body.key, outcome.result))
                del self.sessions[:-MAX_SESSIONS]
            elif isinstance(body, ReserveBlocks):
                self.reservations.append((body.bucket, outcome.result))
                del self.reservations[:-MAX_SESSIONS]

    def take(self, value: bytes, now_ms: int) -> None:
        """A response arrives."""
        response: Response = decode(value)
        call = self.calls.on_response(response, now_ms=now_ms)
        if call is not None:
            call.done(response)

    def due(self, now_ms: int) -> list[bytes]:
        """Return what is to be sent again; calls past their deadline end with an unknown outcome."""
        step = self.calls.step(now_ms=now_ms)
        self.ended += len(step.expired)
        self.expired += len(step.expired)
        return [call.value for call in step.resend]

    def body(self, pick: int) -> RequestBody:
        """Choose what to ask for."""
        kind, pick = pick % 100, pick // 100
        bucket, pick = BUCKETS[pick % 8 == 0], pick // 8
        key, pick = KEYS[pick % len(KEYS)], pick // len(KEYS)
        if self.begun < FIRST_CALLS:
            return (CreateVolume(volume=VOLUME), CreateBucket(volume=VOLUME, bucket=BUCKETS[0]))[self.begun]
        if kind < 7:
            return self._container(pick)
        if kind < 33 and pick % 2 and (self.fleet.pipelines or self.fleet.datanodes):  # else little would come of them
            return self._end_of_pipeline(pick // 4) if pick % 4 == 1 else self._way_out(pick // 4)
        if kind < 33:
            return CreateKey(volume=VOLUME, bucket=bucket, key=key, size=SIZES[pick % len(SIZES)])
        if kind < 40:
            return PutKey(volume=VOLUME, bucket=bucket, key=key, data=bytes([pick % 251]) * INLINE_SIZES[pick % 8])
        if kind < 72 and self.sessions:
            place = pick % len(self.sessions)
            bucket, key, session = self.sessions[place]
            if kind < 66:
                if pick % 5:  # else it will be committed twice
                    del self.sessions[place]
                size = SIZES[pick % 4] if pick % 7 == 0 else pick % 3
                return CommitKey(
                    volume=VOLUME, bucket=bucket, key=key, session_id=session.session_id, size=size,
                    blocks=self._blocks(session, size) if pick % 11 else [],
                )  # fmt: skip
            return AllocateBlock(volume=VOLUME, bucket=bucket, key=key, session_id=session.session_id)
        if kind < 77:
            return DeleteKey(volume=VOLUME, bucket=bucket, key=key)
        if kind < 87:
            return RenameKey(volume=VOLUME, bucket=bucket, from_key=key, to_key=KEYS[pick % len(KEYS)])
        return self._property(bucket, pick) if kind < 92 else self._fleet(pick)

    def reservation_body(self, pick: int) -> RequestBody:
        """Choose what to ask for about reservations: mostly keys with their blocks."""
        kind, pick = pick % 16, pick // 16
        bucket, pick = BUCKETS[pick % 8 == 0], pick // 8
        if kind < 4 or not self.reservations:
            return ReserveBlocks(volume=VOLUME, bucket=bucket, count=COUNTS[pick % len(COUNTS)])
        place, pick = pick % len(self.reservations), pick // len(self.reservations)
        where, given = self.reservations[place]
        if kind < 6:
            if pick % 3:  # else it will be used, or released, once more
                del self.reservations[place]
            return ReleaseBlocks(volume=VOLUME, bucket=where, session_id=given.session_id)
        key, pick = KEYS[pick % len(KEYS)], pick // len(KEYS)
        if kind < 7:  # of none that there is
            wrong = replace(given, session_id=given.session_id + 256)
            return commit_reserved(wrong, where, key, given.blocks[:1], 1)
        blocks, left = given.blocks[: 1 + pick % 2], given.blocks[1 + pick % 2 :]
        if kind > 7:  # else its blocks will be named once more
            self.reservations[place] = where, replace(given, blocks=left)
        if not left and kind > 8:  # else what is gone will be used
            del self.reservations[place]
        return commit_reserved(given, where, key, blocks or [ABSENT], LENGTHS[pick // 2 % 4], pick // 8 % 10 == 0)

    @staticmethod
    def _blocks(session: KeySession, size: int) -> list[BlockLocation]:
        """Return what a commit of metadata alone names, if the session was given as much; a commit that names none is refused."""
        return fit_blocks(session.blocks, size) if sum(block.length for block in session.blocks) >= size else []

    @staticmethod
    def _container(pick: int) -> RequestBody:
        second = CreateBucket(volume=VOLUME, bucket=BUCKETS[pick // 6 % 4 > 0])  # the first is there nearly always
        choices: list[Any] = [
            CreateVolume(volume=VOLUME), second, CreateVolume(volume=OTHER_VOLUME),
            DeleteVolume(volume=OTHER_VOLUME), DeleteBucket(volume=VOLUME, bucket=BUCKETS[1]),
            SetVolumeProperty(volume=VOLUME, owner=f"owner{pick % 4}", quota_in_namespace=(None, 1, 2, -1)[pick // 8 % 4]),
        ]  # fmt: skip
        chosen: RequestBody = choices[pick % len(choices)]
        return chosen

    @staticmethod
    def _property(bucket: str, pick: int) -> RequestBody:
        return SetBucketProperty(
            volume=VOLUME, bucket=bucket, owner=f"owner{pick % 3}", quota_in_namespace=(None, 3, 100)[pick % 3]
        )

    def _fleet(self, pick: int) -> RequestBody:
        """What placement loops and operators ask for: of a leader that is one no longer, and of two at once, too."""
        kind, pick = pick % 4, pick // 4
        partition, pick = PARTITIONS[pick % len(PARTITIONS)], pick // len(PARTITIONS)
        if kind == 0:
            names = {DATANODES[(pick + step) % len(DATANODES)] for step in range(pick % 4)}
            members = [
                Member(datanode=name, address=f"{name}:1", http_address=f"{name}:2", rack="/r")
                for name in sorted(names)
            ]
            return CreatePipeline(partition=partition, members=members, generation=max(0, pick // 4 % 6 - 2))
        if kind == 1:
            return self._end_of_pipeline(pick)
        if kind == 2:
            return self._way_out(pick)
        name, since_ms = self.remembered
        self.remembered = DATANODES[pick % 2], self.fleet.changed_at_ms.get(DATANODES[pick % 2], 0)
        return SetDatanodeState(
            datanode=name,
            state=[*DATANODE_STATES, "GONE"][pick // 2 % 6],
            changed_at_ms=since_ms * (pick // 12 % 3 > 0),
        )

    def _end_of_pipeline(self, pick: int) -> RequestBody:
        """A retirement: of the generation that there is, of whichever there is, or of one that has passed."""
        partition = PARTITIONS[pick % len(PARTITIONS)]
        generation = self.fleet.pipelines.get(partition, ([], "", 1))[2]
        named = (generation, 0, max(0, generation - 1), generation + 1)[pick // 8 % 4]
        return RetirePipeline(partition=partition, reason="a datanode is away", generation=named)

    def _way_out(self, pick: int) -> RequestBody:
        """What comes next of a datanode that leaves; now and then, of one that is not switched off."""
        name = DATANODES[pick % 8 == 7]
        state = self.fleet.datanodes.get(name)
        if state == DECOMMISSIONED:
            return RemoveDatanode(datanode=name)
        return SetDatanodeState(datanode=name, state=DECOMMISSIONED if state == DECOMMISSIONING else DECOMMISSIONING)
