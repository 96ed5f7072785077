"""Watching a cluster while somebody looks: threads that read topics and ask nodes, and what they have found.

Rules:

1. Nothing is read while nobody looks: the threads end IDLE_S after the last look (:meth:`ClusterWatch.look`), and begin
   again at the next one. Kafka keeps what happened meanwhile.
2. Each thread writes what it found under the lock; :meth:`ClusterWatch.observed` takes all of it at once.
3. A source that cannot be read is named on the page, and tried again every RETRY_S.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Message

from schemas.records.messages import Verdict, WindowStats
from schemas.topics import OM_LOG, OM_STATS, OM_VERDICTS
from spark_streaming.records.core.freshness import ReportedPartition
from spark_streaming.records.report_times import ReportTimes
from spark_streaming.windows.core.reading_windows import LatestWindows
from stratolog.cluster.reach import broker_addresses, listening
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.local import state
from stratolog.nodes.core.leaders import views_in
from stratolog.ui.core.log_events import LogEvents
from stratolog.ui.core.observed import IndexSample, Observed, RowCount, TimelineEvent
from stratolog.ui.core.verdict_book import VerdictBook
from stratolog.ui.core.words import Tone, count_of
from stratolog.ui.watching.polls import Polls
from transport.topics.topic_tail import TailStart, TopicTail, TopicUnavailable, records_of
from transport.waiting.deadline import Deadline

IDLE_S = 30.0
POLL_S = 0.5
NODES_EVERY_S = 1.0
FLEET_EVERY_S = 4.0
BUCKETS_EVERY_S = 20.0
RETRY_S = 2.0
CONTACT_S = 5.0
"""How long the brokers may take to say where a topic ends."""
MAX_BEHIND = 20_000
"""A reader of the log that is further behind its end skips records."""
JOIN_S = 10.0
TAILS = {OM_VERDICTS: 5_000, OM_STATS: 2_000, OM_LOG: 2_000}
"""How many records before its end a partition is read from."""
MAX_EVENTS = 400
MAX_SAMPLES = 120

Json = dict[str, Any]


def now_ms() -> int:
    """Return the time in ms since the epoch."""
    return time.time_ns() // 1_000_000


class _BrokersFound:
    """What the threads have found; guarded by the watch's lock."""

    def __init__(self) -> None:
        self.book = VerdictBook()
        self.windows = LatestWindows()
        self.reported_ms: Mapping[ReportedPartition, int] = {}
        self.nodes: dict[str, Json | None] = {}
        self.datanodes: list[Json] = []
        self.pipelines: list[Json] = []
        self.datanode_statuses: dict[str, Json | None] = {}
        self.buckets: tuple[list[Json], bool] = ([], False)
        self.waiting: dict[str, RowCount] = {}
        self.is_cut_off = False
        self.events: deque[TimelineEvent] = deque(maxlen=MAX_EVENTS)
        self.samples: deque[IndexSample] = deque(maxlen=MAX_SAMPLES)
        self.stopped: list[str] = []
        self.trouble: dict[str, str] = {}


class ClusterWatch:
    """Watches the cluster that ``settings_now`` returns the settings of (they change with the stack)."""

    def __init__(self, settings_now: Callable[[], Settings]) -> None:
        self._settings_now = settings_now
        self._settings = settings_now()
        self._lock = threading.Lock()
        self._found = _BrokersFound()
        self._looked_at_s = float("-inf")
        self._stop = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._works: dict[str, Callable[[], None]] = {
            "verdicts": lambda: self._tail(OM_VERDICTS, lambda: self._take_verdicts),
            "windows": lambda: self._tail(OM_STATS, lambda: self._take_windows),
            "log": lambda: self._tail(OM_LOG, self.log_taker),
            "nodes": self._ask,
        }

    @property
    def settings(self) -> Settings:
        """The settings as they were read last."""
        return self._settings

    def look(self) -> None:
        """Say that somebody looks; starts the threads if they do not run. May be called from any thread."""
        with self._lock:
            self._looked_at_s = time.monotonic()
            if self._stop.is_set():
                return
            if not any(thread.is_alive() for thread in self._threads.values()):
                self._found = _BrokersFound()
            # One by one: some may have ended just now, and others not yet.
            for name, work in self._works.items():
                if name not in self._threads or not self._threads[name].is_alive():
                    self._threads[name] = threading.Thread(target=work, name=f"ui-{name}", daemon=True)
                    self._threads[name].start()

    def is_awake(self) -> bool:
        """Whether somebody has looked lately."""
        return not self._stop.is_set() and time.monotonic() - self._looked_at_s < IDLE_S

    def close(self) -> None:
        """End the threads; waits for them up to JOIN_S."""
        self._stop.set()
        for thread in self._threads.values():
            thread.join(JOIN_S)

    def observed(self) -> Observed:
        """Return what was found last."""
        with self._lock:
            found = self._found
            return Observed(
                now_ms=now_ms(), cluster=self._settings.cluster, shards=self._settings.shards, nodes=dict(found.nodes),
                verdicts=list(found.book.latest), reported_ms=dict(found.reported_ms),
                windows=list(found.windows.windows.values()), datanodes=found.datanodes, pipelines=found.pipelines,
                datanode_statuses=dict(found.datanode_statuses), buckets=found.buckets[0],
                buckets_cut=found.buckets[1], waiting=found.waiting, is_cut_off=found.is_cut_off, events=[*found.events, *found.book.events],
                samples=list(found.samples), stopped=list(found.stopped), trouble=sorted(found.trouble.values()),
            )  # fmt: skip

    # -- topics --------------------------------------------------------------------------------------------------------

    def _tail(self, topic: str, taker: Callable[[], Callable[[list[Message]], None]]) -> None:
        while self.is_awake():
            servers = self._settings.connection
            start, deadline = TailStart(last_records=TAILS[topic]), Deadline.after_s(CONTACT_S)
            try:
                with TopicTail(servers, topic, start, deadline) as tail:
                    self._say(topic, None)
                    take = taker()
                    while self.is_awake() and servers == self._settings.connection:
                        if messages := tail.poll(POLL_S):
                            take(messages)
                        if topic == OM_LOG:
                            self._note_skipped(tail.skip_behind(MAX_BEHIND, TAILS[topic]))
            except TopicUnavailable as error:
                self._say(topic, str(error))
                self._stop.wait(RETRY_S)

    def _take_verdicts(self, messages: list[Message]) -> None:
        verdicts = list(records_of(Verdict, messages))
        with self._lock:
            self._found.book.take(verdicts)

    def _take_windows(self, messages: list[Message]) -> None:
        windows = list(records_of(WindowStats, messages))
        with self._lock:
            self._found.windows.take(windows)

    def log_taker(self) -> Callable[[list[Message]], None]:
        """Return what takes the log's records from one beginning on: whoever reads anew begins with an older term."""
        followers: dict[int, LogEvents] = {}
        return lambda messages: self._take_records(followers, messages)

    def _take_records(self, followers: dict[int, LogEvents], messages: list[Message]) -> None:
        events = []
        for message in messages:
            follower = followers.setdefault(message.partition() or 0, LogEvents(message.partition() or 0))
            events.append(follower.take(message.value() or b"", message.timestamp()[1]))
        with self._lock:
            self._found.events.extend(event for event in events if event is not None)

    def _note_skipped(self, left_out: Mapping[int, int]) -> None:
        for shard, records in left_out.items():
            text = f"the page has skipped {count_of(records, 'record')} of the log, to keep up"
            self._note(f"shard {shard}", text, Tone.STALE)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        polls, servers = Polls(), self._settings.connection
        times = ReportTimes(servers)
        turns = {"fleet": float("-inf"), "buckets": float("-inf")}
        try:
            while self.is_awake():
                if servers != self._settings.connection:  # the stack has started again on other ports
                    servers = self._settings.connection
                    times = ReportTimes(servers)
                self._stop.wait(self._ask_once(polls, times, turns))
        finally:
            polls.close()

    def _ask_once(self, polls: Polls, times: ReportTimes, turns: dict[str, float]) -> float:
        """Ask everything whose turn it is; return how long to wait in seconds."""
        begun_s = time.monotonic()
        self._reload()
        settings = self._settings
        statuses = polls.nodes(settings)
        self._take_statuses(statuses)
        living = [name for name, status in statuses.items() if status is not None]
        if begun_s - turns["fleet"] >= FLEET_EVERY_S:
            turns["fleet"] = begun_s
            self._try_brokers(broker_addresses(settings))
            self._ask_fleet(polls, settings, living)
            reported = times.newest_ms()
            with self._lock:
                self._found.reported_ms = dict(reported)
        if begun_s - turns["buckets"] >= BUCKETS_EVERY_S and living:
            turns["buckets"] = begun_s
            buckets, waiting = polls.buckets(settings, living), polls.waiting(settings, living)
            with self._lock:
                self._found.buckets, self._found.waiting = buckets, waiting
        return max(0.1, NODES_EVERY_S - (time.monotonic() - begun_s))

    def _reload(self) -> None:
        """Read settings and the stack's state anew: nodes are added, a stack starts again on other ports."""
        try:
            self._settings = self._settings_now()
            known = state.read_state(self._settings.data_dir)
        except UserError as error:
            self._say("settings", str(error))
            return
        self._say("settings", None)
        members = () if known is None else known.members
        with self._lock:
            self._found.stopped = [member.name for member in members if not member.process.is_running()]

    def _take_statuses(self, statuses: dict[str, Json | None]) -> None:
        newest: dict[int, int] = {}
        for view in (view for status in statuses.values() for view in views_in(status)):
            newest[view["shard"]] = max(int(view["applied_index"]), newest.get(view["shard"], 0))
        with self._lock:
            before, self._found.nodes = self._found.nodes, statuses
            if newest:
                self._found.samples.append(IndexSample(now_ms(), sum(newest.values())))
        for name, status in statuses.items():
            if name in before and (before[name] is None) != (status is None):
                text, tone = ("does not answer", Tone.BAD) if status is None else ("answers again", Tone.GOOD)
                self._note(name, text, tone)

    def _try_brokers(self, addresses: list[str]) -> None:
        """See whether a broker listens. Kafka's clients do not say when all are away: they try again in silence."""
        heard = listening(addresses)
        away = [address for address in addresses if address not in heard]
        self._say("brokers", f"no broker listens at {', '.join(away)}" if away else None)
        with self._lock:
            before, self._found.is_cut_off = self._found.is_cut_off, not heard
        if before != (not heard):
            self._note("brokers", "one answers again" if heard else "none answers", Tone.GOOD if heard else Tone.BAD)

    def _ask_fleet(self, polls: Polls, settings: Settings, living: list[str]) -> None:
        datanodes, pipelines = polls.fleet(settings, living)
        addresses = {one.name: f"{one.host}:{one.http_port}" for one in settings.datanodes}
        addresses |= {str(one["datanode"]): str(one["http_address"]) for one in datanodes if one["http_address"]}
        statuses = polls.datanodes(addresses)
        with self._lock:
            if living:
                self._found.datanodes, self._found.pipelines = datanodes, pipelines
            self._found.datanode_statuses = statuses

    # -- notes ---------------------------------------------------------------------------------------------------------

    def _note(self, where: str, text: str, tone: Tone) -> None:
        with self._lock:
            self._found.events.append(TimelineEvent(now_ms(), where, text, tone))

    def _say(self, source: str, trouble: str | None) -> None:
        with self._lock:
            if trouble is None:
                self._found.trouble.pop(source, None)
            else:
                self._found.trouble[source] = trouble
