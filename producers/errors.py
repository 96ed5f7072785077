"""Exceptions of the client SDK, one kind for each remedy (design, section 4; ``schemas/result_codes.py``).

What belongs here: the exception classes, and the one place where a response becomes an exception. The kinds:

========================  ==========================================================================
:class:`RetryableError`   nothing was done; the same call may be made again, later or elsewhere
:class:`RequestFailed`    the request, or the state that it met, is wrong; the same call fails again
:class:`OutcomeUnknown`   nobody can say whether the request had its effect: look before doing it again
:class:`ClientClosed`     the client was closed before the call; nothing was sent
========================  ==========================================================================

Three kinds of RequestFailed have classes of their own: :class:`NotFound` (codes ``*_NOT_FOUND``), :class:`Exists`
(codes ``*_ALREADY_EXISTS``), and :class:`InvalidArgument`, which is a ValueError too.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.records.messages import (
    FleetRequest,
    LeaderRequest,
    LogDigestBase,
    RemoveDatanode,
    RenameKey,
    RenameSnapshot,
    RequestBody,
    Response,
    SetDatanodeState,
    ShardCommand,
)
from schemas.result_codes import INVALID_REQUEST, OK, Remedy, remedy
from transport.datanodes.core import failures
from transport.datanodes.core.failures import DatanodeFailed

DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
"""Status of a call without a final answer by its deadline."""
CLIENT_CLOSED = "CLIENT_CLOSED"
"""Status of a call on a closed client, or of one that was unanswered when the client closed."""
TOO_MANY_IN_FLIGHT = "TOO_MANY_IN_FLIGHT"
"""Status of a call for which there was no room in the table of calls in flight."""
NOT_CONNECTED = "NOT_CONNECTED"
"""Status of a client that reaches no broker, or no node for reads."""

WRONG_PROCESS = "WRONG_PROCESS"
"""Status of a call on what only the process can use that made it, and that was forked since."""
WRITE_FAILED = "WRITE_FAILED"
"""Status of a call on a key whose writing was cancelled, or failed by something without a status."""

UNREACHABLE = failures.UNREACHABLE
"""Status of a DatanodeError: the connection could not be made, or broke."""
NAMED_UNANSWERED = 10
"""Unanswered requests that a message names, at most."""


class StratologError(Exception):
    """A call that did not succeed.

    ``status`` is a code of ``schemas/result_codes.py`` or one of this module. ``message`` says for people what was
    wrong, and names the input. ``request`` is the request's body if there was one, ``response`` the server's answer if
    there was one.

    >>> try:
    ...     raise RequestFailed("VOLUME_NOT_FOUND", "volume v1 does not exist")
    ... except StratologError as error:
    ...     print(error.status, "-", error)
    VOLUME_NOT_FOUND - VOLUME_NOT_FOUND: volume v1 does not exist
    """

    def __init__(
        self, status: str, message: str, *, request: RequestBody | None = None, response: Response | None = None
    ) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.request = request
        self.response = response

    def __str__(self) -> str:
        """Return status, request and message in one line."""
        what = "" if self.request is None else f"{describe(self.request)}: "
        return f"{self.status}: {what}{self.message}"


class RetryableError(StratologError):
    """Nothing was done; the same call may be made again, later or elsewhere."""


class TooManyInFlight(RetryableError):
    """The client has as many requests in flight as it may have; nothing was sent."""


class NotConnected(RetryableError):
    """No broker, or no node to read from, could be reached."""


class DatanodeError(DatanodeFailed, RetryableError):
    """A datanode refused, failed or could not be reached; the bytes to be written are not committed.

    >>> print(DatanodeError("DISK_FULL", "no space", datanode="dn2", doing="OPEN of block 1/2"))
    DISK_FULL: dn2: OPEN of block 1/2: no space
    """


class RequestFailed(StratologError):
    """The request, or the state that it met, is wrong; the same call fails again."""


class NotFound(RequestFailed):
    """What the request names does not exist: a volume, a bucket, a key, a snapshot, the session of an open
    key.

    >>> isinstance(failure("KEY_NOT_FOUND", "no key /v1/b1/'k'"), NotFound)
    True
    """


class Exists(RequestFailed):
    """The thing that the request would create, or the name that it would give, exists already.

    >>> isinstance(failure("BUCKET_ALREADY_EXISTS", "bucket /v1/b1 exists"), Exists)
    True
    """


class InvalidArgument(RequestFailed, ValueError):
    """An argument that no request can carry; nothing was sent. ``argument`` is its name.

    An argument of a wrong type is a TypeError, as everywhere in Python.

    >>> print(InvalidArgument("limit", "must be at least 1, not 0"))
    INVALID_REQUEST: limit must be at least 1, not 0
    """

    def __init__(self, argument: str, fault: str) -> None:
        super().__init__(INVALID_REQUEST, f"{argument} {fault}")
        self.argument = argument

    def __reduce__(self) -> tuple[type[InvalidArgument], tuple[str, str]]:
        """Copy and pickle the exception by its arguments."""
        return InvalidArgument, (self.argument, self.message.removeprefix(f"{self.argument} "))


class OutcomeUnknown(StratologError):
    """Nobody can say whether the request had its effect: look before doing it again."""


class ClientClosed(StratologError):
    """The client was closed before the call; nothing was sent."""


def wrong_process(what: str, process: int, here: int, instead: str) -> RequestFailed:
    """Return the exception for what process ``process`` has made and a forked one, ``here``, cannot go on with.

    >>> print(wrong_process("/v/b/k is being written", 7, 9, "open the key again"))
    WRONG_PROCESS: /v/b/k is being written by process 7, and this one, 9, was forked from it: open the key again
    """
    return RequestFailed(
        WRONG_PROCESS, f"{what} by process {process}, and this one, {here}, was forked from it: {instead}"
    )


def describe(body: RequestBody) -> str:
    """Name a request for people: its type and its path.

    >>> from schemas.records.messages import DeleteBucket
    >>> describe(DeleteBucket(volume="v1", bucket="b1"))
    'DeleteBucket /v1/b1'
    """
    kind = type(body).__name__
    if isinstance(body, LogDigestBase):
        return f"{kind} of shard {body.shard} at index {body.index}"
    if isinstance(body, ShardCommand | LeaderRequest):
        return f"{kind} of shard {body.shard}"
    if isinstance(body, FleetRequest):
        return f"{kind} {body.datanode if isinstance(body, SetDatanodeState | RemoveDatanode) else body.partition}"
    if isinstance(body, RenameKey):
        return f"{kind} /{body.volume}/{body.bucket}/{body.from_key} to {body.to_key}"
    if isinstance(body, RenameSnapshot):
        return f"{kind} /{body.volume}/{body.bucket}/{body.snapshot} to {body.to}"
    names = (getattr(body, field, None) for field in ("volume", "bucket", "key", "snapshot"))
    return f"{kind} /" + "/".join(str(name) for name in names if name is not None)


def error_of(response: Response, body: RequestBody) -> StratologError | None:
    """Return the exception for a response, None if the response is OK."""
    if response.status == OK:
        return None
    kinds = {Remedy.RETRY: RetryableError, Remedy.UNKNOWN: OutcomeUnknown}
    kind = kinds.get(remedy(response.status))
    if kind is None:
        return failure(response.status, response.message, request=body, response=response)
    return kind(response.status, response.message, request=body, response=response)


def failure(
    status: str, message: str, *, request: RequestBody | None = None, response: Response | None = None
) -> RequestFailed:
    """Return the exception for a code that blames the request: NotFound, Exists, or plain RequestFailed.

    Codes are recognized by their endings, so that codes of newer servers are recognized too.
    """
    kind = RequestFailed
    if status.endswith("_NOT_FOUND"):
        kind = NotFound
    elif status.endswith("_ALREADY_EXISTS"):
        kind = Exists
    return kind(status, message, request=request, response=response)


def closed_unanswered(unanswered: Iterable[RequestBody]) -> OutcomeUnknown:
    """Return the exception that names the requests without an answer when the client closed."""
    bodies = list(unanswered)
    names = ", ".join(describe(body) for body in bodies[:NAMED_UNANSWERED])
    more = "" if len(bodies) <= NAMED_UNANSWERED else ", …"
    return OutcomeUnknown(CLIENT_CLOSED, f"closed with {len(bodies)} requests unanswered: {names}{more}")
