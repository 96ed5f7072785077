"""What must hold after a fault under load: clients' journals against listings, bytes and the log. Pure.

Independent witnesses are compared: the journals; what each replica lists; the bytes of inline keys; and the log, read
by the rule from its first record. The figures of an :class:`Aftermath`:

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

>>> found = Aftermath()
>>> judge_listing(found, "om1", {"nobody's": 1}, [Journal(client_id="c", volume="v", bucket="b")])
>>> found.sound, found.unexpected, found.told("unexpected")
(False, 1, ["om1: nobody's"])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b

from om_processors.namespace.tables import inline_key, key_key
from schemas.codecs.codec import decode_as
from schemas.column_families import INLINE_TABLE, KEY_TABLE
from schemas.records.log import Batch, Delete, Put, RequestBatch
from schemas.records.rows import KeyInfo
from stratolog.drills.core.log_survey import LogEntry
from stratolog.drills.kit.core.journal import ABSENT, Journal

EXAMPLES = 5
"""So many examples are kept in words each time that something is found."""


@dataclass(slots=True, kw_only=True)
class Aftermath:
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

    def figures(self) -> dict[str, int]:
        """Return the figures by name."""
        return {name: value for name, value in asdict(self).items() if name != "words"}

    def told(self, figure: str) -> list[str]:
        """Return the examples of a figure."""
        return [word.removeprefix(f"{figure}: ") for word in self.words if word.startswith(f"{figure}: ")]


def judge_listing(found: Aftermath, where: str, listed: Mapping[str, int], journals: Iterable[Journal]) -> None:
    """Compare what a replica lists of a bucket, name -> size, with the journals of all clients that wrote to it."""
    left = dict(listed)
    for journal in journals:
        for key, possible in journal.expected():
            sizes = {journal.size(key, step) for step in possible}
            if (size := left.pop(key, None)) in sizes:
                continue
            was_to_be = None not in sizes and (len(sizes) == 1 or size is None)
            figure = "lost" if was_to_be or (sizes == {None} and journal.was_deleted(key)) else "unexpected"
            found.note(figure, [f"{where}: {key} has size {size}, not {sizes}"])
    # What is left is nobody's.
    found.note("unexpected", [f"{where}: {key}" for key in left])


def judge_data(found: Aftermath, where: str, read: Mapping[str, bytes | None], journals: Iterable[Journal]) -> int:
    """Compare the bytes of inline keys (None: the key has blocks) with those that were put; return how many had bytes.

    Whether a key must be there is the listings' question.
    """
    count = 0
    for journal in journals:
        for key, possible in journal.expected():
            if key not in read:
                continue
            data = read[key]
            count += data is not None
            if data not in {journal.data(key, step) for step in possible - {ABSENT}}:
                said = "no bytes" if data is None else f"{len(data)} other bytes, {data[:40]!r}…"
                found.note("lost", [f"{where}: {key} has {said}"])
    return count


class LogCount:
    """What one pass over a shard's log says: results by call, effects by key, rows and bytes of keys.

    ``alone``: nobody but the journals' clients writes, so that whatever is nobody's is unexpected.
    """

    def __init__(self, journals: Sequence[Journal], *, alone: bool) -> None:
        self._journals = journals
        self._alone = alone
        self._missing: dict[bytes, dict[int, int]] = {}
        for journal in journals:
            self._missing.setdefault(bytes.fromhex(journal.client_id), {}).update(journal.calls)
        self._asked = {
            key_key(journal.volume, journal.bucket, key): journal.effects(key)
            for journal in journals
            for key in journal.keys
        }
        self._elsewhere: list[str] = []
        self._twice: list[str] = []
        self._calls: set[tuple[bytes, bytes]] = set()
        self._effects: Counter[tuple[type, bytes]] = Counter()
        self._rows: dict[bytes, bytes] = {}
        self._bytes: dict[bytes, bytes] = {}

    def take(self, entry: LogEntry) -> None:
        """Count a record, if it takes effect."""
        if not entry.reading.takes_effect:
            return
        if isinstance(entry.record, Batch):
            self._take_results(entry.record)
            for operation in entry.record.operations:
                if isinstance(operation, Put | Delete):
                    self._take_operation(operation)
        elif isinstance(entry.record, RequestBatch):  # validated late: its effects are not in the log
            for request in entry.record.requests:
                self._missing.get(request.client_id, {}).pop(int.from_bytes(request.call_id, "big"), None)

    def tell(self, found: Aftermath, where: str) -> None:
        """Say what is missing, at another place than a client was told, there twice, or has other bytes."""
        missing = [f"{client.hex()}/{call}" for client, calls in self._missing.items() for call in calls]
        found.note("lost", [f"call {call} was acknowledged and is not in the log" for call in missing])
        found.note("lost", self._elsewhere)
        found.note("duplicated", self._twice)
        if self._alone:
            self._tell_bytes(found, where)

    def _take_results(self, batch: Batch) -> None:
        for result in batch.results:
            if not result.recorded or not (self._alone or result.client_id in self._missing):
                continue
            call = (result.client_id, result.call_id)
            if call in self._calls:
                self._twice.append(f"call {result.client_id.hex()}/{result.call_id.hex()}")
            self._calls.add(call)
            told = self._missing.get(result.client_id, {}).pop(int.from_bytes(result.call_id, "big"), None)
            if told not in (None, result.index):
                self._elsewhere.append(f"call {call} was told index {told} and is at {result.index}")

    def _take_operation(self, operation: Put | Delete) -> None:
        if operation.cf == KEY_TABLE:
            self._take_key(operation)
        elif self._alone and operation.cf == INLINE_TABLE:
            if isinstance(operation, Put):
                self._bytes[operation.key] = _fingerprint(operation.value)
            else:
                self._bytes.pop(operation.key, None)

    def _take_key(self, operation: Put | Delete) -> None:
        if not self._alone and operation.key not in self._asked:
            return
        effect = (type(operation), operation.key)
        self._effects[effect] += 1
        puts, deletes = self._asked.get(operation.key, (1, 1))
        if self._effects[effect] > (puts if isinstance(operation, Put) else deletes):
            self._twice.append(f"{type(operation).__name__} {operation.key!r}")
        if isinstance(operation, Put):
            self._rows[operation.key] = operation.value
        else:
            self._rows.pop(operation.key, None)

    def _tell_bytes(self, found: Aftermath, where: str) -> None:
        """Compare the bytes that are left in the log with those that were put, and find bytes that no key has."""
        left = dict(self._bytes)
        for journal in self._journals:
            for key, possible in journal.expected():
                row = self._rows.get(key_key(journal.volume, journal.bucket, key))
                held = None if row is None else left.pop(inline_key(decode_as(KeyInfo, row).object_id), None)
                put = (journal.data(key, step) for step in possible - {ABSENT})
                if row is not None and held not in {None if data is None else _fingerprint(data) for data in put}:
                    found.note("lost", [f"{where}: the bytes of {key} are others"])
        found.note("unexpected", [f"{where}: bytes of object {key.decode()}" for key in left])


def _fingerprint(data: bytes) -> bytes:
    """Return what is kept of the bytes of a key: a campaign has hundreds of thousands."""
    return blake2b(data, digest_size=16).digest()
