"""Calls in flight: the client's core, without I/O, clock, randomness or threads (design, section 4).

What belongs here: which requests are unanswered, their bytes, when they are sent again, which response belongs to which
request, and a call's outcome. Times and jitter are arguments. The rules:

1. A call is numbered from 1 upwards and encoded once. Sending it again sends the same bytes.
2. The first final answer ends a call. Later answers, and answers to other clients, are ignored.
3. A retryable refusal (NOT_LEADER, PREPARED, OVERLOADED) ends nothing: the call is sent again after ``refusal_ms``,
   doubled for each refusal up to ``refusal_max_ms``, and never before the time that an OVERLOADED gives.
4. Silence ends nothing either: the call is sent again ``silence_ms`` after the last sending, doubled for each sending
   up to ``silence_max_ms``. Jitter stretches every wait but the first by up to a quarter.
   If the way to a shard's leader is lost, its calls are sent again at once.
5. At its deadline a call ends with *outcome unknown*, refused or not: a leader that reads the topic again may still
   execute a copy that another leader refused. The call is never sent again afterwards.
6. REQUEST_EXPIRED says how far the clock that stamped the request is from the shard's. If one copy was sent, there is
   no earlier effect: its retry row would have answered. A later one is possible only while the shard's time comes
   nearer to the stamp, so to a clock that is ahead, by less than SURELY_AHEAD_MS. All other calls know: nothing was
   done.
7. ``answered_below`` of a request is the lowest call in flight, itself included, so no call that may still be sent
   again is below it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from producers.errors import (
    DEADLINE_EXCEEDED,
    TOO_MANY_IN_FLIGHT,
    OutcomeUnknown,
    RequestFailed,
    StratologError,
    TooManyInFlight,
    error_of,
)
from schemas.codecs import codec
from schemas.privilege import ClusterSecret, is_privileged
from schemas.records.messages import Request, RequestBody, Response, shard_of_request
from schemas.records.record import made_in_c
from schemas.result_codes import (
    INVALID_REQUEST,
    OK,
    OVERLOADED,
    PERMISSION_DENIED,
    REQUEST_EXPIRED,
    REQUEST_TOO_LARGE,
    Remedy,
    clock_gap_ms,
    remedy,
    retry_after_ms,
)
from schemas.settings.table import CommandSettings
from schemas.topics import MAX_REQUEST_BYTES
from transport.waiting.core.backoff import Backoff

MAX_DEADLINE_MS = 5 * 60_000
"""After this time a leader answers REQUEST_EXPIRED, so a longer wait is useless."""
SURELY_AHEAD_MS = 15 * 60_000
"""A leader reads requests of the last ten minutes again, at most; five minutes more, and the stamp is out of reach."""
MAX_IN_FLIGHT = 10_000
"""Calls of one client that are on the way at once, unless it is made with another number."""
RESENDS_PER_STEP = 1000
"""Calls that are sent again in one step, at most; the others are due at the next step."""
JITTER_SHARE = 0.25
"""The largest share by which jitter stretches a wait."""

Outcome = Response | StratologError
"""The result of a call: the response with status OK, or the exception to raise."""
Done = Callable[[Outcome], None]
"""Called with a call's outcome, exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Time limits of calls, in ms.

    Raises ValueError for a value out of range, naming it.
    """

    deadline_ms: int = CommandSettings.request_timeout_ms
    max_in_flight: int = MAX_IN_FLIGHT
    silence_ms: int = 2_000
    silence_max_ms: int = 15_000
    refusal_ms: int = 50
    refusal_max_ms: int = 1_000
    overload_max_ms: int = 15_000

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.deadline_ms <= MAX_DEADLINE_MS:
            raise ValueError(f"deadline_ms must be in 1..{MAX_DEADLINE_MS}, not {self.deadline_ms}")
        if self.max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, not {self.max_in_flight}")
        if not 1 <= self.silence_ms <= self.silence_max_ms:
            raise ValueError(f"silence_ms must be in 1..{self.silence_max_ms}, not {self.silence_ms}")
        if not 1 <= self.refusal_ms <= self.refusal_max_ms:
            raise ValueError(f"refusal_ms must be in 1..{self.refusal_max_ms}, not {self.refusal_ms}")
        if self.overload_max_ms < 1:
            raise ValueError(f"overload_max_ms must be at least 1, not {self.overload_max_ms}")


@made_in_c
@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A request without a final answer. ``value`` is what is sent, each time."""

    call_id: int
    shard: int
    body: RequestBody
    value: bytes
    done: Done
    due_ms: float
    deadline_ms: float
    sendings: int = 1
    refusals: int = 0
    refusal: Response | None = None
    proof: bytes | None = None
    """For a privileged request: the proof that the sender has the cluster's secret."""
    trace_key: bytes | None = None
    """For a traced call: the key that says where its trace is (``schemas.trace_context``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStep:
    """What to do as time passes: calls to send again, and calls that ended at their deadline."""

    resend: list[Call]
    expired: list[Call]


class Calls:
    """The table of one client's calls in flight.

    ``shards`` is the number of partitions of ``om.requests``; ``jitter`` returns numbers in [0, 1). Operators' commands
    need the cluster's ``secret``, or an administrator's signature: whoever sends the calls ``signs`` their records.
    ``positions`` are known from before.

    >>> from schemas.records.messages import DeleteVolume
    >>> calls = Calls(bytes(16), caller="me", reply_partition=0, shards=1, policy=Policy(), jitter=lambda: 0.0)
    >>> call = calls.begin(DeleteVolume(volume="v1"), print, now_ms=0.0, wall_ms=1_700_000_000_000)
    >>> call.call_id, call.shard, len(calls)
    (1, 0, 1)
    """

    def __init__(
        self,
        client_id: bytes,
        *,
        caller: str,
        reply_partition: int,
        shards: int,
        policy: Policy,
        jitter: Callable[[], float],
        positions: dict[int, int] | None = None,
        secret: ClusterSecret | None = None,
        signs: bool = False,
    ) -> None:
        self.client_id = client_id
        self.policy = policy
        self.positions: dict[int, int] = {} if positions is None else positions
        """Highest index seen in an answer, by shard: the position for session-consistent reads."""
        self._caller = caller
        self._reply_partition = reply_partition
        self._shards = shards
        self._jitter = jitter
        self._refused_waits = Backoff(first_s=policy.refusal_ms / 1000, last_s=policy.refusal_max_ms / 1000)
        self._silent_waits = Backoff(first_s=policy.silence_ms / 1000, last_s=policy.silence_max_ms / 1000)
        self._secret = secret
        self._signs = signs
        self._calls: dict[int, Call] = {}
        self._again: set[int] = set()
        """Those of them that were refused or sent again; only the others are due in the order of the table."""
        self._next_id = 1
        self._lowest = 1

    def on_connected(self, shards: int, reply_partition: int) -> None:
        """Note how many shards there are, and which partition answers come to; before the first call."""
        self._shards, self._reply_partition = shards, reply_partition

    def __len__(self) -> int:
        """Return the number of calls in flight."""
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        """Iterate over the calls in flight, oldest first."""
        return iter(self._calls.values())

    @property
    def answered_below(self) -> int:
        """The lowest call in flight, or else the next one: no call below it will be sent again."""
        while self._lowest < self._next_id and self._lowest not in self._calls:
            self._lowest += 1
        return self._lowest

    def begin(
        self, body: RequestBody, done: Done, *, now_ms: float, wall_ms: int, trace_key: bytes | None = None
    ) -> Call:
        """Number and encode a request, and count it in flight; the caller must send its bytes now.

        ``now_ms`` is the time of any monotonic clock, ``wall_ms`` that of the wall clock. Raises TooManyInFlight if
        there is no room, RequestFailed (INVALID_REQUEST, REQUEST_TOO_LARGE, PERMISSION_DENIED) for a body that cannot
        be sent.
        """
        if len(self._calls) >= self.policy.max_in_flight:
            raise TooManyInFlight(
                TOO_MANY_IN_FLIGHT, f"{len(self._calls)} requests in flight are the limit", request=body
            )
        call_id = self._next_id
        value, shard = self._encode(body, call_id, wall_ms)
        policy = self.policy
        call = Call(
            call_id=call_id,
            shard=shard,
            body=body,
            value=value,
            done=done,
            due_ms=now_ms + min(policy.silence_ms, policy.deadline_ms),
            deadline_ms=now_ms + policy.deadline_ms,
            proof=self._proof(body, value),
            trace_key=trace_key,
        )
        self._next_id = call_id + 1
        self._calls[call_id] = call
        return call

    def _proof(self, body: RequestBody, value: bytes) -> bytes | None:
        if not is_privileged(body):
            return None
        if self._secret is None:
            if self._signs:  # an administrator's signature does, too
                return None
            message = (
                "it is for the cluster's members and operators: the client needs the cluster's secret (cluster_secret)"
            )
            raise RequestFailed(PERMISSION_DENIED, message, request=body)
        return self._secret.proof(value)

    def _encode(self, body: RequestBody, call_id: int, wall_ms: int) -> tuple[bytes, int]:
        request = Request(
            client_id=self.client_id,
            call_id=call_id,
            first_sent_at_ms=wall_ms,
            answered_below=self.answered_below,
            reply_partition=self._reply_partition,
            caller=self._caller,
            body=body,
        )
        try:
            shard = shard_of_request(body, self._shards)
            value = codec.encode(request)
        except (TypeError, ValueError, OverflowError, AttributeError, KeyError) as error:
            message = f"the schema does not allow this: {type(error).__name__}: {error}"
            raise RequestFailed(INVALID_REQUEST, message, request=body) from error
        if not 0 <= shard < self._shards:
            raise RequestFailed(INVALID_REQUEST, f"shard {shard} is not in 0..{self._shards - 1}", request=body)
        if len(value) > MAX_REQUEST_BYTES:
            message = f"{len(value)} bytes are over the limit of {MAX_REQUEST_BYTES}"
            raise RequestFailed(REQUEST_TOO_LARGE, message, request=body)
        return value, shard

    def on_response(self, response: Response, *, now_ms: float) -> Call | None:
        """Take a response; return the call that it ends, or None if it ends none (rules 2 and 3)."""
        if response.client_id != self.client_id:
            return None
        call = self._calls.get(response.call_id)
        if call is None:
            return None
        if response.status != OK and remedy(response.status) is Remedy.RETRY:
            self._refused(call, response, now_ms)
            return None
        self._end(call)
        if response.index > self.positions.get(response.shard, -1):
            self.positions[response.shard] = response.index
        return call

    def _end(self, call: Call) -> None:
        del self._calls[call.call_id]
        self._again.discard(call.call_id)

    def _refused(self, call: Call, response: Response, now_ms: float) -> None:
        policy = self.policy
        self._again.add(call.call_id)
        call.refusals += 1
        wait_ms = self._refused_waits.pause_ms(call.refusals)
        call.refusal = response
        if response.status == OVERLOADED:
            # A copy sent earlier, after silence or another refusal, would only lengthen the queue.
            wait_ms = max(wait_ms, min(retry_after_ms(response.message) or 0, policy.overload_max_ms))
            call.due_ms = min(now_ms + wait_ms * (1 + JITTER_SHARE * self._jitter()), call.deadline_ms)
            return
        # A refused copy does not delay the sending if an earlier refusal's wait is still running.
        wanted_ms = now_ms + wait_ms * (1 + JITTER_SHARE * self._jitter())
        call.due_ms = min(call.due_ms, wanted_ms, call.deadline_ms)

    def hasten(self, shards: Collection[int], *, now_ms: float) -> None:
        """Let all calls of these shards be due now: the way to their leader was lost, so no answer can come."""
        for call in self._calls.values():
            if call.shard in shards:
                self._again.add(call.call_id)
                call.due_ms = min(call.due_ms, now_ms)

    def step(self, *, now_ms: float) -> CallStep:
        """Return what is due. Each call to send again is counted as sent now; each expired call is removed."""
        resend: list[Call] = []
        expired: list[Call] = []
        others = len(self._again)
        for call in self._calls.values():
            is_first = call.call_id not in self._again
            others -= not is_first
            if call.due_ms > now_ms:
                if is_first and not others:
                    break  # None behind it is due.
                continue
            if now_ms >= call.deadline_ms:
                expired.append(call)
            elif len(resend) < RESENDS_PER_STEP:
                resend.append(call)
        for call in expired:
            self._end(call)
        for call in resend:
            self._resent(call, now_ms)
        return CallStep(resend=resend, expired=expired)

    def _resent(self, call: Call, now_ms: float) -> None:
        self._again.add(call.call_id)
        call.sendings += 1
        wait_ms = self._silent_waits.pause_ms(call.sendings)
        call.due_ms = min(now_ms + wait_ms * (1 + JITTER_SHARE * self._jitter()), call.deadline_ms)

    def abandon(self) -> list[Call]:
        """Forget all calls in flight and return them."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._again.clear()
        return calls


def outcome_of(call: Call, response: Response) -> Outcome:
    """Return the outcome that a final response stands for."""
    gap_ms = clock_gap_ms(response.message) if response.status == REQUEST_EXPIRED else None
    return error_of(response, call.body) or response if gap_ms is None else _clock_off(call, response, gap_ms)


def _clock_off(call: Call, response: Response, gap_ms: int) -> StratologError:
    """Return the outcome of a call whose stamp is ``gap_ms`` behind the shard's time (rule 6)."""
    side = f"{gap_ms / 1000:.0f} s behind" if gap_ms > 0 else f"{-gap_ms / 1000:.0f} s ahead of"
    what = f"this machine's clock is {side} the cluster's: set it right, to less than {MAX_DEADLINE_MS // 1000} s"
    if call.sendings == 1 and (gap_ms > 0 or -gap_ms >= SURELY_AHEAD_MS):
        return RequestFailed(response.status, f"{what}. Nothing was done", request=call.body, response=response)
    doubt = "nothing was done by this answer; another copy, or one that is read again, may still have an effect"
    return OutcomeUnknown(response.status, f"{what}; {doubt}", request=call.body, response=response)


def unknown(call: Call, status: str, message: str) -> OutcomeUnknown:
    """Return the outcome of a call without a final answer; ``message`` says why it waits no longer."""
    refused = f", last refused with {call.refusal.status}: {call.refusal.message}" if call.refusal else ""
    text = f"{message}; sent {call.sendings} times{refused}; the outcome is unknown"
    return OutcomeUnknown(status, text, request=call.body, response=call.refusal)


def expired(call: Call, policy: Policy) -> OutcomeUnknown:
    """Return the outcome of a call at its deadline."""
    return unknown(
        call, DEADLINE_EXCEEDED, f"no answer in {policy.deadline_ms} ms: no leader of shard {call.shard} answers"
    )
