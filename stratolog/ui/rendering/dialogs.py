"""What is fetched when somebody asks: a replica's details, the keys that differ in a bucket, the log, drills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from schemas.records.log import Batch, LogRecord, RequestBatch
from schemas.records.verdict_words import DIVERGED, EQUAL
from schemas.topics import OM_LOG
from spark_streaming.records.core.freshness import JudgedVerdict
from stratolog.ui.core.drill_desk import DrillDesk
from stratolog.ui.core.judged_tail import TailRecord, mark_before
from stratolog.ui.core.replica_grid import ReplicaDetails
from stratolog.ui.core.storage_rows import SizeHistogram
from stratolog.ui.core.words import Tone, bytes_of, count_of
from stratolog.ui.rendering.charts import BAR_HEIGHT, BAR_WIDTH, size_bar
from stratolog.ui.rendering.markup import rendered
from stratolog.ui.rendering.texts import plain_of

SHOWN_DIFFERENCES = 20
SHOWN_KEYS = 50
FIELDS = ("role", "leader", "term", "applied_index", "applied_offset", "digest", "members", "records_void", "flagged")
"""Fields of a replica's status that its dialog shows."""


def replica_dialog(details: ReplicaDetails | None) -> str:
    """Return what is known of a replica: the verdicts, what differs and the way to repair it, and its status."""
    if details is None:
        return rendered("replica.html", details=None)
    return rendered(
        "replica.html", details=details, tone_of=_tone, sum64=_sum64, SHOWN_DIFFERENCES=SHOWN_DIFFERENCES,
        status=[(name.replace("_", " "), plain_of(details.view[name])) for name in FIELDS if name in details.view],
        different=[one.verdict for one in details.verdicts if one.verdict.verdict == DIVERGED and one.verdict.differences],
        commands="\n".join(_om_commands(details) if details.replica.log == OM_LOG else _dn_commands(details)),
    )  # fmt: skip


def _tone(one: JudgedVerdict) -> Tone:
    if one.verdict.verdict == DIVERGED:
        return Tone.BAD
    if one.is_stale:
        return Tone.STALE
    return Tone.GOOD if one.verdict.verdict == EQUAL else Tone.WARN


def _sum64(number: int) -> str:
    return f"{number & (2**64 - 1):016x}"


def _om_commands(details: ReplicaDetails) -> list[str]:
    _, shard, node = details.replica
    folder, aside = f"nodes/{node}/shard-{shard}", f"aside-{node}-shard-{shard}"
    end = f"# end {node}" if details.pid is None else f"kill {details.pid} && tail --pid={details.pid} -f /dev/null"
    return [
        f"stratolog debug digest --node {node} --shard {shard}",
        "# its database is made anew from a peer's checkpoint; in the data directory, on its machine:",
        f"{end}  # it hands over, and ends" if details.pid is not None else end,
        f"mkdir {aside} && mv {folder} {aside}/",
        f"[ ! -d {folder}.checkpoints ] || mv {folder}.checkpoints {aside}/  # there are none before the first one",
        "stratolog up  # starts it again",
        f"# flagged, and right after all (a wrong digest base): stratolog admin unflag {node} {shard}",
    ]


def _dn_commands(details: ReplicaDetails) -> list[str]:
    return [f"stratolog debug log {details.replica.shard}", "stratolog audit --once --blocks"]


# -- keys --------------------------------------------------------------------------------------------------------------


def keys_fragment(
    cf: str, bucket: int, mine: Mapping[str, object], other: Mapping[str, object], names: tuple[str, str]
) -> str:  # fmt: skip
    """Return the keys of a bucket in which two replicas differ; ``mine`` and ``other`` are answers of their nodes."""
    return rendered(
        "keys.html", cf=cf, bucket=bucket, found=differing_keys(mine, other), key_of=_key_text, SHOWN_KEYS=SHOWN_KEYS,
        at=f"{names[0]} at index {mine['index']}, {names[1]} at index {other['index']}", names=names,
    )  # fmt: skip


def differing_keys(mine: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return (key in hexadecimal, what is wrong) for the rows of two answers of ``/v1/shards/N/rows``."""
    one, two = _hashes(mine), _hashes(other)
    words = []
    for key in sorted(one.keys() | two.keys()):
        if key not in one:
            words.append((key, "is missing"))
        elif key not in two:
            words.append((key, "is a row too many"))
        elif one[key] != two[key]:
            words.append((key, "has another value"))
    return words


def _hashes(answer: Mapping[str, object]) -> dict[str, object]:
    rows = answer.get("rows")
    return {str(row["key"]): row["hash"] for row in rows} if isinstance(rows, list) else {}


def _key_text(key: str) -> str:
    """Return a row's key as text where it is text; what is not printable in it is shown escaped, as everywhere."""
    try:
        return bytes.fromhex(key).decode()
    except UnicodeDecodeError:
        return key


# -- sizes -------------------------------------------------------------------------------------------------------------


def sizes_dialog(name: str, found: SizeHistogram) -> str:
    """Return how many keys of a bucket have which size."""
    return rendered(
        "sizes.html", name=name, found=found, bar_width=size_bar, BAR_WIDTH=BAR_WIDTH, BAR_HEIGHT=BAR_HEIGHT
    )  # fmt: skip


# -- the log -----------------------------------------------------------------------------------------------------------


def log_fragment(shard: int, records: Sequence[TailRecord], first: int) -> str:
    """Return a page of a shard's log, the newest record on top; void records are struck out, with the reason."""
    mark = mark_before(records)
    return rendered(
        "log.html", shard=shard, records=records, older=mark if mark is not None and mark.offset >= first else None,
        unjudged=sum(one.reading is None for one in records), kind_of=_kind, index_of=_index_of, what_of=_what,
        reading_tone=_reading_tone,
    )  # fmt: skip


def _kind(record: LogRecord | None) -> str:
    return "undecodable" if record is None else type(record).__name__


def _reading_tone(one: TailRecord) -> Tone:
    if (one.reading or "").startswith("STOP"):
        return Tone.BAD
    return Tone.STALE if one.is_void or one.reading is None else Tone.GOOD


def _index_of(record: LogRecord | None) -> str:
    if isinstance(record, Batch | RequestBatch):
        first, last = record.first_index, record.last_index
        return f"{first:,}" if first == last else f"{first:,}–{last:,}" if last > first else f"{last:,}"
    index = getattr(record, "index", None)
    return "" if index is None else f"{index:,}"


def _what(one: TailRecord) -> str:
    record = one.record
    if isinstance(record, Batch):
        kinds = Counter(result.request_type for result in record.results)
        words = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common(4)) or "no requests"
        return f"{words}; {count_of(len(record.operations), 'operation')}, {bytes_of(len(one.entry.value))}"
    if isinstance(record, RequestBatch):
        kinds = Counter(request.request_type for request in record.requests)
        return ", ".join(f"{number} {kind}" for kind, number in kinds.most_common(4))
    for name in ("node", "replicas", "basis", "request_type", "level", "scrub"):
        if record is not None and hasattr(record, name):
            return f"{name.replace('_', ' ')}: {plain_of(getattr(record, name))}"
    return ""


# -- drills ------------------------------------------------------------------------------------------------------------


def drills_panel(desk: DrillDesk, elsewhere: bool, now_ms: int) -> str:
    """Return the runs, the newest first, with their output; ``elsewhere``: another drill runs, not begun here."""
    return rendered("drills.html", runs=list(desk.runs), elsewhere=elsewhere, now_ms=now_ms)
