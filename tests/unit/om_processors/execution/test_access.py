"""Who may do what: every request type, for owners, administrators and others."""

from __future__ import annotations

from typing import Any

import pytest

from om_processors.doors.door_lookups import found_rows
from om_processors.errors import OMError
from om_processors.namespace import access, prefixes, tables, users
from om_processors.namespace.access import ACCESS_RULES, AclPlace, Caller
from schemas.access.acl import LIST, READ, READ_ACL, acl_text, parse_acl
from schemas.column_families import IDENTITY_TABLE, PREFIX_TABLE
from schemas.features import ACCESS_CONTROL, SMALL_OBJECTS
from schemas.records import identity as i
from schemas.records import messages as m
from schemas.records.door import DoorRead
from schemas.records.identity import ProvenCaller
from tests.support.om.om_world import World

PLACE: dict[str, Any] = {"volume": "vol1", "bucket": "bucket1"}
USER = ProvenCaller(administrator=False, groups=["staff"], generation=3, token=0)
ADMINISTRATOR = ProvenCaller(administrator=True, groups=[], generation=4, token=0)


class Judged(World):
    """A world where requests are signed: by administrators, and by users in the group ``staff``."""

    def __init__(self) -> None:
        super().__init__(authorizer=ACCESS_RULES)
        self.standing = ADMINISTRATOR
        self.make()
        self.do(m.SetVolumeProperty(volume="vol1", owner="vera"))
        self.do(m.SetBucketProperty(**PLACE, owner="bert"))
        self.do(m.PutKey(**PLACE, key="k", data=b"x"))

    def by(self, caller: str, body: m.RequestBody) -> str:
        """Return the status of a user's request."""
        self.standing = USER
        try:
            self.do(body, caller)
        except OMError as error:
            return error.status
        finally:
            self.standing = ADMINISTRATOR
        return "OK"

    def allow(self, acl: str, kind: str = "BUCKET", name: str = "", change: str = "ADD") -> None:
        bucket = "" if kind == "VOLUME" else "bucket1"
        self.do(i.ChangeAcl(kind=kind, volume="vol1", bucket=bucket, name=name, change=change, acls=[parse_acl(acl)]))


@pytest.fixture
def world() -> Judged:
    return Judged()


SESSION = 0
OF_BUCKET: list[m.RequestBody] = [
    m.SetBucketProperty(**PLACE, quota_in_bytes=10**9), m.CreateKey(**PLACE, key="new", size=0), m.PutKey(**PLACE, key="k", data=b"y"),
    m.RenameKey(**PLACE, from_key="k", to_key="l"), m.DeleteKey(**PLACE, key="l"), m.CreateSnapshot(**PLACE, snapshot="snap1"),
    m.RenameSnapshot(**PLACE, snapshot="snap1", to="snap2"), m.SetSnapshotProperty(**PLACE, snapshot="snap2", properties={"a": "b"}),
    m.DeleteSnapshot(**PLACE, snapshot="snap2"),
    i.ChangeAcl(kind="BUCKET", **PLACE, name="", change="ADD", acls=[parse_acl("world::r")]),
]  # fmt: skip
FOR_ADMINISTRATORS: list[m.RequestBody] = [
    m.CreateVolume(volume="vol2"), i.CreateUser(user="mallory"), i.RotateUser(user="mallory", overlap_ms=0), i.RemoveUser(user="mallory"),
    m.CreatePipeline(partition=0, members=[]), m.PurgeBlocks(shard=0, rows=[b"r"]), m.SetDatanodeState(datanode="dn", state="IN_SERVICE"),
    m.RetirePipeline(partition=0, reason=""), m.RemoveDatanode(datanode="dn"),
]  # fmt: skip


@pytest.mark.parametrize("body", OF_BUCKET, ids=lambda body: type(body).__name__)
def test_by_default_everything_is_denied_and_owners_may_all(body: m.RequestBody):
    for owner in ("bert", "vera"):
        world = Judged()
        for one in OF_BUCKET:
            assert world.by("eve", one) in ("PERMISSION_DENIED", "FILE_NOT_FOUND"), one
            assert world.by(owner, one) == "OK", one
            if one is body:
                break


@pytest.mark.parametrize("body", FOR_ADMINISTRATORS, ids=lambda body: type(body).__name__)
def test_what_is_for_administrators(world: Judged, body: m.RequestBody):
    before = world.tables.rows()
    for user in ("eve", "vera", "bert"):
        assert world.by(user, body) in ("PERMISSION_DENIED", "INVALID_REQUEST")
        assert world.tables.rows() == before


def test_volumes_are_their_owners(world: Judged):
    assert world.by("bert", m.CreateBucket(volume="vol1", bucket="bucket2")) == "PERMISSION_DENIED"
    assert world.by("vera", m.CreateBucket(volume="vol1", bucket="bucket2", owner="bert")) == "OK"
    world.allow("user:eve:c", kind="VOLUME")
    assert world.by("eve", m.CreateBucket(volume="vol1", bucket="bucket3", owner="bert")) == "PERMISSION_DENIED"
    assert world.by("eve", m.CreateBucket(volume="vol1", bucket="bucket3")) == "OK"
    assert world.by("eve", m.DeleteBucket(volume="vol1", bucket="bucket3")) == "OK"
    assert world.by("eve", m.SetVolumeProperty(volume="vol1", owner="eve")) == "PERMISSION_DENIED"
    assert world.by("eve", m.DeleteVolume(volume="vol1")) == "PERMISSION_DENIED"


def test_rights_on_a_bucket_need_the_volume(world: Judged):
    world.allow("user:eve:rwcld")
    assert world.by("eve", m.CreateKey(**PLACE, key="n", size=0)) == "PERMISSION_DENIED"
    world.allow("world::r", kind="VOLUME")
    assert world.by("eve", m.CreateKey(**PLACE, key="n", size=0)) == "OK"
    assert world.by("mallory", m.CreateKey(**PLACE, key="n", size=0)) == "PERMISSION_DENIED"


def test_a_key_of_another_needs_a_right_of_its_own(world: Judged):
    world.allow("world::r", kind="VOLUME")
    world.allow("user:eve:rwcl")
    assert world.by("eve", m.PutKey(**PLACE, key="k", data=b"eve")) == "PERMISSION_DENIED", (
        "it exists, and is another's"
    )
    assert world.by("eve", m.PutKey(**PLACE, key="own", data=b"eve")) == "OK"
    assert world.by("eve", m.PutKey(**PLACE, key="own", data=b"again")) == "OK"
    assert world.by("eve", m.DeleteKey(**PLACE, key="own")) == "OK"
    world.allow("group:staff:w", kind="KEY", name="k")
    assert world.by("eve", m.PutKey(**PLACE, key="k", data=b"eve")) == "OK"
    assert world.by("eve", m.DeleteKey(**PLACE, key="k")) == "PERMISSION_DENIED"
    info = tables.get_key(world.tables, tables.key_key("vol1", "bucket1", "k"))
    assert info is not None
    assert [acl_text(acl) for acl in info.acls] == ["group:staff:w[ACCESS]"], "who writes a key anew leaves its list"


def test_who_may_write_keys_does_not_lift_the_quotas(world: Judged):
    world.allow("world::r", kind="VOLUME")
    world.allow("user:eve:rwcldxy")
    world.do(m.SetBucketProperty(**PLACE, quota_in_bytes=100, quota_in_namespace=5))
    lifted = m.SetBucketProperty(**PLACE, quota_in_bytes=-1), m.SetBucketProperty(**PLACE, quota_in_namespace=-1)
    for body in (*lifted, m.SetBucketProperty(**PLACE, owner="eve", quota_in_bytes=-1)):
        assert world.by("eve", body) == "PERMISSION_DENIED"
    assert world.by("eve", m.PutKey(**PLACE, key="n", data=b"x" * 200)) == "QUOTA_EXCEEDED"
    assert [world.by(who, body) for who, body in zip(("vera", "bert"), lifted, strict=True)] == ["OK", "OK"]
    assert world.by("eve", m.SetBucketProperty(**PLACE, owner="eve")) == "OK", (
        "WRITE_ACL gives the bucket away, as in Ozone"
    )


def test_a_volumes_quota_needs_write_and_its_owner_write_acl(world: Judged):
    quota, owner = (
        m.SetVolumeProperty(volume="vol1", quota_in_bytes=-1),
        m.SetVolumeProperty(volume="vol1", owner="eve"),
    )
    world.allow("user:eve:rcld", kind="VOLUME")
    assert [world.by("eve", body) for body in (quota, owner)] == ["PERMISSION_DENIED"] * 2
    world.allow("user:eve:w", kind="VOLUME")
    assert [world.by("eve", body) for body in (quota, owner)] == ["OK", "PERMISSION_DENIED"]
    world.allow("user:eve:y", kind="VOLUME")
    assert world.by("eve", owner) == "OK"


def test_a_session_is_its_users(world: Judged):
    world.allow("world::r", kind="VOLUME")
    world.allow("world::cw")
    world.standing = USER
    session = world.session(m.CreateKey(**PLACE, key="n", size=0), "eve")
    commit = m.CommitKey(**PLACE, key="n", session_id=session.session_id, size=0)
    block = m.AllocateBlock(**PLACE, key="n", session_id=session.session_id)
    assert [world.by("mallory", body) for body in (block, commit)] == ["PERMISSION_DENIED"] * 2
    world.allow("world::c", change="REMOVE")
    assert world.by("eve", commit) == "PERMISSION_DENIED", "the right was taken away meanwhile"
    world.allow("world::c")
    assert world.by("eve", commit) == "OK"


def test_defaults_are_inherited_at_creation(world: Judged):
    world.allow("user:eve:r[DEFAULT]", kind="VOLUME")
    assert world.by("vera", m.CreateBucket(volume="vol1", bucket="bucket2")) == "OK"
    made = tables.require_bucket(world.tables, "vol1", "bucket2")
    assert [acl_text(acl) for acl in made.acls] == ["user:eve:r[ACCESS]", "user:eve:r[DEFAULT]"]
    assert world.by("vera", m.PutKey(volume="vol1", bucket="bucket2", key="k", data=b"x")) == "OK"
    key = tables.get_key(world.tables, tables.key_key("vol1", "bucket2", "k"))
    assert key is not None
    assert [acl_text(acl) for acl in key.acls] == ["user:eve:r[ACCESS]"]


def test_a_prefix_restricts_and_hands_down(world: Judged):
    world.allow("world::r", kind="VOLUME")
    world.allow("world::cw")
    world.allow("user:ann:c", kind="PREFIX", name="a/")
    world.allow("user:ann:r[DEFAULT]", kind="PREFIX", name="a/")
    assert tables.require_bucket(world.tables, "vol1", "bucket1").prefixes == 1
    assert world.by("eve", m.PutKey(**PLACE, key="a/b/c", data=b"x")) == "PERMISSION_DENIED"
    assert world.by("eve", m.PutKey(**PLACE, key="ab", data=b"x")) == "OK"
    assert world.by("ann", m.PutKey(**PLACE, key="a/b/c", data=b"x")) == "OK"
    key = tables.get_key(world.tables, tables.key_key("vol1", "bucket1", "a/b/c"))
    assert key is not None
    assert [acl_text(acl) for acl in key.acls] == ["user:ann:r[ACCESS]"]
    world.allow("user:eve:c", kind="PREFIX", name="a/b/")
    assert world.by("eve", m.PutKey(**PLACE, key="a/b/d", data=b"x")) == "OK", "the longest prefix decides"
    world.allow("user:eve:c", kind="PREFIX", name="a/b/", change="REMOVE")
    assert tables.require_bucket(world.tables, "vol1", "bucket1").prefixes == 1
    assert prefixes.get_prefix(world.tables, "vol1", "bucket1", "a/b/") is None
    for key_name in ("a/b/c", "a/b/d", "ab", "k"):
        world.do(m.DeleteKey(**PLACE, key=key_name))
    world.do(m.DeleteBucket(**PLACE))
    assert not world.tables.tables[PREFIX_TABLE]


def test_names_of_keys_in_any_language_find_their_prefixes(world: Judged):
    name = "ü" * 126 + "/" + "é" * 300  # a cut at 255 bytes goes through a character
    bucket = tables.require_bucket(world.tables, "vol1", "bucket1")
    world.allow("user:ann:c", kind="PREFIX", name="ü" * 126 + "/")
    bucket = tables.require_bucket(world.tables, "vol1", "bucket1")
    assert [one.prefix for one in prefixes.prefixes_of(world.tables, bucket, name)] == ["ü" * 126 + "/"]


@pytest.mark.parametrize(
    "name", ["a/b/c", "a/b", "a//b/" + "/" * 300, "ü/ü", "x", "/" * 255, "a/" * 200, "é" * 200 + "/x"]
)
def test_prefixes_read_at_once_judge_as_those_looked_for_one_by_one(world: Judged, name: str):
    for prefix in ("a/", "a/b/", "a//", "ü/", "/", "/" * 255, "a/" * 127, "é" * 120 + "/"):
        world.allow("user:ann:c", kind="PREFIX", name=prefix)
    bucket = tables.require_bucket(world.tables, "vol1", "bucket1")
    nearest = next(iter(prefixes.prefixes_of(world.tables, bucket, name)), None)
    assert prefixes.BucketPrefixes(world.tables, "vol1", "bucket1").nearest(name) == nearest


def test_a_lookup_of_names_of_slashes_reads_few_rows(world: Judged):
    world.allow("world::r", kind="VOLUME")
    world.allow("user:eve:rl")
    world.allow("user:eve:r", kind="PREFIX", name="other/")
    read = DoorRead(
        volume="vol1", bucket="bucket1", keys=["/" * 240 + f"{n:015}" for n in range(1000)], consistency="stale", index=0,
        with_bytes=False, prefix="", start_after="", limit=0,
    )  # fmt: skip
    asked: list[str] = []

    class Counted:
        def get(self, cf: str, key: bytes) -> bytes | None:
            asked.append(cf)
            return world.tables.get(cf, key)

        def iterate(self, *place: Any) -> Any:
            return world.tables.iterate(*place)

    answer = found_rows(Counted(), read, 0, 5, Caller(user="eve", administrator=False, groups=()))
    assert (answer.status, len(answer.rows)) == ("OK", 1000)
    assert asked.count(PREFIX_TABLE) == 0


@pytest.mark.parametrize(
    ("kind", "bucket", "name", "change"),
    [
        ("ROLE", "bucket1", "", "ADD"), ("VOLUME", "bucket1", "", "ADD"), ("BUCKET", "bucket1", "k", "ADD"),
        ("PREFIX", "bucket1", "a", "ADD"), ("PREFIX", "bucket1", "x" * 255 + "/", "ADD"), ("KEY", "bucket1", "k", "TAKE"),
    ],
)  # fmt: skip
def test_a_wrong_change_is_refused(world: Judged, kind: str, bucket: str, name: str, change: str):
    body = i.ChangeAcl(kind=kind, volume="vol1", bucket=bucket, name=name, change=change, acls=[parse_acl("world::r")])
    assert world.refusal(body).status == "INVALID_REQUEST"


def test_a_list_has_a_limit(world: Judged):
    many = [parse_acl(f"user:u{n}:r") for n in range(65)]
    body = i.ChangeAcl(kind="BUCKET", **PLACE, name="", change="ADD", acls=many)
    assert world.refusal(body).status == "INVALID_REQUEST"
    world.do(i.ChangeAcl(kind="BUCKET", **PLACE, name="", change="ADD", acls=many[:64]))
    assert (
        world.refusal(i.ChangeAcl(kind="BUCKET", **PLACE, name="", change="ADD", acls=many[64:])).status
        == "INVALID_REQUEST"
    )


def test_reads_need_their_rights(world: Judged):
    eve, vera = (Caller(user=name, administrator=False, groups=()) for name in ("eve", "vera"))
    view = world.tables
    acl = AclPlace(kind="KEY", volume="vol1", bucket="bucket1", name="k")
    asked = [
        lambda who: access.require_on_volume(view, who, "vol1", LIST),
        lambda who: access.require_on_bucket(view, who, "vol1", "bucket1", LIST),
        lambda who: access.require_on_key(view, who, "vol1", "bucket1", "k", READ),
        lambda who: access.require_on_acl(view, who, acl, READ_ACL),
    ]
    for ask in asked:
        ask(vera)
        with pytest.raises(OMError, match="PERMISSION_DENIED"):
            ask(eve)
    world.allow("user:eve:rl", kind="VOLUME")
    world.allow("user:eve:rl")
    world.allow("user:eve:rx", kind="KEY", name="k")
    for ask in asked:
        ask(eve)
    with pytest.raises(OMError, match="BUCKET_NOT_FOUND"):
        access.require_on_bucket(view, vera, "vol1", "bucket9", LIST)


def test_below_its_level_no_signed_request_is_executed(world: Judged):
    world.level = SMALL_OBJECTS
    world.standing = USER
    assert world.refusal(m.DeleteKey(**PLACE, key="k"), "vera").status == "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
    assert world.by("vera", i.GetDelegationToken()) == "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
    world.standing = None
    assert world.refusal(i.CreateUser(user="ann")).status == "NOT_SUPPORTED_OPERATION_PRIOR_FINALIZATION"
    assert ACCESS_CONTROL > SMALL_OBJECTS


# ---- users and delegation tokens


def test_a_user_is_made_once_rotated_and_removed(world: Judged):
    world.do(i.CreateUser(user="ann", groups=["b", "a", "b"], administrator=True))
    made = users.get_user(world.tables, "ann")
    assert made is not None
    assert (made.generation, made.groups, made.administrator) == (world.index, ["a", "b"], True)
    assert world.refusal(i.CreateUser(user="ann")).status == "USER_ALREADY_EXISTS"
    world.do(i.RotateUser(user="ann", overlap_ms=5_000))
    rotated = users.get_user(world.tables, "ann")
    assert rotated is not None
    assert (rotated.generation, rotated.previous_generation) == (world.index, made.generation)
    assert rotated.previous_until_ms == world.now_ms + 5_000
    world.do(i.RemoveUser(user="ann"))
    assert not world.tables.tables[IDENTITY_TABLE]
    assert world.refusal(i.RotateUser(user="ann", overlap_ms=0)).status == "USER_NOT_FOUND"
    world.do(i.CreateUser(user="ann"))
    again = users.get_user(world.tables, "ann")
    assert again is not None
    assert again.generation > rotated.generation, "the secrets of the removed user are no secrets of this one"


@pytest.mark.parametrize(
    "body", [i.CreateUser(user=""), i.CreateUser(user="operator"), i.CreateUser(user="a:b"), i.CreateUser(user="a", groups=[""]),
             i.CreateUser(user="a", groups=["g"] * 33), i.RotateUser(user="a", overlap_ms=-1), i.GetDelegationToken(renewer="a b"),
             i.RenewDelegationToken(owner="a", number=0)],
    ids=str,
)  # fmt: skip
def test_illegal_users_and_tokens(world: Judged, body: m.RequestBody):
    assert world.refusal(body).status == "INVALID_REQUEST"


def test_a_token_is_made_renewed_and_cancelled(world: Judged):
    assert world.by("ann", i.GetDelegationToken(renewer="bob")) == "OK"
    number = world.index
    row = users.get_token(world.tables, "ann", number)
    assert row is not None
    assert (row.generation, row.renewer, row.expiry_time_ms - row.issue_time_ms) == (3, "bob", 24 * 3600 * 1000)
    assert world.by("eve", i.RenewDelegationToken(owner="ann", number=number)) == "PERMISSION_DENIED"
    assert world.by("eve", i.RenewDelegationToken(owner="ann", number=number + 99)) == "PERMISSION_DENIED", (
        "nor is it told"
    )
    world.now_ms += 20 * 3600 * 1000
    assert world.by("bob", i.RenewDelegationToken(owner="ann", number=number)) == "OK"
    renewed = users.get_token(world.tables, "ann", number)
    assert renewed is not None
    assert renewed.expiry_time_ms == world.now_ms + 24 * 3600 * 1000
    world.now_ms += 25 * 3600 * 1000
    assert world.by("ann", i.RenewDelegationToken(owner="ann", number=number)) == "TOKEN_EXPIRED"
    assert world.by("eve", i.CancelDelegationToken(owner="ann", number=number)) == "PERMISSION_DENIED"
    assert world.by("ann", i.CancelDelegationToken(owner="ann", number=number)) == "OK"
    assert world.by("ann", i.CancelDelegationToken(owner="ann", number=number)) == "INVALID_TOKEN"


def test_a_token_makes_no_tokens_and_nobody_unsigned_does(world: Judged):
    world.standing = ProvenCaller(administrator=True, groups=[], generation=3, token=9)
    assert world.refusal(i.GetDelegationToken()).status == "PERMISSION_DENIED"
    world.standing = ProvenCaller(administrator=True, groups=[], generation=0, token=0)
    assert world.refusal(i.GetDelegationToken(), "operator").status == "PERMISSION_DENIED"
    world.standing = None
    assert world.refusal(i.GetDelegationToken()).status == "NOT_SUPPORTED_OPERATION"


def test_expired_tokens_go_when_new_ones_are_made_and_there_is_a_limit(world: Judged):
    for _ in range(100):
        assert world.by("ann", i.GetDelegationToken()) == "OK"
    assert world.by("ann", i.GetDelegationToken()) == "INVALID_REQUEST"
    world.now_ms += 25 * 3600 * 1000
    assert world.by("ann", i.GetDelegationToken()) == "OK"
    assert len(users.tokens_of(world.tables, "ann")) == 1


def test_a_removed_user_has_no_tokens(world: Judged):
    world.do(i.CreateUser(user="ann"))
    assert world.by("ann", i.GetDelegationToken()) == "OK"
    world.do(i.RemoveUser(user="ann"))
    assert not world.tables.tables[IDENTITY_TABLE]
