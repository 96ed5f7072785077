"""The client's engine: calls in flight, sent and answered by one thread of its own (design, section 4).

What belongs here: the lock, the thread, the clock and the randomness around the pure core (``calls``) and the
connection (``transport``). The rules:

1. One thread, the *poller*, takes replies, ends calls, and sends again what is due. Outcomes are delivered on it.
2. With few calls in flight, a request is sent by the thread that submits it, and the poller waits for single replies.
   With many, requests gather in the outbox, and the poller takes replies and sends the outbox once in
   :func:`linger_ms_of` ms. The poller publishes its pace under the lock before it waits, so a request that is left in
   the outbox is always picked up within that time.
3. There is always room for a call that the poller submits while it delivers an outcome: calls that it has ended keep
   their places until all of their outcomes are delivered. So the poller never waits for room.
4. Each outcome is delivered exactly once. If the poller fails, all calls end with *outcome unknown*.
5. A forked process begins anew (``transport.processes``): with an id of its own, and nothing in flight. Its first call
   connects it and starts its poller, within the call's deadline. Lookups find no door until then, and go over HTTP.
   Outcomes of calls that were in flight at the fork are delivered in the first process alone.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from producers.errors import (
    CLIENT_CLOSED,
    NOT_CONNECTED,
    TOO_MANY_IN_FLIGHT,
    ClientClosed,
    InvalidArgument,
    NotConnected,
    StratologError,
    TooManyInFlight,
)
from producers.requests import arguments
from producers.requests.call_spans import spans_of
from producers.requests.caller import default_caller
from producers.requests.core.calls import (
    MAX_DEADLINE_MS,
    Call,
    Calls,
    Done,
    Outcome,
    Policy,
    expired,
    outcome_of,
    unknown,
)
from producers.requests.core.one_cluster import OneCluster
from producers.requests.listed_page import ListedPage
from producers.requests.transport import Transport
from producers.waiting import SlowWait
from schemas.access.credentials import Credentials, client_prefix
from schemas.codecs import codec
from schemas.codecs.decimals import decimal_of
from schemas.codecs.envelopes import responses_in
from schemas.kafka.connection import Brokers, KafkaConnection, connection
from schemas.privilege import ClusterSecret
from schemas.records.door import DoorRead, DoorRows
from schemas.records.messages import RequestBody, Response
from schemas.security.tls import ProcessTls, TlsFiles, TlsUnusable
from schemas.sharding import shard_of
from schemas.topics import SILENT_BROKER_MS
from transport.processes import begins_anew_in_forks, this_process
from transport.waiting.deadline import Deadline

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

logger = logging.getLogger("stratolog.client")

CLIENT_ID_BYTES = 16
IDLE_WAIT_MS = 100
"""Longest wait for a reply if nothing gathers; bounds how long closing takes."""
STEP_MS = 25
"""Calls are checked for what is due at most this often."""
OUTBOX_CALLS = 500
"""An outbox of this length is sent at once, by the thread that filled it."""
LINGER_MS_PER_CALL = 0.0025
"""At 20,000 calls/s, gathering takes a twentieth of the time that a call takes anyway."""
MAX_LINGER_MS = 1_000
MIN_LINGER_MS = 0.5
"""A shorter time is not worth gathering for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """Settings of a client; times in ms. Raises ValueError for a value out of range, naming it.

    Requests go straight to the nodes at ``nodes`` (``host:port``), or through the brokers, or through the brokers where
    no node is reached.
    """

    bootstrap_servers: Brokers
    caller: str
    policy: Policy
    max_linger_ms: float = 10.0
    connect_timeout_ms: int = 15_000
    secret: ClusterSecret | None = None
    credentials: Credentials | None = None
    nodes: tuple[str, ...] = ()
    tracer: Tracer | None = None
    tls: ProcessTls | None = None
    """How nodes and datanodes are spoken with; None: in clear."""
    cluster: OneCluster = field(default_factory=OneCluster)
    """The cluster that the client's brokers and nodes name."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.bootstrap_servers and not self.nodes:
            raise ValueError("bootstrap_servers must name a broker, as in 127.0.0.1:9092")
        if not 0 <= self.max_linger_ms <= MAX_LINGER_MS:
            raise ValueError(f"max_linger_ms must be in 0..{MAX_LINGER_MS}, not {self.max_linger_ms}")
        if self.connect_timeout_ms < 1:
            raise ValueError(f"connect_timeout_ms must be at least 1, not {self.connect_timeout_ms}")


def make_settings(
    bootstrap_servers: Brokers,
    *,
    kafka: Mapping[str, object] | None = None,
    caller: str | None,
    deadline_ms: int,
    max_in_flight: int,
    max_linger_ms: float,
    connect_timeout_ms: int,
    cluster_secret: ClusterSecret | None = None,
    credentials: Credentials | None = None,
    nodes: Sequence[str] = (),
    tracer: Tracer | None = None,
    tls: TlsFiles | None = None,
) -> RequestSettings:
    """Return a client's settings; raises TypeError, ValueError.

    ``caller`` defaults to the user of the ``credentials``, or else to the name of the process's user.
    """
    signer = arguments.optional("credentials", credentials, Credentials)
    if signer is not None:
        if caller not in (None, signer.user):
            raise InvalidArgument("caller", f"must be {signer.user!r}, whose credentials these are, not {caller!r}")
        caller = signer.user
    doors = tuple(_door(one) for one in arguments.sequence("nodes", nodes, str, "str"))
    brokers = _brokers(bootstrap_servers, kafka)
    if not brokers and not doors:
        raise InvalidArgument("bootstrap_servers", "must name a broker, as in 127.0.0.1:9092 (or give nodes)")
    return RequestSettings(
        bootstrap_servers=brokers,
        caller=default_caller() if caller is None else arguments.text("caller", caller),
        policy=Policy(
            deadline_ms=arguments.number("deadline_ms", deadline_ms, 1, MAX_DEADLINE_MS),
            max_in_flight=arguments.number("max_in_flight", max_in_flight, 1),
        ),
        max_linger_ms=arguments.measure("max_linger_ms", max_linger_ms, 0, MAX_LINGER_MS),
        connect_timeout_ms=arguments.number("connect_timeout_ms", connect_timeout_ms, 1),
        secret=arguments.optional("cluster_secret", cluster_secret, ClusterSecret),
        credentials=signer,
        nodes=doors,
        tracer=_tracer(tracer),
        tls=_tls(tls, nodes),
    )


def _brokers(bootstrap_servers: Brokers, kafka: Mapping[str, object] | None) -> Brokers:
    """Return how the brokers are reached, "" if none are named; raises BadKafkaSetting for settings or their files."""
    named = isinstance(bootstrap_servers, KafkaConnection) or arguments.text("bootstrap_servers", bootstrap_servers)
    if isinstance(named, str) and not named.strip(" ,"):
        return ""
    found = connection(bootstrap_servers, kafka)
    found.check_files()
    return found if found.options else bootstrap_servers


def _tls(files: TlsFiles | None, given: Sequence[str]) -> ProcessTls | None:
    """Return how nodes are spoken with; raises InvalidArgument for files that cannot be used, and for plain nodes."""
    if arguments.optional("tls", files, TlsFiles) is None or files is None:
        return None
    if plain := [one for one in given if one.startswith("http://")]:
        raise InvalidArgument("nodes", f"must not be reached in clear, as 'tls' is given: {plain[0]!r}")
    try:
        return ProcessTls(files, logger.warning)
    except TlsUnusable as error:
        raise InvalidArgument("tls", f"cannot be used: {error}") from error


def _tracer(tracer: Tracer | None) -> Tracer | None:
    """Return a tracer of OpenTelemetry, which need not be installed; raises TypeError for anything else."""
    if tracer is not None and not callable(getattr(tracer, "start_span", None)):
        raise TypeError(f"tracer must be a tracer of OpenTelemetry, not {type(tracer).__name__}")
    return tracer


def _door(address: str) -> str:
    """Return a node's ``host:port``; a URL with http:// is taken, too."""
    place = address.removeprefix("http://").removeprefix("https://").rstrip("/")
    host, _, port = place.rpartition(":")
    if not host or not decimal_of(port, 65_535):
        raise InvalidArgument("nodes", f"must hold addresses of nodes, as in 127.0.0.1:9871, not {address!r}")
    return place


def linger_ms_of(in_flight: int, max_linger_ms: float) -> float:
    """Return how long to gather with ``in_flight`` calls in flight, in ms; 0 = not at all.

    >>> linger_ms_of(1, 10.0), linger_ms_of(1000, 10.0), linger_ms_of(10_000, 10.0)
    (0.0, 2.5, 10.0)
    """
    linger_ms = min(in_flight * LINGER_MS_PER_CALL, max_linger_ms)
    return linger_ms if linger_ms >= MIN_LINGER_MS else 0.0


class RequestConnection(Protocol):
    """The way to the leaders and back: :class:`producers.requests.transport.Transport`, or a twin in memory."""

    @property
    def shards(self) -> int:
        """The number of shards."""

    @property
    def reply_partition(self) -> int:
        """The partition of ``om.responses`` that requests name."""

    def send(self, calls: Iterable[Call]) -> None:
        """Send requests, in order; may lose some."""

    def receive(self, wait_ms: float, *, gather: bool) -> list[bytes]:
        """Return the records of replies to this client; waits ``wait_ms`` at most."""

    def serve(self) -> None:
        """Do the connection's regular work."""

    def look_up(self, read: DoorRead, shard: int) -> Future[DoorRows] | None:
        """Ask a node for rows; None if none is connected that could be asked."""

    def take_lost(self) -> set[int]:
        """Return the shards whose calls in flight can no more be answered, since this was last asked."""

    def renew(self) -> None:
        """Read replies some other way, after a long time without any."""

    def close(self) -> None:
        """Disconnect."""


Connect = Callable[[RequestSettings, bytes], RequestConnection]
"""Connects a client with these settings and this id; the client can receive replies when it returns."""


def connect_to_kafka(settings: RequestSettings, client_id: bytes) -> RequestConnection:
    """Connect to the brokers; raises NotConnected, also if they are not those that the client was connected to."""
    made = Transport(
        settings.bootstrap_servers,
        client_id,
        message_timeout_ms=settings.policy.silence_ms,
        connect_timeout_ms=settings.connect_timeout_ms,
        credentials=settings.credentials,
    )
    who = f"brokers {connection(settings.bootstrap_servers).servers}"
    if (fault := settings.cluster.fault_of("", who, made.brokers_id)) is not None:
        made.close()
        raise NotConnected(NOT_CONNECTED, fault)
    return made


def new_client_id(credentials: Credentials | None) -> bytes:
    """Return an id for a client; with credentials, one that nobody but their user may use."""
    own = b"" if credentials is None else client_prefix(credentials.user)
    return own + os.urandom(CLIENT_ID_BYTES - len(own))


class RequestEngine:
    """Submits requests and delivers their outcomes. The constructor connects and starts the poller.

    Raises NotConnected if no broker answers in ``settings.connect_timeout_ms``.
    """

    def __init__(self, settings: RequestSettings, *, connect: Connect = connect_to_kafka) -> None:
        self._settings = settings
        self._connect = connect
        self.tls = settings.tls
        self.spans = spans_of(settings.tracer)
        self.shards = 0
        """The number of shards of the cluster."""
        self._positions: dict[int, int] = {}
        self._closed: str | None = None
        self.begin_anew()
        self._open(settings)
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """Have nothing in flight and no connection, under a new id: rule 5."""
        settings = self._settings
        self.client_id = new_client_id(settings.credentials)
        self._transport: RequestConnection | None = None
        self._poller: threading.Thread | None = None
        self._calls = Calls(
            self.client_id,
            caller=settings.caller,
            reply_partition=0,
            shards=self.shards,
            policy=settings.policy,
            jitter=random.Random(self.client_id).random,
            positions=self._positions,
            secret=settings.secret,
            signs=settings.credentials is not None,
        )
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting = 0
        self._gathering = threading.local()
        self._outbox: list[Call] = []
        self._linger_ms = 0.0
        self._telling = 0
        self._stop = False
        self._next_step_ms = 0.0
        self._silent_ms = 0.0
        self._round_ms = _now_ms()
        self._patience = SlowWait("what is asked of the Object Manager")

    def _open(self, settings: RequestSettings) -> RequestConnection:
        """Connect, and start the poller; raises NotConnected."""
        connection = self._connect(settings, self.client_id)
        self.shards = connection.shards
        self._calls.on_connected(self.shards, connection.reply_partition)
        self._poller = threading.Thread(target=self._run, args=(connection,), name="stratolog-client", daemon=True)
        self._transport = connection
        try:
            self._poller.start()
        except BaseException:  # no thread is to be had
            self._transport = None
            connection.close()
            raise
        return connection

    def _opened(self) -> RequestConnection:
        """Return the connection; a forked process is connected here. Raises NotConnected, ClientClosed."""
        if (found := self._transport) is not None:
            return found
        deadline = Deadline.after_ms(self._settings.policy.deadline_ms)
        if not self._opening.acquire(timeout=deadline.left_s):
            raise NotConnected(NOT_CONNECTED, f"process {this_process()} is still being connected")
        try:
            if self._closed is not None:
                raise ClientClosed(CLIENT_CLOSED, self._closed)
            limit_ms = max(min(self._settings.connect_timeout_ms, int(deadline.left_ms)), 1)
            return self._transport or self._open(replace(self._settings, connect_timeout_ms=limit_ms))
        finally:
            self._opening.release()

    @property
    def cluster(self) -> OneCluster:
        """The cluster that the client's brokers and nodes name."""
        return self._settings.cluster

    @property
    def credentials(self) -> Credentials | None:
        """What requests are signed with; None: they are not."""
        return self._settings.credentials

    @property
    def in_flight(self) -> int:
        """The number of calls without an outcome."""
        return len(self._calls)

    def positions(self) -> dict[int, int]:
        """Return the highest index that an answer carried, by shard."""
        with self._lock:
            return dict(self._calls.positions)

    def look_up(
        self, volume: str, bucket: str, keys: Sequence[str], consistency: str, *, with_bytes: bool = False,
        page: ListedPage | None = None,
    ) -> Future[DoorRows] | None:  # fmt: skip
        """Ask a node straight for keys of one bucket, or for a page of them; None if no node is connected.

        With ``with_bytes`` the bytes of inline keys come, too.
        """
        shard = shard_of(volume, self.shards)
        index = self.positions().get(shard, 0) if consistency == "session" else 0
        read = DoorRead(
            consistency=consistency, index=index, volume=volume, bucket=bucket, keys=list(keys), with_bytes=with_bytes
        )
        if page is not None:
            read = replace(read, limit=page.limit, prefix=page.prefix, start_after=page.start_after)
        return None if self._transport is None else self._transport.look_up(read, shard)

    def submit(self, body: RequestBody, done: Done) -> None:
        """Send a request; ``done`` is called with its outcome on the poller, so it must be quick and must not block.

        Waits for room if as many calls are in flight as are allowed; raises TooManyInFlight if there is none within
        the deadline, or at once on the poller itself. Raises RequestFailed for a body that cannot be sent,
        ClientClosed on a closed client.
        """
        span = self.spans.call(body)
        if span is None:
            self._submit(body, done, None)
            return
        try:
            self._submit(body, span.before(done), span.key)
        except StratologError as error:
            span.end(error)
            raise

    def _submit(self, body: RequestBody, done: Done, trace_key: bytes | None) -> None:
        begun_ms = _now_ms() if self._transport is None else None
        self._opened()
        on_poller = threading.current_thread() is self._poller
        gathers = getattr(self._gathering, "on", False)
        with self._lock:
            if not on_poller:
                self._wait_for_room(body, wait=not gathers)
            if self._closed is not None:
                raise ClientClosed(CLIENT_CLOSED, self._closed, request=body)
            call = self._calls.begin(
                body, done, now_ms=begun_ms or _now_ms(), wall_ms=time.time_ns() // 1_000_000, trace_key=trace_key
            )
            self._outbox.append(call)
            send = not (on_poller or gathers) and (self._linger_ms == 0.0 or len(self._outbox) >= OUTBOX_CALLS)
        if send:
            self._send_outbox()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Have the requests that this thread submits in the block leave together, at its end.

        A request for which there is no room is refused at once with TooManyInFlight: those before it have not left yet.
        """
        outer = getattr(self._gathering, "on", False)
        self._gathering.on = True
        try:
            yield
        finally:
            self._gathering.on = outer
            if not outer:
                self._send_outbox()

    def _wait_for_room(self, body: RequestBody, *, wait: bool) -> None:
        policy = self._settings.policy
        if len(self._calls) + self._telling < policy.max_in_flight:
            return
        self._waiting += 1
        wait_ms = policy.deadline_ms if wait else 0
        try:
            free = self._room.wait_for(self._has_room_or_is_closed, wait_ms / 1000)
        finally:
            self._waiting -= 1
        if not free:
            message = f"{policy.max_in_flight} requests in flight are the limit; none ended in {wait_ms} ms"
            raise TooManyInFlight(TOO_MANY_IN_FLIGHT, message, request=body)

    def _has_room_or_is_closed(self) -> bool:
        return len(self._calls) + self._telling < self._settings.policy.max_in_flight or self._closed is not None

    def _send_outbox(self) -> None:
        # The second lock keeps the order when two threads send at the same time.
        with self._send_lock:
            with self._lock:
                calls, self._outbox = self._outbox, []
            if calls:
                self._opened().send(calls)

    def check_may_close(self) -> None:
        """Raise RuntimeError on the poller: a callback cannot wait for itself."""
        if threading.current_thread() is self._poller:
            raise RuntimeError("a client cannot be closed from the callback of one of its calls")

    def close(
        self, deadline: Deadline, is_own: Callable[[RequestBody], bool] = lambda _: False
    ) -> list[RequestBody]:  # fmt: skip
        """Refuse new calls, wait for those in flight, stop; return what is unanswered at the deadline.

        Those that are the client's ``own`` are not waited for. The outcome of the unanswered calls is OutcomeUnknown.
        Closing again returns an empty list.
        """
        self.check_may_close()
        with self._lock:
            if self._closed is None:
                self._closed = "the client is closed"
            self._waiting += 1
            self._room.wait_for(
                lambda: self._stop or (not self._telling and all(is_own(call.body) for call in self._calls)),
                deadline.left_s,
            )
            self._waiting -= 1
            self._stop = True
            self._room.notify_all()
        if self._poller is not None:
            self._poller.join()
        return self._abandon("the client was closed before an answer came")

    def _abandon(self, reason: str) -> list[RequestBody]:
        with self._lock:
            calls = self._calls.abandon()
            self._outbox = []
        for call in calls:
            _tell(call, unknown(call, CLIENT_CLOSED, reason))
        return [call.body for call in calls]

    def _run(self, transport: RequestConnection) -> None:
        """Run the poller."""
        try:
            while not self._stop and self._transport is transport:
                self._round(transport)
        except Exception as error:
            if self._transport is not transport:
                return  # a callback has forked, and this is what the new process has of the poller
            logger.exception("the client's poller failed")
            with self._lock:
                self._closed = f"the client failed: {type(error).__name__}: {error}"
                self._stop = True
                self._room.notify_all()
            self._abandon(self._closed)
        finally:
            if self._transport is transport:
                transport.close()

    def _round(self, transport: RequestConnection) -> None:
        with self._lock:
            in_flight = len(self._calls)
            linger_ms = linger_ms_of(in_flight, self._settings.max_linger_ms)
            self._linger_ms = linger_ms
            left_over = bool(self._outbox)
        if left_over:
            self._send_outbox()
        values = transport.receive(linger_ms or IDLE_WAIT_MS, gather=linger_ms > 0.0)
        now_ms = _now_ms()
        # Only time with a call in flight counts. It is silence too when calls expire one by one, each before the limit.
        self._silent_ms = 0.0 if values else self._silent_ms + (now_ms - self._round_ms if in_flight else 0.0)
        self._round_ms = now_ms
        if values or not in_flight:
            self._patience.begin()
        else:
            self._patience.still("no leader answers")
        if self._silent_ms > SILENT_BROKER_MS:
            self._silent_ms = 0.0
            transport.renew()
        if values:
            self._take(values, now_ms)
        if self._transport is not transport:
            return  # a callback has forked
        if lost := transport.take_lost():
            with self._lock:
                self._calls.hasten(lost, now_ms=now_ms)
            self._next_step_ms = now_ms
        if now_ms >= self._next_step_ms:
            self._next_step_ms = now_ms + STEP_MS
            transport.serve()
            self._step(now_ms)

    def _take(self, values: list[bytes], now_ms: float) -> None:
        responses = _decoded(values)
        answer = self._calls.on_response
        with self._lock:
            ended = [(call, r) for r in responses if (call := answer(r, now_ms=now_ms)) is not None]
            self._telling = len(ended)
        for call, response in ended:
            _tell(call, outcome_of(call, response))
        self._told()

    def _step(self, now_ms: float) -> None:
        with self._lock:
            step = self._calls.step(now_ms=now_ms)
            self._telling = len(step.expired)
            self._outbox.extend(step.resend)
        for call in step.expired:
            _tell(call, expired(call, self._settings.policy))
        self._told()

    def _told(self) -> None:
        with self._lock:
            self._telling = 0
            if self._waiting:
                self._room.notify_all()


def _now_ms() -> float:
    return time.monotonic_ns() / 1e6


def _decoded(values: list[bytes]) -> list[Response]:
    responses = []
    for value in values:
        try:
            found = responses_in(value)
        except codec.Undecodable as error:
            logger.error("a record of replies cannot be read: %s", error)
            continue
        for response in found:
            try:
                responses.append(codec.decode_as(Response, response))
            except codec.Undecodable as error:
                # Nobody can say which call it answers. That call is sent again, and ends at its deadline at the latest.
                logger.error("a reply cannot be read: %s", error)
    return responses


def _tell(call: Call, outcome: Outcome) -> None:
    try:
        call.done(outcome)
    except Exception:
        # As concurrent.futures does: one caller's faulty callback must not end the other callers' calls.
        logger.exception("the callback of a call raised")
