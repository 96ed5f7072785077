"""What errors say for people, which kind a code is, and how a request is named in them."""

from __future__ import annotations

import copy
import pickle

import pytest

from producers.errors import (
    NAMED_UNANSWERED,
    DatanodeError,
    Exists,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    RequestFailed,
    RetryableError,
    closed_unanswered,
    describe,
    error_of,
    failure,
)
from schemas.records.messages import (
    CreateSnapshot,
    CreateVolume,
    DeleteKey,
    ExpireOpenKeys,
    LogDigestBase,
    RemoveDatanode,
    RenameKey,
    RenameSnapshot,
    RequestBody,
    Response,
    RetirePipeline,
    SetDatanodeState,
)

BODY = CreateVolume(volume="v")


def answer(status: str) -> Response:
    return Response(client_id=b"c", call_id=1, shard=0, index=7, status=status, message="why", result=None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (BODY, "CreateVolume /v"),
        (DeleteKey(volume="v", bucket="b", key="a/k"), "DeleteKey /v/b/a/k"),
        (CreateSnapshot(volume="v", bucket="b", snapshot="s"), "CreateSnapshot /v/b/s"),
        (RenameKey(volume="v", bucket="b", from_key="k", to_key="l"), "RenameKey /v/b/k to l"),
        (RenameSnapshot(volume="v", bucket="b", snapshot="s", to="t"), "RenameSnapshot /v/b/s to t"),
        (LogDigestBase(shard=3, index=9, slots=[], sums=[], basis=""), "LogDigestBase of shard 3 at index 9"),
        (ExpireOpenKeys(shard=3, modified_before_ms=1, rows=[]), "ExpireOpenKeys of shard 3"),
    ],
)
def test_a_request_is_named_by_its_type_and_its_path(body: RequestBody, said: str) -> None:
    assert describe(body) == said


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("NOT_LEADER", RetryableError), ("OVERLOADED", RetryableError), ("KEY_NOT_FOUND", NotFound),
        ("THING_OF_LATER_NOT_FOUND", NotFound), ("VOLUME_ALREADY_EXISTS", Exists), ("QUOTA_EXCEEDED", RequestFailed),
    ],
)  # fmt: skip
def test_a_refusal_becomes_an_error_of_its_kind_with_request_and_answer(status: str, kind: type) -> None:
    error = error_of(refused := answer(status), BODY)
    assert type(error) is kind
    assert error is not None
    assert (error.status, error.message, error.request, error.response) == (status, "why", BODY, refused)
    assert str(error) == f"{status}: CreateVolume /v: why"


def test_an_answer_that_is_ok_is_no_error() -> None:
    assert error_of(answer("OK"), BODY) is None


def test_a_code_alone_is_an_error_without_a_request() -> None:
    assert str(failure("KEY_NOT_FOUND", "key 'k'")) == "KEY_NOT_FOUND: key 'k'"
    assert failure("KEY_NOT_FOUND", "key 'k'").request is None


def test_an_error_of_a_datanode_names_what_is_known() -> None:
    assert str(DatanodeError("TIMED_OUT", "no answer")) == "TIMED_OUT: no answer"
    assert str(DatanodeError("TIMED_OUT", "no answer", datanode="dn1")) == "TIMED_OUT: dn1: no answer"
    full = DatanodeError("TIMED_OUT", "no answer", datanode="dn1", doing="OPEN", offset=7, hint="dn2")
    assert str(full) == "TIMED_OUT: dn1: OPEN: no answer"
    assert (full.offset, full.hint) == (7, "dn2")
    assert (DatanodeError("TIMED_OUT", "").offset, DatanodeError("TIMED_OUT", "").hint) == (0, "")


def test_an_error_about_an_argument_survives_a_process_boundary() -> None:
    error = InvalidArgument("limit", "must be at least 1, not 0")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (other.argument, str(other)) == ("limit", "INVALID_REQUEST: limit must be at least 1, not 0")
    assert isinstance(error, ValueError)


def test_what_was_unanswered_at_the_end_is_counted_and_the_first_are_named() -> None:
    bodies = [CreateVolume(volume=f"v{number}") for number in range(NAMED_UNANSWERED + 1)]
    error = closed_unanswered(bodies[:-1])
    names = ", ".join(f"CreateVolume /v{number}" for number in range(NAMED_UNANSWERED))
    assert isinstance(error, OutcomeUnknown)
    assert str(error) == f"CLIENT_CLOSED: closed with {NAMED_UNANSWERED} requests unanswered: {names}"
    more = f"CLIENT_CLOSED: closed with {NAMED_UNANSWERED + 1} requests unanswered: {names}, …"
    assert str(closed_unanswered(iter(bodies))) == more


def test_requests_about_datanodes_name_them() -> None:
    assert describe(SetDatanodeState(datanode="dn1", state="DECOMMISSIONING")) == "SetDatanodeState dn1"
    assert describe(RemoveDatanode(datanode="dn1")) == "RemoveDatanode dn1"
    assert describe(RetirePipeline(partition=3, reason="", generation=2)) == "RetirePipeline 3"
