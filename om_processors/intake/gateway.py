"""The gateway: from the bytes of a request to a proposal, an immediate refusal, or a rejection. Pure.

Nothing that depends on state is decided here: a proposal is answered from its batch. The gateway sorts out only what
nobody can execute. Bytes that are no request are rejected with the reason, as no caller can be answered. A request over
the size limit, and a privileged one without a proof of the cluster's secret, are answered at once; so is one that is
not signed as it should be, if requests are to be signed (``identities``). Only the gateway checks proofs and
signatures, before anything depends on the request. Where they are checked, nobody has more than a bounded number of
refusals written to another user's topic (``core/foreign_topics``).
"""

from __future__ import annotations

from collections.abc import Callable

from xxhash import xxh3_128_digest

from om_processors.execution.service import refusal_response
from om_processors.identity.identities import Denied, Identities
from om_processors.intake.core.foreign_topics import ForeignRefusals, may_name
from om_processors.intake.direct_calls import AnswerWay
from replicated_db.core.leading.leader import Proposal, Reply
from schemas import result_codes as codes
from schemas.access.signatures import Seal
from schemas.codecs.codec import Undecodable, UnknownSchema, decode_as
from schemas.privilege import PRIVILEGED, ClusterSecret, is_privileged
from schemas.records.identity import ProvenCaller
from schemas.records.log import RequestPosition
from schemas.records.messages import BATCH_BEGINNERS, SHARD_COMMANDS, CreateSnapshot, Rejected, Request
from schemas.records.record import record
from schemas.topics import MAX_REQUEST_BYTES

MAX_REJECTED_BYTES = 65_536
"""How many bytes of a rejected record are kept."""

# To look a class up is cheaper than to ask for an instance of one of so many.
_BATCH_BEGINNERS = frozenset(BATCH_BEGINNERS)
_SHARD_COMMANDS = frozenset(SHARD_COMMANDS)


@record
class Received:
    """A request in a record of ``om.requests``, or one of the direct door, which has a ``way`` back and no offset.

    ``position`` is set if a reader may resume behind the record once it has read this request. ``key`` is the record's,
    or came with the direct request: a privileged request's proof (``schemas.privilege``), or where its trace is
    (``schemas.trace_context``). Requests of an envelope have none. The requests of a signed record share its ``seal``.
    ``reply_topic`` is the one of the sender's user of the brokers, if the record names one.
    """

    offset: int
    value: bytes
    position: RequestPosition | None = None
    key: bytes | None = None
    reply_topic: str | None = None
    way: AnswerWay | None = None
    seal: Seal | None = None


def resume_offset(
    hint: RequestPosition | None, low: int, high: int, at: Callable[[int], bytes | None], since: Callable[[], int]
) -> int:
    """Return where a leader goes on reading requests; those there have the offsets from ``low`` to below ``high``.

    The leader goes on at its ``hint`` if the record before it is the one that the hint was made from (``at`` reads a
    value). Otherwise it goes on at the offset that ``since`` returns: the first record that has not expired, negative
    if there is none.
    """
    if hint is not None and low < hint.offset <= high:
        value = at(hint.offset - 1)
        if value is not None and xxh3_128_digest(value) == hint.hash:
            return hint.offset
    found = since()
    return max(low, min(found, high)) if found >= 0 else high


class Gateway:
    """Decodes and checks the requests of one shard."""

    def __init__(self, *, shard: int, node: str, secret: ClusterSecret, identities: Identities | None = None) -> None:
        """Without ``identities``, requests need not be signed, and signatures are not looked at (``auth = none``)."""
        self._identities = identities
        self._foreign = ForeignRefusals()
        self._shard = shard
        self._node = node
        self._secret = secret

    def admit(self, received: Received, now_ms: int) -> Proposal | Reply | Rejected | None:
        """Return the outcome of a record: a proposal, a reply that may leave at once, or a rejection.

        None: the request is refused, and its topic has had its share of refusals.
        """
        value = received.value
        if len(value) > MAX_REQUEST_BYTES:
            return self._oversize(received, now_ms)
        try:
            request = decode_as(Request, value)
        except Undecodable as error:
            return self.reject(received, error, now_ms)
        if self._identities is not None:
            return self._admit_signed(self._identities, request, received, now_ms)
        if type(request.body) in PRIVILEGED and not self._secret.proves(received.key, value):
            return self._unproven(request, received)
        return self._proposal(request, received)

    def _admit_signed(
        self, identities: Identities, request: Request, received: Received, now_ms: int
    ) -> Proposal | Reply | None:
        """Return what becomes of a request that must be signed, or be proved by the cluster's secret."""
        privileged = is_privileged(request.body)
        if privileged and self._secret.proves(received.key, received.value):
            return self._proposal(request, received)
        found = identities.of_request(received.seal, request)
        if isinstance(found, Denied):
            return self._bounded(self._refusal(request, received, found.status, found.message), received, now_ms)
        topic = received.reply_topic
        if topic is not None and not may_name(topic, request.caller, found):
            what = (
                f"responses to user {request.caller} do not go to {topic}: log in to the brokers as {request.caller}, or"
                " as a user of theirs with the name of one of its groups"
            )
            return self._bounded(self._refusal(request, received, codes.PERMISSION_DENIED, what), received, now_ms)
        if privileged and not found.administrator:
            what = (
                f"{type(request.body).__name__} is for members and administrators, and user {request.caller} is neither"
            )
            return self._refusal(request, received, codes.PERMISSION_DENIED, what)
        return self._proposal(request, received, found)

    def reject(self, received: Received, error: Undecodable, now_ms: int) -> Rejected:
        """Return the rejection of bytes that cannot be decoded."""
        reason = codes.UNKNOWN_SCHEMA if isinstance(error, UnknownSchema) else codes.UNDECODABLE
        return self._reject(received, reason, str(error), now_ms)

    def _proposal(self, request: Request, received: Received, standing: ProvenCaller | None = None) -> Proposal:
        kind = type(request.body)
        return Proposal(
            client_id=request.client_id,
            call_id=(request.call_id & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "big"),
            request_hash=xxh3_128_digest(received.value),
            first_sent_at_ms=request.first_sent_at_ms,
            request_type=kind.__name__,
            body=request,
            reply_to=request.reply_partition
            if received.reply_topic is None
            else (received.reply_topic, request.reply_partition),
            position=received.position,
            begins_batch=kind in _BATCH_BEGINNERS,
            judged_first=kind is CreateSnapshot,
            when_prepared=kind in _SHARD_COMMANDS,
            answered_below=request.answered_below,
            standing=standing,
        )

    def _refusal(self, request: Request, received: Received, status: str, message: str) -> Reply:
        response = refusal_response(request, self._shard, status, message)
        return Reply(proposal=self._proposal(request, received), response=response)

    def _bounded(self, refusal: Reply, received: Received, now_ms: int) -> Reply | None:
        """Return a refusal to somebody who may not be whose topic it is; None if that had enough of them."""
        topic = received.reply_topic
        return refusal if topic is None or self._foreign.may_write(topic, now_ms) else None

    def _unproven(self, request: Request, received: Received) -> Reply:
        what = "has no proof of" if received.key is None else "has a proof of another secret than"
        message = (
            f"{type(request.body).__name__} is for the cluster's members and operators, and the request {what} the "
            "cluster's secret: "
            "the sender needs the file that the setting 'cluster_secret_file' names"
        )
        return self._refusal(request, received, codes.PERMISSION_DENIED, message)

    def _oversize(self, received: Received, now_ms: int) -> Reply | Rejected | None:
        message = f"a request of {len(received.value)} bytes; at most {MAX_REQUEST_BYTES}"
        try:
            request = decode_as(Request, received.value)
        except Undecodable:
            return self._reject(received, codes.REQUEST_TOO_LARGE, message, now_ms)
        refusal = self._refusal(request, received, codes.REQUEST_TOO_LARGE, message)
        return refusal if self._identities is None else self._bounded(refusal, received, now_ms)

    def _reject(self, received: Received, reason: str, message: str, now_ms: int) -> Rejected:
        return Rejected(
            shard=self._shard, offset=received.offset, node=self._node, reason=reason, message=message,
            value=received.value[:MAX_REJECTED_BYTES], value_size_bytes=len(received.value), rejected_at_ms=now_ms,
        )  # fmt: skip
