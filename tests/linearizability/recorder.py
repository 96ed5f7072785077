"""Clients that write and read a small key space at random, and note everything in a history.

Writers use the SDK, each a client of its own; one has a short deadline, so that outcomes become unknown. Readers ask one node each, over
HTTP or by its direct door in turn, at a consistency of choice, so that every replica is read all the time. A read that is refused (503),
or not answered, says nothing and is left out. A listing by the direct door has pages, as a client's has. A key's size is unique in its
history: it tells one commit from another. The bytes of an inline key say that size again and again; readers tell what they say.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import httpx

from producers import Client
from producers.direct.key_lookups import ELSEWHERE
from producers.errors import OutcomeUnknown, RequestFailed, RetryableError
from producers.reads.read_views import PAGE_ENTRIES
from producers.requests.keys import fit_blocks, session_of
from schemas.codecs.codec import decode_as, encode
from schemas.door.frames import DoorKind, door_frame
from schemas.records import messages as m
from schemas.records.door import DoorRead, DoorRows
from schemas.records.rows import BlockLocation, KeyInfo
from schemas.result_codes import KEY_NOT_FOUND, OK
from tests.linearizability.history import History, Operation
from tests.support.local.at_work import at_work
from tests.support.om.raw_door import DoorClosed, RawDoor

BUCKETS = ("alpha", "beta")
KEYS = ("k1", "k2", "k3")
WRITES = {
    "put": 20, "put_reserved": 12, "put_key": 16, "commit_again": 4, "delete_key": 14, "rename_key": 14, "create_bucket": 6, "delete_bucket": 8,
    "create_volume": 2, "delete_volume": 2,
}  # fmt: skip
COMMITS = ("commit_key", "commit_reserved")
"""The operations that end a session, and make its key."""
READS = {"key_info": 60, "list_keys": 20, "bucket_info": 10, "volume_info": 5, "list_buckets": 5}
DOOR_SHARE = 0.5
"""Of the reads that the direct door knows, so many take it."""
PAGES = (1, 2, PAGE_ENTRIES)
"""How many keys a page of a listing by the direct door may have: fewer than there are keys, or as many as a client asks for."""
READ_TIMEOUT_S = 6.0
READ_PACE_S = 0.01
WRITE_PACE_S = 0.004
REFUSED_PAUSE_S = 0.05
UNKNOWN_PAUSE_S = 1.0
"""What a writer waits after an unknown outcome: each doubles what a checker has to consider, and a few are enough."""


@dataclass(frozen=True, slots=True)
class Session:
    """An open key, or a reservation, that was given to this writer."""

    volume: str
    bucket: str
    key: str
    session_id: int
    blocks: list[BlockLocation]
    size: int
    commits: str = "commit_key"


@dataclass(slots=True, kw_only=True)
class Writer:
    """One client's writes."""

    number: int
    client: Client
    history: History
    volumes: Sequence[str]
    sizes: count[int]
    rng: random.Random
    _sessions: list[Session] = field(default_factory=list)

    def step(self) -> None:
        """Do one thing at random."""
        kind = self.rng.choices(list(WRITES), list(WRITES.values()))[0]
        place = {"volume": self.rng.choice(self.volumes)}
        if kind.endswith("_volume"):
            self.write(kind, place)
            return
        place["bucket"] = self.rng.choice(BUCKETS)
        if kind.endswith("_bucket"):
            self.write(kind, place)
        elif kind == "put":
            self.put(**place, key=self.rng.choice(KEYS))
        elif kind == "put_reserved":
            self.put_reserved(**place, key=self.rng.choice(KEYS))
        elif kind == "put_key":
            self.write(kind, {**place, "key": self.rng.choice(KEYS), "size": next(self.sizes)})
        elif kind == "delete_key":
            self.write(kind, {**place, "key": self.rng.choice(KEYS)})
        elif kind == "rename_key":
            from_key, to_key = self.rng.sample(KEYS, 2)
            self.write(kind, {**place, "key": from_key, "to": to_key})
        elif self._sessions:
            self.commit(self.rng.choice(self._sessions))

    def put(self, volume: str, bucket: str, key: str) -> None:
        """Open a key and commit it."""
        size = next(self.sizes)
        operation = self.history.call(self.number, "create_key", volume=volume, bucket=bucket, key=key)
        body = m.CreateKey(volume=volume, bucket=bucket, key=key, size=size)
        self._put((volume, bucket, key), size, operation, body, "commit_key")

    def put_reserved(self, volume: str, bucket: str, key: str) -> None:
        """Reserve a block and commit a key with it."""
        operation = self.history.call(self.number, "reserve_blocks", volume=volume, bucket=bucket)
        body = m.ReserveBlocks(volume=volume, bucket=bucket, count=1)
        self._put((volume, bucket, key), next(self.sizes), operation, body, "commit_reserved")

    def _put(
        self, place: tuple[str, str, str], size: int, operation: Operation, body: m.RequestBody, commits: str
    ) -> None:
        """Send what gives a session, and commit the key in it."""
        try:
            response = self.client.call(body)
        except RequestFailed as error:
            self.history.returned(operation, error.status)
            return
        except OutcomeUnknown:
            self._lost(operation)
            return
        except RetryableError:
            return
        opened = session_of(response)
        self.history.returned(operation, "OK", session=opened.session_id)
        session = Session(*place, opened.session_id, fit_blocks(opened.blocks, size), size, commits)
        self._sessions = [*self._sessions[-2:], session]
        self.commit(session)

    def commit(self, session: Session) -> None:
        """Commit a session; the second time, or after its bucket's end, it is refused."""
        self.write(
            session.commits,
            {
                "volume": session.volume, "bucket": session.bucket, "key": session.key,
                "session": session.session_id, "size": session.size,
            },
            blocks=session.blocks,
        )  # fmt: skip

    def write(self, op: str, arguments: dict[str, Any], *, blocks: Sequence[BlockLocation] = ()) -> None:
        """Send a request whose answer is a code alone, and note it."""
        body = _body(op, arguments, blocks)
        operation = self.history.call(self.number, op, **arguments)
        try:
            self.client.call(body)
        except RequestFailed as error:
            self.history.returned(operation, error.status)
        except OutcomeUnknown:
            self._lost(operation)
        except RetryableError:
            pass  # nothing was sent
        else:
            self.history.returned(operation, "OK")

    def _lost(self, operation: Operation) -> None:
        self.history.unknown(operation)
        time.sleep(UNKNOWN_PAUSE_S)


def data_of(size: int) -> bytes:
    """Return the bytes of an inline key, which say their number.

    >>> data_of(5), data_of(12)
    (b'5,5,5', b'12,12,12,12,')
    """
    word = b"%d," % size
    return (word * (size // len(word) + 1))[:size]


def said_by(data: bytes) -> int:
    """Return the size that the bytes of an inline key say, -1 if they are nobody's.

    >>> said_by(data_of(12)), said_by(data_of(12)[:-1]), said_by(b"")
    (12, -1, -1)
    """
    return len(data) if data and data == data_of(len(data)) else -1


def _body(op: str, a: dict[str, Any], blocks: Sequence[BlockLocation]) -> m.RequestBody:
    match op:
        case "create_volume":
            return m.CreateVolume(volume=a["volume"])
        case "delete_volume":
            return m.DeleteVolume(volume=a["volume"])
        case "create_bucket":
            return m.CreateBucket(volume=a["volume"], bucket=a["bucket"])
        case "delete_bucket":
            return m.DeleteBucket(volume=a["volume"], bucket=a["bucket"])
        case "put_key":
            return m.PutKey(volume=a["volume"], bucket=a["bucket"], key=a["key"], data=data_of(a["size"]))
        case "delete_key":
            return m.DeleteKey(volume=a["volume"], bucket=a["bucket"], key=a["key"])
        case "rename_key":
            return m.RenameKey(volume=a["volume"], bucket=a["bucket"], from_key=a["key"], to_key=a["to"])
        case "commit_key":
            return m.CommitKey(
                volume=a["volume"], bucket=a["bucket"], key=a["key"],
                session_id=a["session"], size=a["size"], blocks=list(blocks),
            )  # fmt: skip
        case "commit_reserved":
            return m.CommitReserved(
                volume=a["volume"], bucket=a["bucket"], key=a["key"],
                session_id=a["session"], size=a["size"], blocks=list(blocks),
            )  # fmt: skip
    raise ValueError(op)


class ListingDoor(RawDoor):
    """A direct door that lists, too."""

    def list_page(self, volume: str, bucket: str, consistency: str, *, limit: int, start_after: str) -> DoorRows:
        """Ask for one page of a bucket's keys, and wait for it."""
        self._reads += 1
        read = DoorRead(
            consistency=consistency, index=0, volume=volume, bucket=bucket, keys=[], limit=limit,
            start_after=start_after,
        )  # fmt: skip
        self.send(door_frame(DoorKind.READ, encode(read), number=self._reads))
        while True:
            frame = self.hear(DoorKind.ROWS)
            if frame.number == self._reads:
                return decode_as(DoorRows, frame.payload)

    def list_keys(self, volume: str, bucket: str, consistency: str, *, limit: int) -> tuple[DoorRows, int]:
        """List a bucket in pages of ``limit`` keys, as it was at one moment; return (all rows, how many pages they were).

        Pages are of one moment if all are of one index. If they are not, the bucket is listed again in one page.
        A page that is refused is returned as it is.
        """
        rows: list[bytes | None] = []
        pages, begun_at, start_after = 0, None, ""
        while True:
            pages += 1
            page = self.list_page(volume, bucket, consistency, limit=limit, start_after=start_after)
            if page.status != OK:
                return page, pages
            assert len(page.rows) <= limit, f"a page of {limit} keys has {len(page.rows)}"
            if begun_at not in (None, page.index):
                return self.list_keys(volume, bucket, consistency, limit=PAGE_ENTRIES)
            rows += page.rows
            if not page.more:
                return replace(page, rows=rows), pages
            begun_at, start_after = page.index, _key_of(page.rows[-1]).key


@dataclass(slots=True, kw_only=True)
class Reader:
    """One client's reads, all from one node."""

    number: int
    node: str
    address: str
    history: History
    volumes: Sequence[str]
    rng: random.Random
    consistency: str = "linearizable"
    answered: int = 0
    refused: int = 0
    by_door: int = 0
    by_pages: int = 0
    """Listings by the direct door that were answered in more pages than one."""
    door_share: float = DOOR_SHARE
    _http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=READ_TIMEOUT_S, trust_env=False))
    _door: ListingDoor | None = None

    def step(self) -> bool:
        """Read one thing at random; return whether there was an answer."""
        op = self.rng.choices(list(READS), list(READS.values()))[0]
        place = {"volume": self.rng.choice(self.volumes)}
        if op in ("bucket_info", "list_keys", "key_info"):
            place["bucket"] = self.rng.choice(BUCKETS)
        if op == "key_info":
            place["key"] = self.rng.choice(KEYS)
        return self.read(op, **place)

    def read(self, op: str, **place: str) -> bool:
        """Read one thing by a door at random; return whether there was an answer, which then is in the history."""
        by_door = op in ("key_info", "list_keys") and self.rng.random() < self.door_share
        return self._read(op, place, by_door=by_door)

    def _read(self, op: str, place: dict[str, str], *, by_door: bool) -> bool:
        operation = self.history.call(self.number, op, self.node, **place)
        found = self._by_door(op, **place) if by_door else self._over_http(op, **place)
        if found is None:
            self.refused += 1
            return False
        code, result = found
        self.history.returned(operation, code, **result)
        self.answered += 1
        self.by_door += by_door
        return True

    def _over_http(self, op: str, **place: str) -> tuple[str, dict[str, Any]] | None:
        """Return (code, result), None if there was no answer."""
        path, parameters = _path(op, **place)
        try:
            answer = self._http.get(
                f"http://{self.address}{path}", params={**parameters, "consistency": self.consistency}
            )
        except httpx.TransportError:
            return None
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return None
        body = answer.json()
        if answer.status_code == httpx.codes.OK:
            return OK, _result(op, body)
        return body.get("error", f"HTTP_{answer.status_code}"), {}

    def _by_door(self, op: str, volume: str, bucket: str, key: str = "") -> tuple[str, dict[str, Any]] | None:
        """Look up a key with its bytes, or list a bucket in pages of a size at random."""
        try:
            if self._door is None:
                self._door = ListingDoor(self.address, timeout_s=READ_TIMEOUT_S)
            if op == "list_keys":
                rows, pages = self._door.list_keys(volume, bucket, self.consistency, limit=self.rng.choice(PAGES))
                self.by_pages += rows.status == OK and pages > 1
            else:
                rows = self._door.look_up(volume, bucket, [key], self.consistency, with_bytes=True)
        except (OSError, DoorClosed):
            self._leave_door()
            return None
        if rows.status in ELSEWHERE:
            return None
        return (OK, _found(op, rows)) if rows.status == OK and _exists(op, rows) else (_code(rows), {})

    def _leave_door(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None

    def read_all(self) -> bool:
        """Read every place once, keys by both doors; return whether all were answered."""
        found = [self.read("list_buckets", volume=volume) for volume in self.volumes]
        for by_door in (False, True):
            places = [{"volume": volume, "bucket": bucket} for volume in self.volumes for bucket in BUCKETS]
            found += [self._read("list_keys", place, by_door=by_door) for place in places]
        return all(found)

    def close(self) -> None:
        self._http.close()
        self._leave_door()


def _exists(op: str, rows: DoorRows) -> bool:
    return op != "key_info" or rows.rows[0] is not None


def _code(rows: DoorRows) -> str:
    return KEY_NOT_FOUND if rows.status == OK else rows.status


def _found(op: str, rows: DoorRows) -> dict[str, Any]:
    infos = [_key_of(row) for row in rows.rows]
    if op == "list_keys":
        keys = {info.key: info.size for info in infos}
        assert len(keys) == len(infos), f"a key is listed twice: {infos}"
        return {"keys": keys}
    (info,) = infos
    return _content(info.size, rows.data[0])


def _key_of(row: bytes | None) -> KeyInfo:
    assert row is not None, "no row where there is a key"
    return decode_as(KeyInfo, row)


def _content(size: int, data: bytes | None) -> dict[str, Any]:
    return {"size": size} if data is None else {"size": size, "data": said_by(data)}


def _path(op: str, volume: str, bucket: str = "", key: str = "") -> tuple[str, dict[str, str]]:
    base = f"/v1/volumes/{volume}"
    match op:
        case "volume_info":
            return base, {}
        case "list_buckets":
            return f"{base}/buckets", {"limit": "1000"}
        case "bucket_info":
            return f"{base}/buckets/{bucket}", {}
        case "list_keys":
            return f"{base}/buckets/{bucket}/keys", {"limit": "1000"}
        case "key_info":
            return f"{base}/buckets/{bucket}/key", {"name": key, "bytes": "true"}
    raise ValueError(op)


def _result(op: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return what the sequential model says of a read, from a node's JSON."""
    match op:
        case "volume_info":
            return {"count": body["usage"]["used_namespace"]}
        case "list_buckets":
            return {"buckets": [entry["bucket"] for entry in body["entries"]]}
        case "bucket_info":
            return {"count": body["usage"]["used_namespace"], "bytes": body["usage"]["used_bytes"]}
        case "list_keys":
            return {"keys": {entry["key"]: entry["size"] for entry in body["entries"]}}
    data = body.get("data")
    return _content(body["size"], None if data is None else base64.b64decode(data))


def crowd(writers: Sequence[Writer], readers: Sequence[Reader]) -> AbstractContextManager[None]:
    """Have writers and readers at work on their own threads for the time of a block."""
    return at_work(*(partial(_writes, writer) for writer in writers), *(partial(_reads, reader) for reader in readers))


def _writes(writer: Writer, ended: Event) -> None:
    while not ended.wait(WRITE_PACE_S):
        writer.step()


def _reads(reader: Reader, ended: Event) -> None:
    pause_s = READ_PACE_S
    while not ended.wait(pause_s):
        pause_s = READ_PACE_S if reader.step() else REFUSED_PAUSE_S
