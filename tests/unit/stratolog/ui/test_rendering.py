"""The page's HTML: every text of a stranger is escaped, and says what it is to say."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError

from replicated_db.core.ports import Entry
from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE
from schemas.records.messages import Difference
from stratolog.ui.core.board import board_of
from stratolog.ui.core.drill_desk import MAX_LINE_CHARACTERS, MAX_LINES, MAX_RUNS, DrillDesk
from stratolog.ui.core.judged_tail import ChainMark, judged_tail
from stratolog.ui.core.observed import RowCount, TimelineEvent
from stratolog.ui.core.replica_grid import details_of
from stratolog.ui.core.storage_rows import histogram_of
from stratolog.ui.core.verdict_book import JudgedReplica
from stratolog.ui.core.words import Tone
from stratolog.ui.rendering.dialogs import (
    differing_keys,
    drills_panel,
    keys_fragment,
    log_fragment,
    replica_dialog,
    sizes_dialog,
)
from stratolog.ui.rendering.markup import rendered
from stratolog.ui.rendering.panels import panels_of
from stratolog.ui.rendering.texts import MAX_TEXT_CHARACTERS, clock_of
from tests.support.logs.logbuilder import LogBuilder
from tests.support.ui.observations import NOW_MS, bucket, datanode, seen, status, verdict, view, window

EVIL = "<script>alert(1)</script>\" onload='x' \x1b[31m\u202e& {{ 7 * 7 }} {% include 'page.html' %} {# x #}"


class Elements(HTMLParser):
    """Collects the elements, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.depth: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def names(self) -> set[str]:
        return {name for name, _ in self.found}


def harmless(html: str, scripts: int = 0) -> Elements:
    """Read HTML that may hold EVIL, and see that it became text alone; the page has a script of its own."""
    elements = Elements(html)
    assert [name for name, _ in elements.found].count("script") == scripts
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert not [name for _, attributes in elements.found for name in attributes if name == "style"]
    assert "\x1b" not in html
    assert "\u202e" not in html
    return elements


def test_whatever_strangers_have_written_is_text() -> None:
    nodes = {EVIL: {**status("om1")}, "om2": None}
    known = seen(
        cluster=EVIL, nodes=nodes, trouble=[EVIL], stopped=[EVIL], events=[TimelineEvent(1, EVIL, EVIL, Tone.BAD)],
        verdicts=[verdict(EVIL, reason=EVIL), verdict("om2", 1, "unknown", reason=EVIL)],
        windows=[window(NOW_MS - 20_000, result=EVIL, kind=EVIL)], buckets=[bucket(EVIL, 5, quota=10)],
        datanodes=[datanode(EVIL, health=EVIL, state=EVIL, faults=[EVIL])],
        datanode_statuses={EVIL: None},
        pipelines=[{"partition": 0, "pipeline": EVIL, "state": "OPEN"}],
    )  # fmt: skip
    panels = panels_of(board_of(known))
    for html in panels.values():
        harmless(html)
    shown_evil = EVIL.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
    for name in ("grid", "traffic", "timeline", "datanodes", "namespace"):
        assert shown_evil in harmless(panels[name]).text, name
    details = details_of(known, JudgedReplica("om.log", 0, EVIL))
    assert details is not None
    assert shown_evil in harmless(replica_dialog(details)).text
    page = harmless(rendered("page.html", cluster=EVIL, shards=2, drills=[], about_a_shard=()), scripts=1)
    assert shown_evil in page.text
    for start in ('quoted">', "quoted'>", "a=b ", "`"):
        cells = [attributes for _, attributes in Elements(panels_of(board_of(seen(nodes={start: None})))["grid"]).found]
        assert f"cell-om.log-0-{start}" in [one.get("id") for one in cells]


def test_every_panel_has_its_place_on_the_page() -> None:
    panels = panels_of(board_of(seen()))
    assert set(panels) == {"sentence", "grid", "traffic", "lag", "timeline", "datanodes", "namespace"}
    assert "6 replicas equal" in Elements(panels["sentence"]).text
    cells = [attributes for name, attributes in Elements(panels["grid"]).found if name == "button"]
    assert cells[0]["data-open"] == "replica?log=om.log&shard=0&node=om1"
    assert len(cells) == 6
    assert "all 6 replicas stand at the newest index of their partition" in Elements(panels["lag"]).text


def test_texts_are_cut_in_elements_and_in_attributes() -> None:
    long = "x" * (MAX_TEXT_CHARACTERS + 5)
    events = [TimelineEvent(1, "here", long, Tone.BAD)]
    panels = panels_of(board_of(seen(events=events, buckets=[bucket(long, 5)])))
    assert panels["timeline"].count("x") == MAX_TEXT_CHARACTERS
    buttons = [attributes for name, attributes in Elements(panels["namespace"]).found if name == "button"]
    assert [(one["id"] or "").count("x") for one in buttons] == [MAX_TEXT_CHARACTERS - len("v/")]


def test_a_name_that_a_template_does_not_get_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'sentence' is undefined"):
        rendered("sentence.html")


@pytest.mark.parametrize("at_ms", [-(2**62), 2**62, 0])
def test_any_time_is_shown(at_ms: int) -> None:
    assert clock_of(at_ms)


def test_a_diverged_replicas_dialog_names_buckets_and_the_way_back() -> None:
    worse = verdict("om3", 1, "diverged", "scrubbed", differing_slots=1)
    difference = Difference(cf="keyTable", bucket=17, log_sum=-1, replica_sum=5)
    known = seen(verdicts=[replace(worse, differences=[difference])])
    details = details_of(known, JudgedReplica("om.log", 1, "om3"))
    assert details is not None
    elements = Elements(replica_dialog(details))
    assert "Buckets that differ: 1, at index" in elements.text
    assert "ffffffffffffffff" in elements.text
    assert "stratolog debug digest --node om3 --shard 1" in elements.text
    assert "# end om3\n" in elements.text  # its process is not known
    nodes = {"om3": {**status("om3"), "pid": 4711}}
    known_too = details_of(replace(known, nodes=nodes), JudgedReplica("om.log", 1, "om3"))
    assert known_too is not None
    assert "kill 4711 &amp;&amp; tail --pid=4711 -f /dev/null" in replica_dialog(known_too)
    opened = [attributes.get("data-open") for _, attributes in elements.found if attributes.get("data-into") == "keys"]
    assert opened == ["keys?shard=1&node=om3&cf=keyTable&bucket=17"]


def test_keys_that_differ_are_named() -> None:
    mine = {"index": 7, "rows": [{"key": b"/v/b/a".hex(), "hash": 1}, {"key": b"\xff\x00".hex(), "hash": 2}]}
    other = {"index": 7, "rows": [{"key": b"/v/b/a".hex(), "hash": 9}, {"key": b"/v/b/c".hex(), "hash": 3}]}
    assert [what for _, what in differing_keys(mine, other)] == ["has another value", "is missing", "is a row too many"]
    text = Elements(keys_fragment("keyTable", 17, mine, other, ("om3", "om1"))).text
    assert "/v/b/a" in text
    assert "ff00" in text
    hostile = {"index": 7, "rows": [{"key": "/v/b/\x1b[31m\u202e".encode().hex(), "hash": 1}]}
    assert r"/v/b/\x1b[31m\u202e" in Elements(keys_fragment("keyTable", 17, hostile, other, ("om3", "om1"))).text
    assert "No key of keyTable" in keys_fragment("keyTable", 17, mine, mine, ("om3", "om1"))


def test_sizes_of_a_bucket_are_bars() -> None:
    found = Elements(sizes_dialog("v/b", histogram_of([0, 5, 2000, 5_000_000], is_cut=True)))
    assert "of its first 4 keys by name" in found.text
    assert "up to 8.0 MiB" in found.text
    widths = [attributes["width"] for name, attributes in found.found if name == "rect"]
    assert (len(widths), widths[0], widths[-1], widths[2]) == (14, "400.0", "400.0", "0")
    assert "has no keys" in sizes_dialog("v/b", histogram_of([], is_cut=False))
    harmless(sizes_dialog(EVIL, histogram_of([1], is_cut=False)))


def test_what_waits_is_shown_as_far_as_it_was_counted() -> None:
    waiting = {OPEN_KEY_TABLE: RowCount(3, is_cut=False), DELETED_TABLE: RowCount(9, is_cut=True)}
    text = Elements(panels_of(board_of(seen(waiting=waiting, buckets=[bucket("b", 1)])))["namespace"]).text
    assert "open keys3" in text
    assert "9 and more" in text
    assert "not known" in Elements(panels_of(board_of(seen()))["namespace"]).text


def test_small_cells_of_many_partitions_are_harmless_and_say_their_tone() -> None:
    verdicts = [verdict("om1", 3, "unknown", reason=EVIL), verdict(EVIL, 0)]
    nodes = {"om1": {"shards": [view(shard, role=EVIL) for shard in range(9)]}, EVIL: None}
    elements = harmless(panels_of(board_of(seen(shards=9, nodes=nodes, verdicts=verdicts)))["grid"])
    titles = [attributes["title"] for name, attributes in elements.found if name == "button"]
    assert "shard 3: unknown, follower" in titles
    assert "9 shards" in elements.text


def test_void_records_of_the_log_are_marked_with_their_reason() -> None:
    log = LogBuilder().start()
    log.batch(log.put("keyTable", b"/v/b/k", b"x"))
    log.lost_claim()
    log.barrier(scrub=True)
    entries = [Entry(offset=at, timestamp_ms=at, value=value) for at, value in enumerate(log.values)]
    html = log_fragment(0, judged_tail(entries, None, from_first=True), 0)
    elements = Elements(html)
    rows = [attributes for name, attributes in elements.found if name == "tr"]
    assert [row.get("class") for row in rows] == [None, None, "void", None, None, None]
    assert "void: claim of a term that is taken" in elements.text
    assert "1 CreateKey; 1 operation" in elements.text
    assert "Older records" not in html
    assert "has no such records" in log_fragment(1, [], 0)


def test_a_page_of_the_log_leads_to_the_older_one() -> None:
    log = LogBuilder().start()
    for _ in range(9):
        log.barrier()
    entries = [Entry(offset=at, timestamp_ms=at, value=value) for at, value in enumerate(log.values)][5:]
    page = judged_tail(entries, ChainMark(10, log.chain.hex()))
    html = log_fragment(0, page, 0)
    assert 'data-open="log?shard=0&amp;until=5&amp;chain=' in html
    assert "Older records" not in log_fragment(0, page, first=6)  # the log was trimmed up to there


# -- drills ------------------------------------------------------------------------------------------------------------


def test_drills_are_bounded_and_end_in_a_word() -> None:
    desk = DrillDesk()
    assert "No drill was started" in drills_panel(desk, elsewhere=False, now_ms=0)
    for number in range(MAX_RUNS + 3):
        run = desk.begin("kill-leader", 0, number)
        assert desk.running is run
        run.end({0: 0, 1: 1, 2: 3}.get(number % 4, -9), number + 5)
    assert len(desk.runs) == MAX_RUNS
    words = {run.outcome[0] for run in desk.runs}
    assert words == {"passed", "FAILED", "could not run", "ended with status -9"}
    run = desk.begin("replay", None, 0)
    for number in range(MAX_LINES + 9):
        run.say(f"{number} " + "x" * 1000)
    run.say("   \n")
    assert (len(run.lines), max(map(len, run.lines))) == (MAX_LINES, MAX_LINE_CHARACTERS)
    html = drills_panel(desk, elsewhere=True, now_ms=65_000)
    assert "running" in html
    assert "not started here" in html
    assert 'data-post="drills/stop"' in html
