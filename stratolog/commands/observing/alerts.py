"""``stratolog alerts``: watch the audit's verdicts, and tell a webhook what is wrong and when it is over."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from spark_streaming.records.core.freshness import SILENCE_MS, ReportedPartition, behind_partitions
from spark_streaming.records.report_times import ReportTimes
from stratolog.alerts.core.alert_book import Alert, AlertBook
from stratolog.alerts.webhook import Webhook, plain
from stratolog.cluster.reach import broker_addresses, check_brokers, listening
from stratolog.cluster.verdicts import VerdictReader
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, notes, print_json, progress
from stratolog.configuration.settings import Settings
from stratolog.errors import EXIT_FAILED
from transport.waiting.deadline import Deadline

QUIET_S = 2.0
"""The past is read when no verdict has come for so long, or one that is younger than the command."""

PAST_S = 60.0
"""The past is read no longer: a day of verdicts takes a few seconds, and what is left is read meanwhile."""

LOOK_S = 5.0
"""How often the brokers' addresses are tried."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("alerts")(command)


def command(
    context: typer.Context,
    *,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Tell this address, in the form of Alertmanager's webhooks.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Tell what is wrong now, and end: exit status 1 if anything is.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch the audit's verdicts: tell when a replica diverges or cannot be judged, and when the audit or Kafka is
    silent.

    Each alert is printed when it begins and when it ends, and sent to the webhook, again and again until that takes it.
    A new start tells what stands once more. It runs until it is interrupted.
    """
    settings = connected_settings_of(context)
    hook = Webhook(webhook) if webhook is not None else None
    try:
        check_brokers(settings)
        with VerdictReader(settings.connection) as reader:
            watch = AlertWatch(settings, reader, hook, once=once, as_json=as_json)
            with progress(as_json) as report:
                report("reading the verdicts that the topic holds")
                watch.read_past()
            watch.tell()
            while not once:
                watch.turn()
            if hook is not None and hook.pending:
                notes.print(f"{hook.pending} alerts could not be delivered", markup=False, highlight=False)
            if watch.book.standing:
                raise typer.Exit(EXIT_FAILED)
    except KeyboardInterrupt:
        return
    finally:
        if hook is not None:
            hook.close()


class AlertWatch:
    """Reads verdicts, keeps the book of alerts, tells what changes."""

    def __init__(
        self, settings: Settings, reader: VerdictReader, hook: Webhook | None, *, once: bool, as_json: bool
    ) -> None:  # fmt: skip
        self.book = AlertBook()
        self._settings = settings
        self._reader = reader
        self._hook = hook
        self._once = once
        self._as_json = as_json
        self._times = ReportTimes(settings.connection)
        self._began_ms = _now_ms()
        self._next_look = Deadline.after_s(0)
        self._dead: Sequence[str] = ()
        self._said: str | None = None

    def read_past(self) -> None:
        """Take the verdicts that the topic holds."""
        deadline = Deadline.after_s(PAST_S)
        while not deadline.has_passed:
            verdicts = self._reader.poll(QUIET_S)
            self.book.take(verdicts)
            if not verdicts or max(one.decided_at_ms for one in verdicts) >= self._began_ms:
                return

    def turn(self) -> None:
        """Take new verdicts, and tell what has changed."""
        self.book.take(self._reader.poll(0.5))
        self.tell()

    def tell(self) -> None:
        """Tell what has changed, and again what could not be delivered."""
        now_ms = _now_ms()
        self._look()
        changes = self.book.changes(self._silent_ms(now_ms), now_ms, dead_brokers=self._dead)
        for one in changes:
            self._print(one)
        if self._hook is None:
            return
        self._hook.add(changes)
        why = self._hook.deliver()
        if why is not None and why != self._said:
            notes.print(f"the webhook is not told: {why}; tried again", markup=False, highlight=False, soft_wrap=True)
        self._said = why if self._hook.pending else None

    def _look(self) -> None:
        if self._next_look.has_passed:
            addresses = broker_addresses(self._settings)
            self._dead = () if listening(addresses) else addresses
            self._next_look = Deadline.after_s(LOOK_S)

    def _silent_ms(self, now_ms: int) -> dict[ReportedPartition, int]:
        """Return the partitions that nobody judges, among them those that nobody has ever judged."""
        reported_ms = self._times.newest_ms()
        verdicts = self.book.verdicts
        found = behind_partitions(verdicts, reported_ms)
        judged = {ReportedPartition(one.log, one.shard) for one in verdicts}
        for partition, last_ms in reported_ms.items():
            # An audit that has just been started may judge them yet; who asks once cannot wait for that.
            silence_ms = max(0, min(now_ms, last_ms) - self._began_ms)
            if partition not in judged and (self._once or silence_ms >= SILENCE_MS):
                found[partition] = silence_ms
        return found

    def _print(self, one: Alert) -> None:
        if self._as_json:
            print_json(plain(one))
        else:
            console.print(f"{one.state}: {one.summary}", markup=False, highlight=False, soft_wrap=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
