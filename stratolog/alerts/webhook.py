"""A webhook that is told of alerts, in the form in which Prometheus' Alertmanager tells it (version 4).

Receivers for that form exist for most chats, pagers and ticket systems. What cannot be delivered is kept and sent
again, of each alert only its last change. A receiver may see a change twice: it has the fingerprint to know it by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import httpx
from xxhash import xxh3_64_hexdigest

from stratolog.alerts.core.alert_book import ACTION, FIRING, RESOLVED, SEVERITY, Alert, AlertSubject
from stratolog.errors import UsageError
from transport.waiting.core.backoff import Backoff
from transport.waiting.deadline import Deadline

TIMEOUT_S = 5.0
"""How long the receiver may be silent."""

MAX_PAUSE_S = 60.0
RETRY = Backoff(first_s=1.0, last_s=MAX_PAUSE_S)
"""Pause before a failed delivery is tried again."""

MAX_PENDING = 1_000
"""Alerts that wait for delivery; beyond it the oldest is dropped, and that is said."""

MAX_ALERTS = 100
"""Alerts of one delivery."""

VERSION = "4"


class Webhook:
    """Delivers alerts to one address; close it, or use it in a ``with`` block."""

    def __init__(self, url: str) -> None:
        """Raise UsageError if ``url`` is no address of a web server."""
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise UsageError(f"--webhook {url!r} is no address: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise UsageError(f"--webhook {url!r} is no address such as http://127.0.0.1:9000/alerts")
        self._url = parsed
        self._client = httpx.Client(timeout=TIMEOUT_S, follow_redirects=False)
        self._pending: dict[AlertSubject, Alert] = {}
        self._failures = 0
        self._pause = Deadline.after_s(0)
        self.dropped = 0

    @property
    def pending(self) -> int:
        """How many alerts wait for delivery."""
        return len(self._pending)

    def add(self, alerts: Iterable[Alert]) -> None:
        """Keep alerts until they are delivered."""
        for one in alerts:
            self._pending.pop(one.subject, None)
            self._pending[one.subject] = one
            while len(self._pending) > MAX_PENDING:
                self._pending.pop(next(iter(self._pending)))
                self.dropped += 1

    def deliver(self) -> str | None:
        """Deliver what waits, if it is time; return why that failed, None if nothing did."""
        while self._pending and self._pause.has_passed:
            batch = list(self._pending.values())[:MAX_ALERTS]
            why = self._post(body_of(batch))
            if why is not None:
                self._failures += 1
                self._pause = Deadline.after_s(RETRY.pause_s(self._failures))
                return why
            self._failures = 0
            for one in batch:
                del self._pending[one.subject]
        return None

    def _post(self, body: Mapping[str, Any]) -> str | None:
        try:
            # The answer's body is nobody's business, and may be endless.
            with self._client.stream("POST", self._url, json=body) as answer:
                status = answer.status_code
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return None if 200 <= status < 300 else f"it answers {status}"

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        """Return the webhook itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def body_of(alerts: Iterable[Alert]) -> dict[str, Any]:
    """Return the body that tells of alerts."""
    told = [_told(one) for one in alerts]
    is_firing = any(one["status"] == FIRING for one in told)
    return {
        "version": VERSION, "groupKey": "stratolog", "status": FIRING if is_firing else RESOLVED,
        "receiver": "stratolog", "truncatedAlerts": 0, "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {},
        "externalURL": "", "alerts": told,
    }  # fmt: skip


def _told(one: Alert) -> dict[str, Any]:
    subject = asdict_of(one.subject)
    return {
        "status": one.state,
        "labels": {"alertname": one.subject.name, "severity": SEVERITY[one.subject.name], **subject},
        "annotations": {"summary": one.summary, "action": ACTION[one.subject.name]},
        "startsAt": _time(one.began_ms),
        # Alertmanager writes the year 1 for an end that has not come.
        "endsAt": _time(one.ended_ms) if one.ended_ms else "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": xxh3_64_hexdigest("\0".join(one.subject).encode()),
    }


def asdict_of(subject: AlertSubject) -> dict[str, str]:
    """Return the labels of a subject that apply, but its name."""
    return {name: value for name, value in subject._asdict().items() if value and name != "name"}


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain(one: Alert) -> dict[str, Any]:
    """Return an alert as a command prints it."""
    return {"state": one.state, "summary": one.summary, "alert": one.subject.name, **asdict_of(one.subject)} | {
        name: value for name, value in asdict(one).items() if name.endswith("_ms")
    }
