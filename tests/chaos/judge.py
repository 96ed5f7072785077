"""What became of every request that the clients journaled: on every replica, and in the log alone.

Four independent witnesses are compared: the clients' journals, each replica's listing (stale, and linearizable), each replica's digests
(incremental and scrubbed), and the log read by the rule from its first record. The figures:

=============  ====================================================================================================
acknowledged   requests whose acknowledgement a client journaled
unknown        requests that were tried and of which the client was told nothing, or that their outcome is unknown
lost           acknowledged requests without their effect: not in the log at the index that was told, a committed key
               that a replica does not list with its size, or a deleted one that it lists
duplicated     calls with more than one result in the log, and keys that were committed or deleted more than once
unexpected     names that a replica lists and nobody can have put there, and refusals that no state explains
divergent      replicas of which the incremental digest, the scrubbed one and the log's sum are not the same
=============  ====================================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from schemas.column_families import KEY_TABLE
from schemas.records.log import Batch, Delete, DigestBase, Put
from schemas.sharding import shard_of
from tests.chaos.journal import Journal
from tests.support.local.stack import TestStack
from tests.support.logs.judged_log import Judged, LogReader, add_claims, unsigned
from tests.support.logs.logbuilder import MASK

HTTP_TIMEOUT_S = 120.0
"""A scrub of a million rows on a busy machine takes many seconds."""
CONVERGE_TIMEOUT_S = 300.0
EXAMPLES = 5


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
        must, may = journal.expected()
        findings.note("lost", [f"{where}: {key}" for key, size in must.items() if found.pop(key, None) != size])
        deleted = [key for key in journal.deleted() if found.pop(key, None) is not None]
        findings.note("lost", [f"{where}: {key} was deleted" for key in deleted])
        wrong = [key for key, size in may.items() if found.pop(key, size) != size]
        findings.note("unexpected", [f"{where}: {key} has another size" for key in wrong])
    # What is left was never committed, or is nobody's.
    findings.note("unexpected", [f"{where}: {key}" for key in found])


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
    """What one pass over a shard's log says: results by call, effects by key, the sum of its claims."""

    def __init__(self, acknowledged: Mapping[bytes, Mapping[int, int]]) -> None:
        self.missing = {client: dict(calls) for client, calls in acknowledged.items()}
        self.elsewhere: list[str] = []
        self.twice: list[str] = []
        self.sums: Counter[int] = Counter()
        self._calls: set[tuple[bytes, bytes]] = set()
        self._effects: set[tuple[type, bytes]] = set()

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
            if isinstance(operation, Put | Delete) and operation.cf == KEY_TABLE:
                effect = (type(operation), operation.key)
                if effect in self._effects:
                    self.twice.append(f"{type(operation).__name__} {operation.key!r}")
                self._effects.add(effect)


def _judge_log(
    findings: Findings, bootstrap_servers: str, shard: int, journals: Sequence[Journal]
) -> tuple[dict[int, int], int]:
    """Read a shard's log; return (its sums by slot, its last index)."""
    count = LogCount({bytes.fromhex(journal.client_id): journal.calls for journal in journals})
    reader = LogReader()
    for judged in reader.read(bootstrap_servers, shard):
        count.take(judged)
    count.tell(findings)
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
