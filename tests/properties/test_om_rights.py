"""Requests of users and administrators against a plain model of owners and lists: what is denied, what is inherited, what is kept.

The model has sets where the rows have lists of entries, and uses nothing of ``om_processors``. After each request the rows
have its owners and lists, and each reader may read the keys that it names, and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from om_processors.errors import OMError
from om_processors.namespace.access import ACCESS_RULES, Caller, require_on_key
from schemas.codecs.codec import decode
from schemas.column_families import BUCKET_TABLE, KEY_TABLE, OPEN_KEY_TABLE, PREFIX_TABLE, VOLUME_TABLE
from schemas.records import identity as i
from schemas.records import messages as m
from schemas.records.identity import ProvenCaller
from schemas.records.rows import Acl
from tests.properties.examples import examples
from tests.simulation.rights import (
    CREATE,
    DELETE,
    GROUPS,
    READ,
    READ_ACL,
    ROOT,
    WRITE,
    WRITE_ACL,
    Entries,
    Refused,
    RightsModel,
    entries_of,
)
from tests.support.om.om_world import World

PEOPLE = (*GROUPS, ROOT)
CALLERS = st.sampled_from([*PEOPLE, *GROUPS])
VOLUMES = st.sampled_from(["vol1"] * 9 + ["vol2"])
BUCKETS = st.sampled_from(["bucket1"] * 9 + ["bucket2"])
KEYS = st.sampled_from(["k", "a/k", "a/b/k", "a/b/l"])
PREFIXES = st.sampled_from(["a/", "a/b/"])
OWNERS = st.sampled_from(["", "ann", "ben", "zoe"])
ENTRY = st.builds(
    lambda who, rights, scope: Acl(type=who[0], name=who[1], rights=rights, scope=scope),
    st.sampled_from([("USER", "ann"), ("USER", "ben"), ("GROUP", "red"), ("GROUP", "blue"), ("WORLD", "")]),
    st.sampled_from([0, READ, WRITE, READ | WRITE, CREATE | READ, DELETE, WRITE_ACL, READ | WRITE_ACL, 127, 127, 127]),
    st.sampled_from(["ACCESS", "ACCESS", "DEFAULT"]),
)
ENTRIES = st.lists(ENTRY, max_size=3)

SELDOM = st.sampled_from([False] * 5 + [True])


class RightsExecution(RuleBasedStateMachine):
    """Few names, lists that give much: half of what users ask for must be allowed, or nothing is tested."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(authorizer=ACCESS_RULES)
        self.model = RightsModel()

    def both(self, who: str, body: m.RequestBody, act: Callable[[], None]) -> str:
        """Execute a request on both; they must agree, and a refusal changes nothing. Return the status."""
        expected, status = "OK", "OK"
        before = self.world.tables.rows()
        try:
            act()
        except Refused as refused:
            expected = str(refused)
        self.world.standing = ProvenCaller(administrator=who == ROOT, groups=GROUPS.get(who, []), generation=1, token=0)
        try:
            self.world.do(body, who)
        except OMError as error:
            status = error.status
        assert status == expected, (who, body, status, expected)
        assert status == "OK" or self.world.tables.rows() == before
        return status

    @initialize(owner=OWNERS, acls=ENTRIES, more=ENTRIES)
    def begin(self, owner, acls, more):
        self.create_volume(ROOT, "vol1", owner)
        self.lists(
            ROOT,
            "VOLUME",
            "vol1",
            "bucket1",
            "k",
            "a/",
            "SET",
            [Acl(type="WORLD", name="", rights=READ, scope="ACCESS"), *acls],
        )
        self.create_bucket(ROOT, "vol1", "bucket1", owner)
        self.lists(ROOT, "BUCKET", "vol1", "bucket1", "k", "a/", "ADD", more or acls)
        for key in ("k", "a/k"):
            self.put_key(ROOT, "vol1", "bucket1", key)
            self.lists(ROOT, "KEY", "vol1", "bucket1", key, "a/", "ADD", acls)

    @rule(who=CALLERS, volume=VOLUMES, owner=OWNERS)
    def create_volume(self, who, volume, owner):
        self.both(who, m.CreateVolume(volume=volume, owner=owner), lambda: self.model.create_volume(who, volume, owner))

    @rule(who=CALLERS, volume=VOLUMES, sure=SELDOM)
    def delete_volume(self, who, volume, sure):
        if sure:
            self.both(who, m.DeleteVolume(volume=volume), lambda: self.model.delete_volume(who, volume))

    @rule(who=CALLERS, volume=VOLUMES, owner=st.sampled_from(["ann", "ben"]))
    def own_volume(self, who, volume, owner):
        body = m.SetVolumeProperty(volume=volume, owner=owner)
        self.both(who, body, lambda: self.model.set_volume(who, body))

    @rule(who=CALLERS, volume=VOLUMES, bucket=BUCKETS, owner=OWNERS)
    def create_bucket(self, who, volume, bucket, owner):
        body = m.CreateBucket(volume=volume, bucket=bucket, owner=owner)
        self.both(who, body, lambda: self.model.create_bucket(who, volume, bucket, owner))

    @rule(who=CALLERS, volume=VOLUMES, bucket=BUCKETS, owner=st.sampled_from(["ann", "ben", "zoe"]))
    def own_bucket(self, who, volume, bucket, owner):
        body = m.SetBucketProperty(volume=volume, bucket=bucket, owner=owner)
        self.both(who, body, lambda: self.model.set_bucket(who, body))

    @rule(who=CALLERS, volume=VOLUMES, bucket=BUCKETS, sure=SELDOM)
    def delete_bucket(self, who, volume, bucket, sure):
        body = m.DeleteBucket(volume=volume, bucket=bucket)
        if sure:
            self.both(who, body, lambda: self.model.delete_bucket(who, volume, bucket))

    @rule(who=CALLERS, volume=VOLUMES, bucket=BUCKETS, key=KEYS)
    def put_key(self, who, volume, bucket, key):
        body = m.PutKey(volume=volume, bucket=bucket, key=key, data=b"x")
        self.both(who, body, lambda: self.model.put_key(who, volume, bucket, key))

    @rule(who=CALLERS, volume=VOLUMES, bucket=BUCKETS, key=KEYS)
    def create_key(self, who, volume, bucket, key):
        session = (self.world.index + 1) << 8 | 255
        body = m.CreateKey(volume=volume, bucket=bucket, key=key, size=0)
        self.both(who, body, lambda: self.model.create_key(who, volume, bucket, key, session))

    @rule(who=CALLERS, data=st.data())
    def commit_key(self, who, data):
        there = [
            one for one, (_, volume, bucket, key) in self.model.sessions.items() if key and self.holds(volume, bucket)
        ]
        if not there:
            return
        session = data.draw(st.sampled_from(there))
        _, volume, bucket, key = self.model.sessions[session]
        body = m.CommitKey(volume=volume, bucket=bucket, key=key, session_id=session, size=0)
        self.both(who, body, lambda: self.model.commit_key(who, body))

    @rule(who=CALLERS, volume=VOLUMES, bucket=BUCKETS, count=st.sampled_from([1, 2, 3]))
    def reserve_blocks(self, who, volume, bucket, count):
        session = (self.world.index + 1) << 8 | 255
        body = m.ReserveBlocks(volume=volume, bucket=bucket, count=count)
        self.both(who, body, lambda: self.model.reserve(who, body, session))

    def reservation(self, data) -> tuple[int, str, str] | None:
        """Draw a reservation that there is, in a bucket that there is."""
        there = [
            (session, volume, bucket)
            for session, (_, volume, bucket, key) in self.model.sessions.items()
            if not key and self.holds(volume, bucket)
        ]
        return data.draw(st.sampled_from(there)) if there else None

    @rule(who=CALLERS, data=st.data(), key=KEYS)
    def commit_reserved(self, who, data, key):
        found = self.reservation(data)
        if found is None:
            return
        session, volume, bucket = found
        row = decode(self.world.tables.tables[OPEN_KEY_TABLE][f"/{volume}/{bucket}//{session}".encode()])
        assert len(row.blocks) == self.model.left[session]
        body = m.CommitReserved(
            volume=volume, bucket=bucket, key=key, session_id=session, size=1,
            blocks=[replace(data.draw(st.sampled_from(row.blocks)), offset=0, length=1)],
        )  # fmt: skip
        self.both(who, body, lambda: self.model.commit_reserved(who, body))

    @rule(who=CALLERS, data=st.data())
    def release_blocks(self, who, data):
        found = self.reservation(data)
        if found is None:
            return
        session, volume, bucket = found
        body = m.ReleaseBlocks(volume=volume, bucket=bucket, session_id=session)
        self.both(who, body, lambda: self.model.release(who, body))

    def holds(self, volume: str, bucket: str) -> bool:
        return volume in self.model.volumes and bucket in self.model.volumes[volume].buckets

    @rule(who=CALLERS, volume=VOLUMES, bucket=BUCKETS, key=KEYS)
    def delete_key(self, who, volume, bucket, key):
        body = m.DeleteKey(volume=volume, bucket=bucket, key=key)
        self.both(who, body, lambda: self.model.delete_key(who, volume, bucket, key))

    @rule(who=CALLERS, volume=VOLUMES, bucket=BUCKETS, key=KEYS, to=KEYS)
    def rename_key(self, who, volume, bucket, key, to):
        body = m.RenameKey(volume=volume, bucket=bucket, from_key=key, to_key=to)
        self.both(who, body, lambda: self.model.rename_key(who, volume, bucket, key, to))

    @rule(
        who=CALLERS, kind=st.sampled_from(["VOLUME", "BUCKET", "BUCKET", "KEY", "KEY", "PREFIX", "PREFIX"]), volume=VOLUMES,
        bucket=BUCKETS, key=KEYS, prefix=PREFIXES, how=st.sampled_from(["ADD", "REMOVE", "SET"]), acls=ENTRIES,
    )  # fmt: skip
    def lists(self, who, kind, volume, bucket, key, prefix, how, acls):
        if not acls and how != "SET":
            return
        name = {"KEY": key, "PREFIX": prefix}.get(kind, "")
        body = i.ChangeAcl(
            kind=kind, volume=volume, bucket="" if kind == "VOLUME" else bucket, name=name, change=how, acls=acls
        )
        self.both(who, body, lambda: self.model.change_acl(who, body))

    # ---- what must be equal

    @invariant()
    def rows_have_the_owners_and_lists_of_the_model(self):
        rows = self.world.tables.tables
        expected: dict[tuple[str, ...], tuple[str, Entries]] = {}
        for name, volume in self.model.volumes.items():
            expected["volume", name] = (volume.owner, volume.entries)
            for place, bucket in volume.buckets.items():
                expected["bucket", name, place] = (bucket.owner, bucket.entries)
                for prefix, entries in bucket.prefixes.items():
                    expected["prefix", name, place, prefix] = ("", entries)
                for key, listed in bucket.keys.items():
                    expected["key", name, place, key] = (listed.owner, listed.entries)
        found = {}
        for kind, table in (
            ("volume", VOLUME_TABLE),
            ("bucket", BUCKET_TABLE),
            ("prefix", PREFIX_TABLE),
            ("key", KEY_TABLE),
        ):
            for row in map(decode, rows[table].values()):
                names = [
                    row.volume,
                    *([row.bucket] if kind != "volume" else []),
                    *([getattr(row, kind)] if kind in ("prefix", "key") else []),
                ]
                found[kind, *names] = (getattr(row, "owner", ""), entries_of(row.acls))
        assert found == expected

    @invariant()
    def readers_may_read_what_the_model_says(self):
        for volume in self.model.volumes:
            for bucket in self.model.volumes[volume].buckets:
                for key in self.model.volumes[volume].buckets[bucket].keys:
                    for who in GROUPS:
                        for right in (READ, READ_ACL):
                            self.judge(who, volume, bucket, key, right)

    def judge(self, who: str, volume: str, bucket: str, key: str, right: int) -> None:
        caller = Caller(user=who, administrator=False, groups=GROUPS[who])
        found = allowed(lambda: require_on_key(self.world.tables, caller, volume, bucket, key, right), OMError)
        assert found is allowed(lambda: self.model.need_on_key(who, volume, bucket, key, right), Refused)


def allowed(act: Callable[[], Any], refusal: type[Exception]) -> bool:
    try:
        act()
    except refusal:
        return False
    return True


def test_every_decision_and_every_list_is_the_models() -> None:
    run_state_machine_as_test(
        RightsExecution, settings=settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
    )
