"""What became of every request that the clients journaled: on every replica, and in the log alone.

Five independent witnesses are compared: the clients' journals; each replica's listing (stale, and linearizable); the bytes of inline
keys, read from each replica by its direct door (linearizable) and, of some, over HTTP; each replica's digests (incremental and scrubbed);
and the log read by the rule from its first record. The figures:

=============  ====================================================================================================
acknowledged   requests whose acknowledgement a client journaled
unknown        requests that were tried and of which the client was told nothing, or that their outcome is unknown
lost           acknowledged requests without their effect: not in the log at the index that was told, a committed key
               that a replica does not list with its size, or whose bytes are others there or in the log, or a
               deleted one that it lists
duplicated     calls with more than one result in the log, and keys that were written or deleted oftener than asked
unexpected     names that a replica lists and nobody can have put there, bytes in the log that no key has, and
               refusals that no state explains
divergent      replicas of which the incremental digest, the scrubbed one and the log's sum are not the same
=============  ====================================================================================================
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import httpx

from om_processors.namespace.tables import inline_key, key_key
from schemas.codecs.codec import decode_as
from schemas.column_families import INLINE_TABLE, KEY_TABLE
from schemas.records.log import Batch, Delete, DigestBase, Put
from schemas.records.rows import KeyInfo
from schemas.result_codes import OK
from schemas.sharding import shard_of
from tests.chaos.journal import ABSENT, Journal, data_of, key_of, size_of
from tests.support.local.stack import TestStack
from tests.support.logs.judged_log import Judged, LogReader, add_claims, unsigned
from tests.support.logs.logbuilder import MASK
from tests.support.om.raw_door import RawDoor

HTTP_TIMEOUT_S = 120.0
"""A scrub of a million rows on a busy machine takes many seconds."""
CONVERGE_TIMEOUT_S = 300.0
EXAMPLES = 5
LOOKED_UP = 200
"""So many keys are asked for at once by the direct door."""
OVER_HTTP = 100
"""Of so many keys of a place the bytes are read over HTTP, too."""


@dataclass(slots=True, kw_only=True)
class Findings:
    """The figures, and a few examples in words for each that ought to be 0."""

    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    lost: int = 0
    duplicated: int = 0
    unexpected: int = 0
    divergent: int = 0
    longest_gap_ms: int = 0
    read_back: int = 0
    """Inline keys whose bytes were read and compared, each on every replica."""
    words: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether all holds that must."""
        return not (self.lost or self.duplicated or self.unexpected or self.divergent)

    def note(self, figure: str, found: Sequence[str]) -> None:
        """Count what was found."""
        setattr(self, figure, getattr(self, figure) + len(found))
        self.words += [f"{figure}: {example}" for example in found[:EXAMPLES]]


def judge(stack: TestStack, journals: Sequence[Journal]) -> Findings:
    """Compare everything; call when the clients have ended and all nodes run. Waits until the replicas are at one index."""
    findings = Findings(
        acknowledged=sum(len(journal.calls) for journal in journals),
        unknown=sum(journal.unknown for journal in journals),
        refused=sum(len(journal.refusals) for journal in journals),
        longest_gap_ms=longest_gap_ms(journals, stack.settings.shards),
    )
    findings.note("unexpected", [line for journal in journals for line in journal.refusals])
    stack.wait_converged(CONVERGE_TIMEOUT_S)
    with httpx.Client(timeout=HTTP_TIMEOUT_S, trust_env=False) as http:
        for node in stack.names:
            for consistency in ("linearizable", "stale"):
                _judge_listings(findings, stack, http, node, consistency, journals)
            findings.read_back = _judge_bytes(findings, stack, http, node, journals)
        stack.wait_converged(CONVERGE_TIMEOUT_S)
        for shard in range(stack.settings.shards):
            own = [journal for journal in journals if shard_of(journal.volume, stack.settings.shards) == shard]
            sums, index = _judge_log(findings, stack.settings.bootstrap_servers, shard, own)
            for node in stack.names:
                _judge_digests(findings, stack, http, node, shard, sums, index)
    return findings


def longest_gap_ms(journals: Iterable[Journal], shards: int) -> int:
    """Return the longest time in which a shard acknowledged nothing, between its first and last acknowledgement."""
    times: dict[int, list[int]] = {}
    for journal in journals:
        times.setdefault(shard_of(journal.volume, shards), []).extend(journal.times_ms)
    gaps = (later - earlier for moments in times.values() for earlier, later in pairwise(sorted(moments)))
    return max(gaps, default=0)


# ------------------------------------------------------------------------------------------------------- listings


def _judge_listings(
    findings: Findings, stack: TestStack, http: httpx.Client, node: str, consistency: str, journals: Sequence[Journal]
) -> None:
    for volume, bucket in sorted({(journal.volume, journal.bucket) for journal in journals}):
        found = _listed(stack, http, node, volume, bucket, consistency)
        own = [journal for journal in journals if (journal.volume, journal.bucket) == (volume, bucket)]
        judge_listing(findings, f"{node}, {consistency}, {volume}/{bucket}", found, own)


def judge_listing(findings: Findings, where: str, listed: Mapping[str, int], journals: Iterable[Journal]) -> None:
    """Compare what a replica lists of a bucket, name -> size, with the journals of all clients that wrote to it."""
    found = dict(listed)
    for journal in journals:
        for number, possible in journal.expected():
            key = key_of(journal.client_id, number)
            sizes = {None if step == ABSENT else size_of(number, step) for step in possible}
            if (size := found.pop(key, None)) in sizes:
                continue
            was_to_be = None not in sizes and (len(sizes) == 1 or size is None)
            figure = "lost" if was_to_be or (sizes == {None} and journal.was_deleted(number)) else "unexpected"
            findings.note(figure, [f"{where}: {key} has size {size}, not {sizes}"])
    # What is left is nobody's.
    findings.note("unexpected", [f"{where}: {key}" for key in found])


# ---------------------------------------------------------------------------------------------------------- bytes


def judge_data(findings: Findings, where: str, found: Mapping[str, bytes | None], journals: Iterable[Journal]) -> int:
    """Compare the bytes of inline keys (None: the key has blocks) with those that were put; return how many keys had bytes.

    Whether a key must be there is the listings' question.
    """
    count = 0
    for journal in journals:
        for number, possible in journal.expected():
            key = key_of(journal.client_id, number)
            if key not in found:
                continue
            data = found[key]
            count += data is not None
            if data not in {data_of(journal.client_id, number, step) for step in possible - {ABSENT}}:
                said = "no bytes" if data is None else f"{len(data)} other bytes, {data[:40]!r}…"
                findings.note("lost", [f"{where}: {key} has {said}"])
    return count


def _judge_bytes(
    findings: Findings, stack: TestStack, http: httpx.Client, node: str, journals: Sequence[Journal]
) -> int:
    count = 0
    for volume, bucket in sorted({(journal.volume, journal.bucket) for journal in journals}):
        own = [journal for journal in journals if (journal.volume, journal.bucket) == (volume, bucket)]
        keys = [key_of(journal.client_id, number) for journal in own for number, _ in journal.expected()]
        found = dict(_by_the_door(stack, node, volume, bucket, keys))
        count += judge_data(findings, f"{node}, direct door, {volume}/{bucket}", found, own)
        some = [key for key, data in found.items() if data is not None][-OVER_HTTP:]
        told = {key: _over_http(stack, http, node, volume, bucket, key) for key in some}
        judge_data(findings, f"{node}, HTTP, {volume}/{bucket}", told, own)
    return count


def _by_the_door(
    stack: TestStack, node: str, volume: str, bucket: str, keys: Sequence[str]
) -> Iterator[tuple[str, bytes | None]]:
    with RawDoor(stack.address(node), timeout_s=HTTP_TIMEOUT_S) as door:
        for first in range(0, len(keys), LOOKED_UP):
            some = keys[first : first + LOOKED_UP]

            def answered(some: Sequence[str] = some) -> Any:
                found = door.look_up(volume, bucket, some, "linearizable", with_bytes=True)
                return found if found.status == OK else None

            rows = stack.wait(f"{node} answers lookups by its direct door", answered)
            yield from ((key, data) for key, row, data in zip(some, rows.rows, rows.data, strict=True) if row)


def _over_http(stack: TestStack, http: httpx.Client, node: str, volume: str, bucket: str, key: str) -> bytes | None:
    url = f"http://{stack.address(node)}/v1/volumes/{volume}/buckets/{bucket}/key"

    def answered() -> httpx.Response | None:
        answer = http.get(url, params={"name": key, "bytes": "true"})
        return None if answer.status_code == 503 else answer

    answer = stack.wait(f"{node} answers reads", answered)
    assert answer.status_code == 200, f"{node}: {answer.text}"
    data = answer.json().get("data")
    return None if data is None else base64.b64decode(data)


def _listed(
    stack: TestStack, http: httpx.Client, node: str, volume: str, bucket: str, consistency: str
) -> dict[str, int]:
    found: dict[str, int] = {}
    url = f"http://{stack.address(node)}/v1/volumes/{volume}/buckets/{bucket}/keys"
    page: dict[str, Any] = {"limit": 1000, "start_after": "", "consistency": consistency}

    def answered() -> httpx.Response | None:
        answer = http.get(url, params=page)
        return None if answer.status_code == 503 else answer  # not now: ask again

    while True:
        answer = stack.wait(f"{node} answers {consistency} reads", answered)
        assert answer.status_code == 200, f"{node}: {answer.text}"
        entries = answer.json()["entries"]
        found |= {entry["key"]: entry["size"] for entry in entries}
        if not answer.json()["truncated"]:
            return found
        page["start_after"] = entries[-1]["key"]


# --------------------------------------------------------------------------------------------- the log, and digests


class LogCount:
    """What one pass over a shard's log says: results by call, effects by key, rows and bytes of keys, the sum of its claims.

    ``asked`` is how often the key of a row may have been written and deleted; once, if it says nothing.
    """

    def __init__(
        self, acknowledged: Mapping[bytes, Mapping[int, int]], asked: Mapping[bytes, tuple[int, int]] | None = None
    ) -> None:
        self.missing = {client: dict(calls) for client, calls in acknowledged.items()}
        self._asked = asked or {}
        self.elsewhere: list[str] = []
        self.twice: list[str] = []
        self.sums: Counter[int] = Counter()
        self._calls: set[tuple[bytes, bytes]] = set()
        self._effects: Counter[tuple[type, bytes]] = Counter()
        self._rows: dict[bytes, bytes] = {}
        self._bytes: dict[bytes, bytes] = {}

    def take(self, judged: Judged) -> None:
        """Count a record, if it takes effect."""
        record = judged.record
        if not judged.reading.takes_effect:
            return
        if isinstance(record, DigestBase):
            self.sums = Counter(dict(zip(record.slots, record.sums, strict=True)))
        elif isinstance(record, Batch):
            add_claims(self.sums, record)
            self._take_results(record)
            self._take_operations(record)

    def tell(self, findings: Findings) -> None:
        """Say what is missing, at another place than a client was told, or there twice."""
        missing = [f"{client.hex()}/{call}" for client, calls in self.missing.items() for call in calls]
        findings.note("lost", [f"call {call} was acknowledged and is not in the log" for call in missing])
        findings.note("lost", self.elsewhere)
        findings.note("duplicated", self.twice)

    def _take_results(self, batch: Batch) -> None:
        for result in batch.results:
            if not result.recorded:
                continue
            call = (result.client_id, result.call_id)
            if call in self._calls:
                self.twice.append(f"call {result.client_id.hex()}/{result.call_id.hex()}")
            self._calls.add(call)
            told = self.missing.get(result.client_id, {}).pop(int.from_bytes(result.call_id, "big"), None)
            if told not in (None, result.index):
                self.elsewhere.append(f"call {call} was told index {told} and is at {result.index}")

    def _take_operations(self, batch: Batch) -> None:
        for operation in batch.operations:
            if not isinstance(operation, Put | Delete):
                continue
            if operation.cf == KEY_TABLE:
                self._take_key(operation)
            elif operation.cf == INLINE_TABLE:
                if isinstance(operation, Put):
                    self._bytes[operation.key] = fingerprint(operation.value)
                else:
                    self._bytes.pop(operation.key, None)

    def _take_key(self, operation: Put | Delete) -> None:
        effect = (type(operation), operation.key)
        self._effects[effect] += 1
        puts, deletes = self._asked.get(operation.key, (1, 1))
        if self._effects[effect] > (puts if isinstance(operation, Put) else deletes):
            self.twice.append(f"{type(operation).__name__} {operation.key!r}")
        if isinstance(operation, Put):
            self._rows[operation.key] = operation.value
        else:
            self._rows.pop(operation.key, None)

    def judge_bytes(self, findings: Findings, where: str, journals: Iterable[Journal]) -> None:
        """Compare the bytes that are left in the log with those that were put, and find bytes that no key has."""
        left = dict(self._bytes)
        for journal in journals:
            for number, possible in journal.expected():
                row = self._rows.get(key_key(journal.volume, journal.bucket, key_of(journal.client_id, number)))
                found = None if row is None else left.pop(inline_key(decode_as(KeyInfo, row).object_id), None)
                put = (data_of(journal.client_id, number, step) for step in possible - {ABSENT})
                if row is not None and found not in {None if data is None else fingerprint(data) for data in put}:
                    findings.note("lost", [f"{where}: the bytes of key {number} of {journal.client_id} are others"])
        findings.note("unexpected", [f"{where}: bytes of object {key.decode()}" for key in left])


def fingerprint(data: bytes) -> bytes:
    """Return what is kept of the bytes of a key: a campaign has hundreds of thousands."""
    return blake2b(data, digest_size=16).digest()


def _judge_log(
    findings: Findings, bootstrap_servers: str, shard: int, journals: Sequence[Journal]
) -> tuple[dict[int, int], int]:
    """Read a shard's log; return (its sums by slot, its last index)."""
    asked = {
        key_key(journal.volume, journal.bucket, key_of(journal.client_id, number)): journal.effects(number)
        for journal in journals
        for number in journal.keys
    }
    count = LogCount({bytes.fromhex(journal.client_id): journal.calls for journal in journals}, asked)
    reader = LogReader()
    for judged in reader.read(bootstrap_servers, shard):
        count.take(judged)
    count.tell(findings)
    count.judge_bytes(findings, f"the log of shard {shard}", journals)
    sums = {slot: total & MASK for slot, total in count.sums.items() if total & MASK}
    return sums, reader.position.index


def _judge_digests(
    findings: Findings, stack: TestStack, http: httpx.Client, node: str, shard: int, sums: dict[int, int], index: int
) -> None:
    answer = http.get(f"http://{stack.address(node)}/v1/shards/{shard}/digest", params={"scrub": "true"}).json()
    scrubbed = unsigned(answer["slots"], answer["sums"])
    incremental = unsigned(answer["incremental"]["slots"], answer["incremental"]["sums"])
    if not scrubbed == incremental == sums or answer["index"] != index:
        slots = sorted(slot for slot in {*scrubbed, *incremental, *sums}
                       if len({scrubbed.get(slot), incremental.get(slot), sums.get(slot)}) > 1)  # fmt: skip
        findings.note("divergent", [f"{node}, shard {shard}: index {answer['index']} of {index}, slots {slots[:9]}"])
