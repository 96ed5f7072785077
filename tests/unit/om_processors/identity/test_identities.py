"""What a leader takes of signed requests, and what a node takes of signed reads, by the rows of a real replica of shard 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from om_processors.identity.identities import KNOWN_MS, Denied, Identities
from om_processors.identity.readers import MEMBER, ReaderGuard
from om_processors.intake.core.foreign_topics import MAX_REFUSALS_PER_S
from om_processors.intake.gateway import Gateway, Received
from om_processors.namespace.access import Caller
from om_processors.serving.snapshot_diff_api import OPEN_POSTS
from replicated_db.core.leading.leader import Proposal, Reply
from schemas.access.credentials import (
    AUDITOR,
    Credentials,
    TokenName,
    auditor_credentials,
    client_prefix,
    credentials_of,
    operator_credentials,
    parse_token,
)
from schemas.access.signatures import seal_of, sealed_key, user_authorization
from schemas.codecs.codec import decode_as, encode
from schemas.codecs.envelopes import enveloped_requests, requests_in
from schemas.door.frames import DOOR_PATH
from schemas.kafka.reply_keys import reply_key
from schemas.privilege import ClusterSecret
from schemas.records.identity import (
    CancelDelegationToken,
    CreateUser,
    GetDelegationToken,
    ProvenCaller,
    RemoveUser,
    RotateUser,
)
from schemas.records.messages import AddNode, CreateVolume, PurgeBlocks, Request, RequestBody, Response
from schemas.security.certificates import ADMINISTRATORS, READERS, PeerIdentity, Role
from schemas.topics import MAX_REQUEST_BYTES
from tests.support.local.secret import SECRET
from tests.support.om.late_world import LateWorld
from transport.web.http_guard import HttpGuard

BODY = CreateVolume(volume="vol1")
OTHER = ClusterSecret(b"the secret of some other cluster, or none")


class Site:
    """A node that demands signatures; its replica of shard 0 is a leader's, with real rows."""

    def __init__(self) -> None:
        self.world = LateWorld()
        self.identities = Identities(SECRET, lambda: self.world.leader_node.replica, self.world.clock)
        self.gateway = Gateway(shard=0, node="om1", secret=SECRET, identities=self.identities)
        self.ann = self.user("ann")

    def user(self, name: str, *, administrator: bool = False) -> Credentials:
        made = self.world.do(CreateUser(user=name, administrator=administrator, groups=["staff"]))
        assert made.status == "OK"
        return self.credentials(name, made.index)

    @staticmethod
    def credentials(name: str, generation: int, number: int = 0) -> Credentials:
        return credentials_of(SECRET, TokenName(user=name, generation=generation, number=number))

    def token(self, owner: Credentials) -> Credentials:
        standing = ProvenCaller(administrator=False, groups=[], generation=owner.name.generation, token=0)
        proposal = self.world.request(GetDelegationToken())
        proposal.body = replace(proposal.body, caller=owner.user)
        proposal.standing = standing
        self.world.submit(proposal)
        self.world.settle()
        answer = decode_as(Response, self.world.answers[int(proposal.reply_to)])
        assert answer.status == "OK"
        return owner.of_token(answer.index)

    def request(self, caller: str, body: RequestBody = BODY, **more: Any) -> Request:
        found: dict[str, Any] = {
            "client_id": client_prefix(caller) + bytes(10), "call_id": 1, "first_sent_at_ms": self.world.clock.now_ms,
            "answered_below": 0, "reply_partition": 0, "caller": caller, "body": body,
        }  # fmt: skip
        return Request(**(found | more))

    def admit(self, signer: Credentials | None, request: Request, *, key: bytes | None = None) -> Proposal | str:
        """Return the proposal, or the status of the refusal."""
        value = encode(request)
        given = sealed_key(signer, value) if signer is not None else key
        found = self.gateway.admit(Received(offset=0, value=value, key=given, seal=seal_of(given, value)), 0)
        if isinstance(found, Proposal):
            return found
        assert isinstance(found, Reply)
        response = decode_as(Response, found.response)
        assert response.index == -1, "nothing depends on it"
        return response.status

    def later(self, ms: int) -> None:
        self.world.clock.advance(ms)


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_signed_request_is_taken_with_what_is_known_of_its_user(site: Site):
    found = site.admit(site.ann, site.request("ann"))
    assert isinstance(found, Proposal)
    assert found.standing == ProvenCaller(
        administrator=False, groups=["staff"], generation=site.ann.name.generation, token=0
    )


def test_all_requests_of_an_envelope_share_its_signature(site: Site):
    values = [encode(site.request("ann", call_id=n)) for n in range(5)]
    (record,) = enveloped_requests(values)
    seal = seal_of(sealed_key(site.ann, record), record)
    found = [site.gateway.admit(Received(offset=0, value=one, seal=seal), 0) for one in requests_in(record)]
    assert all(isinstance(one, Proposal) for one in found)
    foreign = encode(site.request("bob"))
    (mixed,) = enveloped_requests([*values, foreign])
    seal = seal_of(sealed_key(site.ann, mixed), mixed)
    last = site.gateway.admit(Received(offset=0, value=foreign, seal=seal), 0)
    assert isinstance(last, Reply), "the signer of an envelope speaks for nobody else"


def test_who_does_not_sign_or_signs_wrongly_is_denied(site: Site):
    request = site.request("ann")
    value = encode(request)
    forged = Credentials(site.ann.token, bytes(32))
    stranger = credentials_of(OTHER, site.ann.name)
    for wrong in (None, b"", bytes(32), SECRET.proof(value), sealed_key(forged, value), sealed_key(stranger, value)):
        assert site.admit(None, request, key=wrong) == "PERMISSION_DENIED", wrong
    assert site.admit(None, request, key=sealed_key(site.ann, value + b"x")) == "PERMISSION_DENIED"


def test_the_caller_is_whom_the_signature_proves(site: Site):
    bob = site.user("bob")
    assert site.admit(site.ann, site.request("bob")) == "PERMISSION_DENIED"
    assert site.admit(site.ann, site.request("ann", client_id=client_prefix("bob") + bytes(10))) == "PERMISSION_DENIED"
    assert isinstance(site.admit(bob, site.request("bob")), Proposal)


def test_privileged_requests_are_for_members_and_administrators(site: Site):
    body = AddNode(shard=0, node="om4")
    request = site.request("ann", body)
    assert site.admit(site.ann, request) == "PERMISSION_DENIED"
    assert site.admit(None, request) == "PERMISSION_DENIED"
    member = site.admit(None, request, key=SECRET.proof(encode(request)))
    assert isinstance(member, Proposal)
    assert member.standing is None
    root = site.user("root", administrator=True)
    for signer in (root, operator_credentials(SECRET)):
        found = site.admit(signer, site.request(signer.user, body))
        assert isinstance(found, Proposal)
        assert found.standing.administrator


def test_a_removed_user_is_refused_soon_and_a_new_one_of_that_name_has_other_secrets(site: Site):
    assert isinstance(site.admit(site.ann, site.request("ann")), Proposal)
    site.world.do(RemoveUser(user="ann"))
    site.later(KNOWN_MS)
    assert site.admit(site.ann, site.request("ann")) == "PERMISSION_DENIED"
    again = site.user("ann")
    assert isinstance(site.admit(again, site.request("ann")), Proposal)
    assert site.admit(site.ann, site.request("ann")) == "PERMISSION_DENIED"


def test_under_rotation_nothing_is_refused_until_the_overlap_ends(site: Site):
    made = site.world.do(RotateUser(user="ann", overlap_ms=10_000))
    fresh = site.credentials("ann", made.index)
    site.later(KNOWN_MS)
    for signer in (site.ann, fresh):
        assert isinstance(site.admit(signer, site.request("ann")), Proposal)
    sent_before = site.request("ann")
    site.later(20_000)
    assert site.admit(site.ann, site.request("ann")) == "PERMISSION_DENIED"
    assert isinstance(site.admit(site.ann, sent_before), Proposal), "a retry is judged as its first sending was"
    assert isinstance(site.admit(fresh, site.request("ann")), Proposal)
    site.world.do(RotateUser(user="ann", overlap_ms=10_000))
    site.later(KNOWN_MS)
    assert site.admit(site.ann, sent_before) == "PERMISSION_DENIED"


def test_delegation_tokens_serve_until_they_expire_or_are_cancelled(site: Site):
    token = site.token(site.ann)
    found = site.admit(token, site.request("ann"))
    assert isinstance(found, Proposal)
    assert found.standing.token == token.name.number
    unknown = site.ann.of_token(site.ann.name.generation)
    assert site.admit(unknown, site.request("ann")) == "PERMISSION_DENIED"
    site.later(24 * 3600 * 1000 + 10_000)
    assert site.admit(token, site.request("ann")) == "PERMISSION_DENIED"
    assert isinstance(site.admit(site.ann, site.request("ann")), Proposal)


def test_a_cancelled_token_is_refused(site: Site):
    token = site.token(site.ann)
    assert isinstance(site.admit(token, site.request("ann")), Proposal)
    proposal = site.world.request(CancelDelegationToken(owner="ann", number=token.name.number))
    proposal.body = replace(proposal.body, caller="ann")
    proposal.standing = ProvenCaller(administrator=False, groups=[], generation=1, token=0)
    site.world.submit(proposal)
    site.world.settle()
    site.later(KNOWN_MS)
    assert site.admit(token, site.request("ann")) == "PERMISSION_DENIED"


def test_who_is_newer_than_this_replica_is_asked_to_come_again(site: Site):
    ahead = site.credentials("carl", site.world.leader.index + 5)
    assert site.admit(ahead, site.request("carl")) == "OVERLOADED"
    forged = Credentials(ahead.token, bytes(32))
    assert site.admit(forged, site.request("carl")) == "PERMISSION_DENIED", "a signature is compared first"


def test_a_flagged_or_closed_replica_is_not_believed(site: Site):
    replica = site.world.leader_node.replica
    replica.evidence = object()  # type: ignore[assignment]
    assert site.admit(site.ann, site.request("ann")) == "OVERLOADED"
    nobody = Gateway(shard=0, node="om1", secret=SECRET, identities=Identities(SECRET, lambda: None, site.world.clock))
    value = encode(site.request("ann"))
    found = nobody.admit(Received(offset=0, value=value, seal=seal_of(sealed_key(site.ann, value), value)), 0)
    assert isinstance(found, Reply)
    assert decode_as(Response, found.response).status == "OVERLOADED"


# ---- calls of HTTP


def judged(
    site: Site, authorization: str | None, *, method: str = "GET", path: str = "/v1/volumes", query: str = "?limit=1"
) -> Any:
    headers = {"Host": "om1:9871"} | ({} if authorization is None else {"Authorization": authorization})
    return guard_of(site).judge(method, path, path + query, headers)


def guard_of(site: Site) -> ReaderGuard:
    return ReaderGuard(SECRET, site.identities, HttpGuard(SECRET, (), OPEN_POSTS, secure=True, signed=True))


def signed(
    site: Site,
    who: Credentials,
    *,
    method: str = "GET",
    path: str = "/v1/volumes",
    query: str = "?limit=1",
    ahead_ms: int = 0,
) -> str:
    return user_authorization(who, method, "om1:9871", path + query, site.world.clock.now_ms + ahead_ms)


def test_a_signed_call_is_its_users(site: Site):
    token, reader = judged(site, signed(site, site.ann))
    assert token == site.ann.name
    assert reader == Caller(user="ann", administrator=False, groups=["staff"])
    assert judged(site, SECRET.authorization("GET", "om1:9871", "/v1/volumes?limit=1")) == (None, MEMBER)


def test_other_calls_are_denied(site: Site):
    other = credentials_of(OTHER, site.ann.name)
    for wrong in (
        None, "", "Bearer x", signed(site, other), signed(site, site.ann, query="?limit=2"), signed(site, site.ann, path="/v1/users"),
        signed(site, site.ann, method="POST"), signed(site, site.ann, ahead_ms=300_001), signed(site, site.ann, ahead_ms=-300_001),
        SECRET.authorization("GET", "om1:9871", "/v1/volumes"),
    ):  # fmt: skip
        assert isinstance(judged(site, wrong), Denied), wrong


def test_a_call_that_a_node_got_is_denied_by_every_other_node(site: Site):
    first = HttpGuard(SECRET, ("om1", "om2"), OPEN_POSTS, secure=True, signed=True, address="om2:9871")
    guard = ReaderGuard(SECRET, site.identities, first, secure=True)
    target = "/v1/volumes?limit=1"
    for host, is_ours in (("om2:9871", True), ("om1:9871", False), ("10.0.0.1:9871", False), ("localhost:9871", False)):
        for proof in (
            user_authorization(site.ann, "GET", host, target, site.world.clock.now_ms),
            SECRET.authorization("GET", host, target),
        ):
            headers = {"Host": host, "Authorization": proof}
            found = guard.judge("GET", "/v1/volumes", target, headers, None, ("10.0.0.2", 9871))
            assert isinstance(found, Denied) is not is_ours, host


@pytest.mark.parametrize(
    "path", ["/v1/users", "/v1/shards/0/rows", "/v1/shards/0/row", "/v1/shards/0/digest", "/v1/transfers/t/d", "/v1/shards/0/checkpoint",
             "/v1/unheard-of", "/", "/v1/volumesx", "/status/", "/v1/shards/0/read-index"],
)  # fmt: skip
def test_what_nobody_thought_of_is_for_members_and_administrators(site: Site, path: str):
    assert isinstance(judged(site, None, path=path, query=""), Denied)
    assert isinstance(judged(site, signed(site, site.ann, path=path, query=""), path=path, query=""), Denied)
    root = site.user("root", administrator=True)
    assert judged(site, signed(site, root, path=path, query=""), path=path, query="")[1].administrator
    assert judged(site, SECRET.authorization("GET", "om1:9871", path), path=path, query="") == (None, MEMBER)


def test_the_audit_reads_rows_and_may_do_nothing_else(site: Site):
    audit = auditor_credentials(SECRET)
    path = "/v1/shards/0/rows"
    found = judged(site, signed(site, audit, path=path), path=path)
    assert found == (audit.name, Caller(user=AUDITOR, administrator=False, groups=[]))
    other = auditor_credentials(OTHER)
    assert isinstance(judged(site, signed(site, other, path=path), path=path), Denied)
    for refused in (
        "/v1/volumes",
        "/v1/users",
        "/v1/tokens",
        "/v1/acl",
        "/v1/shards/0/row",
        "/v1/shards/0/digest",
        DOOR_PATH,
    ):
        assert isinstance(judged(site, signed(site, audit, path=refused), path=refused), Denied), refused
    posted = judged(site, signed(site, audit, method="POST", path=path), method="POST", path=path)
    assert isinstance(posted, Denied)
    assert site.admit(audit, site.request(AUDITOR)) == "PERMISSION_DENIED"
    with pytest.raises(ValueError, match="no token"):
        parse_token(f"{AUDITOR}:7")
    assert isinstance(site.identities.of_token(TokenName(user=AUDITOR, generation=0, number=5)), Denied)


CHANGES = [("POST", "/v1/shards/0/transfer"), ("POST", "/v1/shards/0/trim"), ("POST", "/v1/volumes/a"), ("DELETE", "/v1/volumes/a"),
           ("POST", "/v1/unheard-of"), ("PUT", "/status/x"), ("POST", "/v1/snapshot-diffs/7/cancel")]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_what_changes_something_is_for_administrators_however_they_prove_it(site: Site, method: str, path: str):
    def told(authorization: str | None, peer: PeerIdentity | None = None) -> Any:
        headers = {"Host": "om1:9871"} | ({} if authorization is None else {"Authorization": authorization})
        return guard_of(site).judge(method, path, path + "?node=om2", headers, peer)

    query = "?node=om2"
    root = site.user("root", administrator=True)
    by_root = signed(site, root, method=method, path=path, query=query)
    assert told(by_root)[1].administrator
    assert told(SECRET.authorization(method, "om1:9871", path + query)) == (None, MEMBER)
    by_ann = signed(site, site.ann, method=method, path=path, query=query)
    for wrong in (by_ann, None, "Stratolog-User x", signed(site, root, path=path, query=query),
                  signed(site, root, method=method, path=path, query="?node=om3")):  # fmt: skip
        assert isinstance(told(wrong), Denied), wrong
    # Who may read by a certificate may not change by it, whatever else is in the call.
    for role in Role:
        for authorization in (by_ann, None, "Stratolog-User x"):
            found = told(authorization, PeerIdentity(name="x", role=role))
            assert isinstance(found, Denied) == (role not in ADMINISTRATORS), (role, authorization)


def test_a_snapshot_diff_that_changes_nothing_is_for_users(site: Site):
    path = "/v1/volumes/v/buckets/b/snapshot-diffs"
    found = judged(site, signed(site, site.ann, method="POST", path=path), method="POST", path=path)
    assert found[0] == site.ann.name


def test_the_state_of_the_process_is_for_anybody(site: Site):
    for path in ("/health", "/status", "/metrics"):
        assert judged(site, None, path=path, query="") == (None, None)


def test_where_tls_is_spoken_the_state_of_the_process_is_for_those_who_are_known(site: Site):
    """A call with a header that a user might sign passes the first guard, so this one must look at it."""
    first = HttpGuard(SECRET, (), OPEN_POSTS, secure=True, signed=True)
    guard = ReaderGuard(SECRET, site.identities, first, secure=True)
    somebody = PeerIdentity(name="prometheus", role=Role.CLIENT)
    for path in ("/health", "/status", "/metrics"):
        for wrong in (None, "Stratolog-User x", f"Stratolog-User ann:1 0 {'0' * 64}", signed(site, site.ann)):
            headers = {"Host": "om1:9871"} | ({} if wrong is None else {"Authorization": wrong})
            assert isinstance(guard.judge("GET", path, path, headers), Denied), wrong
            assert guard.judge("GET", path, path, headers, somebody) == (None, None)
        own = {"Host": "om1:9871", "Authorization": signed(site, site.ann, path=path, query="")}
        found = guard.judge("GET", path, path, own)
        assert not isinstance(found, Denied)
        assert found[0] == site.ann.name


@pytest.mark.parametrize("role", Role)
def test_a_certificate_of_a_member_reads_and_that_of_a_client_says_nothing_of_its_user(site: Site, role: Role):
    guard = guard_of(site)
    peer = PeerIdentity(name="somebody", role=role)
    found = guard.judge("GET", "/v1/shards/0/rows", "/v1/shards/0/rows", {"Host": "om1:9871"}, peer)
    if role in (Role.CLIENT, Role.BROKER):
        assert isinstance(found, Denied)
    else:
        assert found == (None, MEMBER)
    headers = {"Host": "om1:9871", "Authorization": signed(site, site.ann)}
    whose = guard.judge("GET", "/v1/volumes", "/v1/volumes?limit=1", headers, peer)
    assert not isinstance(whose, Denied)
    assert whose[0] == (None if role in READERS else site.ann.name)


@pytest.mark.parametrize(
    "path", ["/v1/users", "/v1/shards/0/row", "/v1/shards/0/digest", "/v1/volumes", "/v1/transfers/1/2"]
)
def test_the_audits_certificate_reads_no_more_than_its_credentials(site: Site, path: str):
    peer = PeerIdentity(name="audit", role=Role.AUDIT)
    assert isinstance(guard_of(site).judge("GET", path, path, {"Host": "om1:9871"}, peer), Denied)
    posted = guard_of(site).judge("POST", "/v1/shards/0/rows", "/v1/shards/0/rows", {"Host": "om1:9871"}, peer)
    assert isinstance(posted, Denied)


def answered(site: Site, signer: Credentials | None, request: Request, topic: str, *, now_ms: int = 0) -> Any:
    """Return the outcome of a record that names a topic of responses."""
    value = encode(request)
    key = None if signer is None else sealed_key(signer, value, reply_key(topic))
    received = Received(offset=0, value=value, key=key, reply_topic=topic, seal=seal_of(key, value))
    return site.gateway.admit(received, now_ms)


def test_responses_go_to_the_callers_own_topic(site: Site):
    for topic in ("om.responses.ann", "om.responses.staff"):  # she is in the group
        found = answered(site, site.ann, site.request("ann"), topic)
        assert isinstance(found, Proposal)
        assert found.reply_to == (topic, 0)
    root = site.user("root", administrator=True)
    assert isinstance(answered(site, root, site.request("root"), "om.responses.ann"), Proposal)
    proven = site.request("om1", AddNode(shard=0, node="om4"))
    value = encode(proven)
    member = Received(offset=0, value=value, key=SECRET.proof(value), reply_topic="om.responses.ann")
    assert isinstance(site.gateway.admit(member, 0), Proposal)


def test_another_users_topic_has_some_refusals_and_nothing_else(site: Site):
    mallory, topic = site.user("mallory"), "om.responses.ann"
    found = [answered(site, mallory, site.request("mallory"), topic, now_ms=999) for _ in range(MAX_REFUSALS_PER_S - 1)]
    assert all(isinstance(one, Reply) for one in found)
    response = decode_as(Response, found[0].response)
    assert (response.status, response.index) == ("PERMISSION_DENIED", -1)
    assert "user mallory do not go to om.responses.ann: log in to the brokers as mallory" in response.message
    assert isinstance(answered(site, None, site.request("ann"), topic, now_ms=999), Reply), "one is left"
    large = site.request("ann", PurgeBlocks(shard=0, rows=[bytes(MAX_REQUEST_BYTES)]))
    for signer, request in ((mallory, site.request("mallory")), (None, site.request("ann")), (None, large)):
        assert answered(site, signer, request, topic, now_ms=999) is None
    assert isinstance(answered(site, site.ann, site.request("ann"), topic, now_ms=999), Proposal), "hers go on"
    assert isinstance(answered(site, None, large, topic, now_ms=1_000), Reply), "the next second has its own share"


def test_without_signatures_topics_are_whose_they_say(site: Site):
    value = encode(site.request("ann"))
    gateway = Gateway(shard=0, node="om1", secret=SECRET)
    found = gateway.admit(Received(offset=0, value=value, reply_topic="om.responses.bob"), 0)
    assert isinstance(found, Proposal)
