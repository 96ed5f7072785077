"""Clients of a simulated cluster: the SDK's real core (``producers.requests.core.calls``) over a network that loses, repeats and delays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from producers.requests.core.calls import Calls, Outcome, Policy
from producers.requests.keys import fit_blocks
from schemas.codecs.codec import decode
from schemas.datanode_states import DATANODE_STATES
from schemas.records.datanode import Member
from schemas.records.messages import (
    AllocateBlock,
    CommitKey,
    CreateBucket,
    CreateKey,
    CreatePipeline,
    CreateVolume,
    DeleteBucket,
    DeleteKey,
    DeleteVolume,
    KeySession,
    PutKey,
    RenameKey,
    RequestBody,
    Response,
    RetirePipeline,
    SetBucketProperty,
    SetDatanodeState,
    SetVolumeProperty,
)
from schemas.records.rows import BlockLocation
from tests.support.local.secret import SECRET

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


@dataclass(slots=True, eq=False)
class Client:
    """One process with the SDK. ``skew_ms`` is how far its wall clock is off."""

    number: int
    skew_ms: int = 0
    calls: Calls = field(init=False)
    sessions: list[tuple[str, str, KeySession]] = field(default_factory=list)
    begun: int = 0
    ended: int = 0

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
        if isinstance(outcome, Response) and isinstance(outcome.result, KeySession) and isinstance(body, CreateKey):
            self.sessions.append((body.bucket, body.key, outcome.result))
            del self.sessions[:-MAX_SESSIONS]

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

    @staticmethod
    def _fleet(pick: int) -> RequestBody:
        """What placement loops and operators ask for: of a leader that is one no longer, and of two at once, too."""
        kind, pick = pick % 4, pick // 4
        partition, pick = PARTITIONS[pick % len(PARTITIONS)], pick // len(PARTITIONS)
        if kind == 0:
            names = {DATANODES[(pick + step) % len(DATANODES)] for step in range(pick % 4)}
            members = [
                Member(datanode=name, address=f"{name}:1", http_address=f"{name}:2", rack="/r")
                for name in sorted(names)
            ]
            return CreatePipeline(partition=partition, members=members)
        if kind == 1:
            return RetirePipeline(partition=partition, reason="a datanode is away")
        return SetDatanodeState(datanode=DATANODES[pick % 2], state=[*DATANODE_STATES, "GONE"][pick // 2 % 6])
