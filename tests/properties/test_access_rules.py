"""Rights, said a second time: whether a request is denied is what plain sets of rights say, for any owners and lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from om_processors.errors import OMError
from om_processors.namespace.access import ACCESS_RULES
from schemas.records import identity as i
from schemas.records import messages as m
from schemas.records.identity import ProvenCaller
from schemas.records.rows import Acl
from tests.support.om.om_world import World

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
READ, WRITE, CREATE, DELETE, WRITE_ACL = 1, 2, 4, 16, 64
PEOPLE = ("ann", "ben", "cyd")
GROUPS = {"ann": ["red"], "ben": ["red", "blue"], "cyd": []}
OWNERS = st.sampled_from([*PEOPLE, "zoe", "zoe", "zoe"])
ACL = st.builds(
    lambda who, rights, scope: Acl(type=who[0], name=who[1], rights=rights, scope=scope),
    st.sampled_from([("USER", "ann"), ("USER", "ben"), ("GROUP", "red"), ("GROUP", "blue"), ("WORLD", "")]),
    st.sampled_from([0, READ, WRITE, CREATE, DELETE, READ | WRITE, CREATE | READ, WRITE_ACL, 127, 127]),
    st.sampled_from(["ACCESS", "ACCESS", "ACCESS", "DEFAULT"]),
)
LISTS = st.lists(ACL, max_size=4, unique_by=lambda acl: (acl.type, acl.name, acl.scope))
REQUESTS: list[tuple[m.RequestBody, str, int, int]] = [
    (m.PutKey(**PLACE, key="a/new", data=b"x"), "key", CREATE, CREATE),
    (m.PutKey(**PLACE, key="a/k", data=b"x"), "key", WRITE, WRITE),
    (m.CreateKey(**PLACE, key="a/k", size=0), "key", WRITE, WRITE),
    (m.DeleteKey(**PLACE, key="a/k"), "key", DELETE, WRITE),
    (i.ChangeAcl(kind="KEY", **PLACE, name="a/k", change="SET", acls=[]), "key", WRITE_ACL, READ),
    (i.ChangeAcl(kind="BUCKET", **PLACE, name="", change="SET", acls=[]), "bucket", WRITE_ACL, 0),
    (m.SetBucketProperty(**PLACE, quota_in_bytes=10**9), "owner", 0, 0),
    (m.SetBucketProperty(**PLACE, quota_in_namespace=9, owner="cyd"), "owner", 0, 0),
    (m.ReserveBlocks(**PLACE, count=1), "bucket", CREATE, 0),
    (m.SetBucketProperty(**PLACE, owner="cyd"), "bucket", WRITE_ACL, 0),
    (m.CreateBucket(volume="vol1", bucket="bucket2"), "volume", CREATE, 0),
    (i.ChangeAcl(kind="VOLUME", volume="vol1", bucket="", name="", change="SET", acls=[]), "volume", WRITE_ACL, 0),
    (m.CreateSnapshot(**PLACE, snapshot="snap1"), "owner", 0, 0),
    (m.CreateVolume(volume="vol2"), "administrator", 0, 0),
    (i.CreateUser(user="dan"), "administrator", 0, 0),
]


def commit_reserved(key: str) -> Callable[[m.KeySession], m.CommitReserved]:
    """Return what commits a key with the first block of a reservation."""
    return lambda given: m.CommitReserved(
        **PLACE, key=key, session_id=given.session_id, size=1, blocks=[replace(given.blocks[0], length=1)]
    )


def release(given: m.KeySession) -> m.ReleaseBlocks:
    return m.ReleaseBlocks(**PLACE, session_id=given.session_id)


Reserved = tuple[Callable[[m.KeySession], m.RequestBody], str, int, int]
OF_OWN_RESERVATION: list[Reserved] = [
    (commit_reserved("a/new"), "key", CREATE, CREATE),
    (commit_reserved("a/k"), "key", WRITE, WRITE),
    (release, "caller", 0, 0),
]
OF_ANOTHERS_RESERVATION: list[Reserved] = [
    (commit_reserved("a/new"), "owner", 0, 0),
    (commit_reserved("a/k"), "owner", 0, 0),
    (release, "owner", 0, 0),
]


def rights(acls: list[Acl], who: str) -> set[int]:
    """Return the rights that a list gives."""
    mine = [
        acl
        for acl in acls
        if acl.scope == "ACCESS"
        and (acl.type, acl.name) in {("USER", who), ("WORLD", ""), *(("GROUP", g) for g in GROUPS[who])}
    ]
    if any(acl.type == "USER" and acl.rights == 0 for acl in mine):
        return set()
    return {1 << bit for acl in mine for bit in range(7) if acl.rights >> bit & 1}


def expected(
    who: str, owners: dict[str, str], lists: dict[str, list[Acl]], what: str, right: int, in_bucket: int
) -> bool:
    on_volume = owners["volume"] == who
    if what in ("administrator", "caller"):
        return what == "caller"
    if what == "volume":
        return on_volume or right in rights(lists["volume"], who)
    on_bucket = on_volume or owners["bucket"] == who
    if what == "owner" or on_bucket:
        return on_bucket
    if READ not in rights(lists["volume"], who):
        return False
    on_the_bucket = rights(lists["bucket"], who)
    if what == "bucket":
        return right in on_the_bucket
    if in_bucket not in on_the_bucket or (lists["prefix"] and in_bucket not in rights(lists["prefix"], who)):
        return False
    return right == CREATE or owners["key"] == who or right in rights(lists["key"], who)


class Judged:
    """A world with these owners and lists; ``given`` is a reservation by ``reserved_by``."""

    def __init__(self, owners: dict[str, str], lists: dict[str, list[Acl]], reserved_by: str = "zoe") -> None:
        self.owners, self.lists = owners, lists
        self.world = world = World(authorizer=ACCESS_RULES)
        world.do(m.CreateVolume(volume="vol1", owner=owners["volume"]))
        world.do(m.CreateBucket(**PLACE, owner=owners["bucket"]))
        world.do(m.PutKey(**PLACE, key="a/k", data=b"x"), owners["key"])
        self.given = world.session(m.ReserveBlocks(**PLACE, count=2), reserved_by)
        for kind, name in (("VOLUME", ""), ("BUCKET", ""), ("KEY", "a/k"), ("PREFIX", "a/")):
            bucket = "" if kind == "VOLUME" else "bucket1"
            world.do(
                i.ChangeAcl(kind=kind, volume="vol1", bucket=bucket, name=name, change="SET", acls=lists[kind.lower()])
            )

    def assert_denied_or_not(self, who: str, body: m.RequestBody, what: str, right: int, in_bucket: int) -> None:
        before = self.world.tables.rows()
        self.world.standing = ProvenCaller(administrator=False, groups=GROUPS[who], generation=1, token=0)
        try:
            self.world.do(body, who)
            status = "OK"
        except OMError as error:
            status = error.status
        allowed = expected(who, self.owners, self.lists, what, right, in_bucket)
        assert status == ("OK" if allowed else "PERMISSION_DENIED")
        assert allowed or self.world.tables.rows() == before


ANY_OWNERS = st.fixed_dictionaries({"volume": OWNERS, "bucket": OWNERS, "key": OWNERS})
ANY_LISTS = st.fixed_dictionaries({"volume": LISTS, "bucket": LISTS, "key": LISTS, "prefix": LISTS})


@settings(max_examples=400, deadline=None)
@given(who=st.sampled_from(PEOPLE), owners=ANY_OWNERS, lists=ANY_LISTS, request=st.sampled_from(REQUESTS))
def test_what_is_denied_is_what_the_lists_say(
    who: str, owners: dict[str, str], lists: dict[str, list[Acl]], request: tuple[Any, ...]
):
    Judged(owners, lists).assert_denied_or_not(who, *request)


@settings(max_examples=200, deadline=None)
@given(who=st.sampled_from(PEOPLE), owners=ANY_OWNERS, lists=ANY_LISTS, request=st.sampled_from(OF_OWN_RESERVATION))
def test_who_has_reserved_blocks_needs_the_rights_of_the_key(
    who: str, owners: dict[str, str], lists: dict[str, list[Acl]], request: Reserved
):
    make, what, right, in_bucket = request
    judged = Judged(owners, lists, who)
    judged.assert_denied_or_not(who, make(judged.given), what, right, in_bucket)


@settings(max_examples=200, deadline=None)
@given(
    who=st.sampled_from(PEOPLE), owners=ANY_OWNERS, lists=ANY_LISTS, request=st.sampled_from(OF_ANOTHERS_RESERVATION)
)
def test_anothers_reservation_is_for_the_owners_of_its_bucket(
    who: str, owners: dict[str, str], lists: dict[str, list[Acl]], request: Reserved
):
    make, what, right, in_bucket = request
    judged = Judged(owners, lists)
    judged.assert_denied_or_not(who, make(judged.given), what, right, in_bucket)
