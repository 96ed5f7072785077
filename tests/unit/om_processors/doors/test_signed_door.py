"""The direct door of a node that demands signatures, with real clients over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from om_processors.identity.identities import KNOWN_MS
from producers import Client, NotConnected, RequestFailed
from schemas.access.acl import parse_acl
from schemas.access.credentials import Credentials, TokenName, credentials_of, operator_credentials
from schemas.column_families import KEY_TABLE
from schemas.privilege import ClusterSecret
from schemas.records.identity import ChangeAcl, CreateUser, RemoveUser
from schemas.records.messages import AddNode, CreateVolume, PutKey
from stratolog.local.processes import wait_until
from tests.support.local.secret import SECRET
from tests.support.om.door_site import AnsweringLeader, DoorSite

PLACE = ("vol1", "bucket1")
OTHER = ClusterSecret(b"the secret of some other cluster, or none")


@pytest.fixture
def site() -> Iterator[DoorSite]:
    with DoorSite(signed=True) as made:
        made.position.index = 10_000
        yield made


@pytest.fixture
def leader(site: DoorSite) -> Iterator[AnsweringLeader]:
    found = site.lead()
    site.position.index = 10_000
    yield found
    site.depose()


def user(site: DoorSite, name: str) -> Credentials:
    site.world.do(CreateUser(user=name, groups=["staff"]))
    return credentials_of(SECRET, TokenName(user=name, generation=site.world.index, number=0))


def client(site: DoorSite, credentials: Credentials | None, **options: Any) -> Client:
    return Client(nodes=[site.address], credentials=credentials, deadline_ms=5_000, **options)


def test_signed_requests_are_executed_alone_and_together(site: DoorSite, leader: AnsweringLeader):
    with client(site, user(site, "ann")) as ann:
        ann.create_volume("vol2")
        futures = [ann.submit(PutKey(volume="vol1", bucket="bucket1", key=f"k{n}", data=b"x")) for n in range(1_200)]
        assert all(future.result().status == "OK" for future in futures)
    assert len(leader.executed) == 1_201
    assert {request.caller for request in leader.executed} == {"ann"}


def test_who_is_not_known_does_not_get_through_the_door(site: DoorSite, leader: AnsweringLeader):
    ann = user(site, "ann")
    for wrong in (None, Credentials(ann.token, bytes(32)), credentials_of(OTHER, ann.name)):
        with pytest.raises(NotConnected):
            client(site, wrong, connect_timeout_ms=400)
    assert not leader.executed


def test_a_removed_user_is_refused_on_an_open_connection(site: DoorSite, leader: AnsweringLeader):
    with client(site, user(site, "ann")) as ann:
        ann.create_volume("vol2")
        site.world.do(RemoveUser(user="ann"))

        def refused() -> bool:
            try:
                ann.create_volume("vol3")
            except RequestFailed as error:
                return error.status == "PERMISSION_DENIED"
            return False

        assert wait_until(refused, 50 * KNOWN_MS / 1000, interval_s=0.01)
        before = len(leader.executed)
        with pytest.raises(RequestFailed, match="PERMISSION_DENIED"):
            ann.create_volume("vol4")
        with pytest.raises(RequestFailed, match="PERMISSION_DENIED"):
            ann.key_info(*PLACE, "k")
        assert len(leader.executed) == before


def test_lookups_are_judged_key_by_key(site: DoorSite, leader: AnsweringLeader):
    del leader
    eve, vera = user(site, "eve"), operator_credentials(SECRET)
    site.add_key("open")
    site.add_key("closed")
    site.world.do(
        ChangeAcl(kind="VOLUME", volume="vol1", bucket="", name="", change="ADD", acls=[parse_acl("world::r")])
    )
    site.world.do(
        ChangeAcl(kind="BUCKET", volume="vol1", bucket="bucket1", name="", change="ADD", acls=[parse_acl("user:eve:r")])
    )
    site.world.do(
        ChangeAcl(
            kind="KEY", volume="vol1", bucket="bucket1", name="open", change="ADD", acls=[parse_acl("group:staff:r")]
        )
    )
    with client(site, eve) as reader, client(site, vera) as operator:
        assert reader.key_info(*PLACE, "open").info.acls == [], "the list needs a right of its own"
        for keys in (["closed"], ["open", "closed"]):
            with pytest.raises(RequestFailed, match="PERMISSION_DENIED"):
                reader.key_infos(*PLACE, keys)
        assert [view is not None for view in operator.key_infos(*PLACE, ["open", "closed", "none"])] == [
            True,
            True,
            False,
        ]
    assert site.world.tables.tables[KEY_TABLE]


def test_administrators_send_what_members_send(site: DoorSite, leader: AnsweringLeader):
    with client(site, operator_credentials(SECRET)) as operator:
        operator.call(AddNode(shard=0, node="om4"))
    with client(site, user(site, "ann")) as ann, pytest.raises(RequestFailed, match="PERMISSION_DENIED"):
        ann.call(AddNode(shard=0, node="om5"))
    assert [request.body for request in leader.executed] == [AddNode(shard=0, node="om4")]
    assert CreateVolume(volume="vol9") not in [request.body for request in leader.executed]
