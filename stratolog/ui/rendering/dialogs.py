"""What is fetched when somebody asks: a replica's details, the keys that differ in a bucket, the log, drills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from schemas.records.log import Batch, LogRecord, RequestBatch
from schemas.records.messages import Verdict
from schemas.records.verdict_words import DIVERGED, EQUAL
from schemas.topics import OM_LOG
from spark_streaming.records.core.freshness import JudgedVerdict, age_words
from stratolog.ui.core.drill_desk import DrillDesk, DrillRun
from stratolog.ui.core.judged_tail import TailRecord, mark_before
from stratolog.ui.core.replica_grid import ReplicaDetails
from stratolog.ui.core.storage_rows import SizeHistogram
from stratolog.ui.core.words import Tone, bytes_of, count_of, partition_words
from stratolog.ui.rendering.charts import size_bars
from stratolog.ui.rendering.markup import Content, Markup, badge, element, facts_line, joined, quiet, table
from stratolog.ui.rendering.panels import clock_of

SHOWN_DIFFERENCES = 20
SHOWN_KEYS = 50
FIELDS = ("role", "leader", "term", "applied_index", "applied_offset", "digest", "members", "records_void", "flagged")
"""Fields of a replica's status that its dialog shows."""


def replica_dialog(details: ReplicaDetails) -> Markup:
    """Return what is known of a replica: the verdicts, what differs and the way to repair it, and its status."""
    log, shard, node = details.replica
    status = [(name.replace("_", " "), _text(details.view[name])) for name in FIELDS if name in details.view]
    return joined([
        element("h2", f"{node}, {partition_words(log, shard)}"),
        _verdicts(details.verdicts), _evidence(details.evidence),
        [_differences(one.verdict) for one in details.verdicts if one.verdict.verdict == DIVERGED],
        _repair(details) if details.is_diverged else None,
        element("h3", "What its node says"),
        facts_line(status) if status else quiet("It does not answer."),
    ])  # fmt: skip


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _verdicts(verdicts: Sequence[JudgedVerdict]) -> Markup:
    if not verdicts:
        return quiet("The audit has said nothing yet.")
    rows = [
        (one.verdict.basis, badge(one.verdict.verdict, _tone(one)), f"{one.verdict.index:,}",
         f"{age_words(one.age_ms)} ago{', stale' if one.is_stale else ''}", one.verdict.reason)
        for one in verdicts
    ]  # fmt: skip
    return table(("basis", "verdict", "index", "said", "reason"), rows, numbers=(2,), caption="Verdicts")


def _tone(one: JudgedVerdict) -> Tone:
    if one.verdict.verdict == DIVERGED:
        return Tone.BAD
    if one.is_stale:
        return Tone.STALE
    return Tone.GOOD if one.verdict.verdict == EQUAL else Tone.WARN


def _evidence(evidence: Mapping[str, object]) -> Content:
    if not evidence:
        return None
    rows = [(name, _text(value)) for name, value in evidence.items()]
    return [element("h3", "Evidence that the replica has found itself"), table(("", ""), rows, caption="Evidence")]


def _differences(verdict: Verdict) -> Content:
    """Name the buckets that differ; a button asks both replicas for their keys."""
    if not verdict.differences:
        return None
    rows = [
        (one.cf, str(one.bucket), f"{one.log_sum & (2**64 - 1):016x}", f"{one.replica_sum & (2**64 - 1):016x}",
         _keys_button(verdict, one.cf, one.bucket))
        for one in verdict.differences[:SHOWN_DIFFERENCES]
    ]  # fmt: skip
    said = f"Buckets that differ: {verdict.differing_slots}, at index {verdict.index:,} ({verdict.basis})"
    columns = ("column family", "bucket", "sum by the log", "sum of the replica", "")
    return [element("h3", said), table(columns, rows, numbers=(1,), caption="Buckets that differ")]


def _keys_button(verdict: Verdict, cf: str, bucket: int) -> Content:
    if verdict.log != OM_LOG or not verdict.node:
        return None
    target = f"keys?{urlencode({'shard': verdict.shard, 'node': verdict.node, 'cf': cf, 'bucket': bucket})}"
    return element("button", "keys", type="button", class_="small", data_open=target, data_into="keys")


def _repair(details: ReplicaDetails) -> Content:
    """Return the commands that look into a divergence and end it."""
    lines = _om_commands(details) if details.replica.log == OM_LOG else _dn_commands(details)
    return [element("h3", "Look, and repair"), element("pre", "\n".join(lines), id="repair"), element("div", id="keys")]


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
) -> Markup:  # fmt: skip
    """Return the keys of a bucket in which two replicas differ; ``mine`` and ``other`` are answers of their nodes."""
    found = differing_keys(mine, other)
    at = f"{names[0]} at index {mine['index']}, {names[1]} at index {other['index']}"
    if not found:
        return quiet(f"No key of {cf}, bucket {bucket} differs between them now: {at}.")
    rows = [(_key_text(key), what) for key, what in found[:SHOWN_KEYS]]
    note = quiet(f"{at}; {count_of(len(found), 'key')} of {cf}, bucket {bucket}")
    return joined([note, table(("key", f"{names[0]} against {names[1]}"), rows, caption="Keys that differ")])


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


def sizes_dialog(name: str, found: SizeHistogram) -> Markup:
    """Return how many keys of a bucket have which size."""
    if not found.keys:
        return joined([element("h2", f"Sizes in {name}"), quiet("The bucket has no keys.")])
    counted = f"of its first {count_of(found.keys, 'key')} by name" if found.is_cut else count_of(found.keys, "key")
    facts = [
        ("counted", counted), ("together", bytes_of(found.total_bytes)), ("median", bytes_of(found.median)),
        ("largest", bytes_of(found.largest)), ("empty", count_of(found.empty, "key")),
    ]  # fmt: skip
    return joined([element("h2", f"Sizes in {name}"), size_bars(found.classes), facts_line(facts)])


# -- the log -----------------------------------------------------------------------------------------------------------


def log_fragment(shard: int, records: Sequence[TailRecord], first: int) -> Markup:
    """Return a page of a shard's log, the newest record on top; void records are struck out, with the reason."""
    if not records:
        return quiet(f"The log of shard {shard} has no such records.")
    rows = [_record_row(one) for one in reversed(records)]
    head = [
        element("th", name, scope="col") for name in ("offset", "time", "record", "term", "index", "what", "reading")
    ]
    mark = mark_before(records)
    older = None
    if mark is not None and mark.offset >= first:
        target = f"log?shard={shard}&until={mark.offset}&chain={mark.chain}"
        older = element("button", "Older records", type="button", data_open=target, data_into="log-records")
    unjudged = sum(one.reading is None for one in records)
    note = f"{count_of(unjudged, 'record')} at the page's beginning could not be judged from here" if unjudged else ""
    newest = element("button", "Newest", type="button", data_open=f"log?shard={shard}", data_into="log-records")
    return joined([
        element("table", element("thead", element("tr", head)), element("tbody", rows), class_="log"),
        element("p", older, " ", newest, " ", element("span", note, class_="quiet")),
    ])  # fmt: skip


def _record_row(one: TailRecord) -> Markup:
    kind = "undecodable" if one.record is None else type(one.record).__name__
    term = "" if one.record is None else f"{one.record.term}"
    reading = badge(one.reading or "not judged", Tone.BAD if (one.reading or "").startswith("STOP") else
                    Tone.STALE if one.is_void or one.reading is None else Tone.GOOD)  # fmt: skip
    cells: Sequence[Content] = (
        f"{one.entry.offset:,}", clock_of(one.entry.timestamp_ms), kind, term, _index_of(one.record),
        _what(one), reading,
    )  # fmt: skip
    return element("tr", [element("td", cell) for cell in cells], class_="void" if one.is_void else None)


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
            return f"{name.replace('_', ' ')}: {_text(getattr(record, name))}"
    return ""


# -- drills ------------------------------------------------------------------------------------------------------------


def drills_panel(desk: DrillDesk, elsewhere: bool, now_ms: int) -> Markup:
    """Return the runs, the newest first, with their output; ``elsewhere``: another drill runs, not begun here."""
    note = quiet("A drill runs on this stack that was not started here.") if elsewhere else None
    if not desk.runs:
        return joined([note, quiet("No drill was started from this page.")])
    return joined([note, [_run(run, now_ms) for run in reversed(desk.runs)]])


def _run(run: DrillRun, now_ms: int) -> Markup:
    words, tone = run.outcome
    took = age_words((run.ended_ms or now_ms) - run.started_ms)
    where = "" if run.shard is None else f", shard {run.shard}"
    stop = None
    if run.exit_status is None:
        stop = element("button", "Stop it", type="button", class_="small", data_post="drills/stop", id="drill-stop")
    return element(
        "details", element("summary", badge(words, tone), f" {run.name}{where}, {took} ", stop),
        element("pre", "\n".join(run.lines) or "…"), open=run.exit_status is None, id=f"drill-{run.number}",
        class_="drill", data_outcome=words,
    )  # fmt: skip
