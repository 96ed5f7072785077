"""Signed requests and rights on a real stack of ``auth = signed``: forgers, expired and cancelled tokens, replays, removed users,
rotation under load, reads by HTTP and by the direct door, late validation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from om_processors.namespace.tables import volume_key
from producers import Client, RequestFailed
from producers.errors import StratologError
from producers.reads.call_signer import CallSigner
from schemas.access.credentials import (
    Credentials,
    TokenName,
    auditor_credentials,
    client_prefix,
    credentials_of,
    operator_credentials,
)
from schemas.access.signatures import sealed_key
from schemas.codecs.codec import encode
from schemas.codecs.envelopes import enveloped_requests
from schemas.column_families import BUCKETS, VOLUME_TABLE
from schemas.records.identity import CreateUser, RemoveUser, RotateUser
from schemas.records.messages import Difference, PutKey, Request, SetRequestMode
from schemas.sharding import shard_of
from schemas.topics import OM_LOG, OM_REQUESTS
from spark_streaming.naming.replica_rows import NoRows, ReplicaRows
from tests.support.command import warm
from tests.support.local.stack import TestStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SHARDS = 2


@pytest.fixture(scope="module")
def stack(make_stack: Callable[..., TestStack]) -> TestStack:
    return make_stack(nodes=2, shards=SHARDS, auth="signed", barrier_interval_ms=100)


@pytest.fixture(scope="module")
def operator(stack: TestStack) -> Iterator[Client]:
    with signed(stack, operator_credentials(stack.settings.secret())) as client:
        yield client


def signed(stack: TestStack, credentials: Credentials | None, **options: Any) -> Client:
    urls = [f"http://{node.address}" for node in stack.settings.nodes]
    return Client(
        stack.settings.bootstrap_servers, read_from=urls, credentials=credentials, deadline_ms=20_000, **options
    )


def direct(stack: TestStack, credentials: Credentials | None) -> Client:
    return Client(
        nodes=[node.address for node in stack.settings.nodes],
        credentials=credentials,
        deadline_ms=20_000,
        connect_timeout_ms=5_000,
    )


def user(stack: TestStack, operator: Client, name: str, *groups: str) -> Credentials:
    made = operator.call(CreateUser(user=name, groups=list(groups)))
    return credentials_of(stack.settings.secret(), TokenName(user=name, generation=made.index, number=0))


@pytest.fixture(scope="module")
def alice(stack: TestStack, operator: Client) -> Credentials:
    return user(stack, operator, "alice")


@pytest.fixture(scope="module")
def bob(stack: TestStack, operator: Client) -> Credentials:
    return user(stack, operator, "bob", "staff")


@pytest.fixture(scope="module")
def owned(operator: Client, alice: Credentials) -> str:
    """A volume and a bucket of alice's, with a key."""
    operator.create_volume("alices", owner="alice")
    operator.create_bucket("alices", "bucket", owner="alice")
    operator.put_key("alices", "bucket", "k", b"secret words")
    return "alices"


def denied(act: Callable[[], Any]) -> str:
    with pytest.raises(RequestFailed, match="PERMISSION_DENIED") as caught:
        act()
    return str(caught.value)


def test_a_user_acts_by_both_doors_and_nobody_else_does(
    stack: TestStack, owned: str, alice: Credentials, bob: Credentials
) -> None:
    for open_client in (signed, direct):
        with open_client(stack, alice) as mine, open_client(stack, bob) as theirs:
            mine.put_key(owned, "bucket", "mine", b"words")
            assert mine.key_info(owned, "bucket", "mine").info.owner == "alice"
            with mine.open(f"/{owned}/bucket/mine") as file:
                assert file.read() == b"words"
            assert [one.key for one in mine.list_keys(owned, "bucket")] == ["k", "mine"]
            for act in (
                lambda: theirs.put_key(owned, "bucket", "mine", b"other words"),
                lambda: theirs.delete_key(owned, "bucket", "mine"),
                lambda: theirs.key_info(owned, "bucket", "mine"),
                lambda: theirs.bucket_info(owned, "bucket"),
                lambda: list(theirs.list_keys(owned, "bucket")),
                lambda: list(theirs.list_buckets(owned)),
                lambda: theirs.volume_info(owned),
                lambda: theirs.get_acl(owned, "bucket"),
                lambda: theirs.add_acl(owned, "bucket", acls=["user:bob:a"]),
                lambda: theirs.create_volume("bobs"),
                lambda: theirs.call(CreateUser(user="mallory", administrator=True)),
            ):
                assert "bob" in denied(act)
            assert [one.volume for one in theirs.list_volumes()] == []
            assert [one.volume for one in mine.list_volumes()] == [owned]


def test_rights_are_given_and_taken(
    stack: TestStack, owned: str, operator: Client, alice: Credentials, bob: Credentials
) -> None:
    with signed(stack, alice) as mine, signed(stack, bob) as theirs, direct(stack, bob) as straight:
        operator.add_acl(owned, acls=["group:staff:r"])
        mine.add_acl(owned, "bucket", acls=["user:bob:rl"])
        assert mine.get_acl(owned, "bucket").acls == ["user:bob:rl[ACCESS]"]
        for reader in (theirs, straight):
            assert "k" in [one.key for one in reader.list_keys(owned, "bucket")]
            denied(lambda: reader.key_info(owned, "bucket", "k"))  # noqa: B023 - run within the loop
        mine.add_acl(owned, "bucket", key="k", acls=["group:staff:r"])
        for reader in (theirs, straight):
            view = reader.key_info(owned, "bucket", "k")
            assert (view.info.size, view.info.acls) == (12, []), "a list is read by a right of its own"
        snapshot = mine.create_snapshot(owned, "bucket", "snap").snapshot
        mine.remove_acl(owned, "bucket", key="k", acls=["group:staff:r"])
        denied(lambda: theirs.key_info(owned, "bucket", "k"))
        assert theirs.key_info(owned, "bucket", f".snapshot/{snapshot}/k").info.size == 12, "as it was"
        mine.remove_acl(owned, "bucket", acls=["user:bob:rl"])
        denied(lambda: theirs.key_info(owned, "bucket", f".snapshot/{snapshot}/k"))
        denied(lambda: list(theirs.snapshot_diff(owned, "bucket", snapshot)))
        mine.delete_snapshot(owned, "bucket", snapshot)


def test_forged_requests_have_no_effect(
    stack: TestStack, operator: Client, alice: Credentials, bob: Credentials, owned: str
) -> None:
    """Written straight to the topic: without a signature, with another's, with a changed byte, in a foreign envelope."""

    def request(caller: str, call_id: int) -> bytes:
        body = PutKey(volume=owned, bucket="bucket", key=f"forged-{call_id}", data=b"x")
        return encode(
            Request(
                client_id=client_prefix(caller) + bytes(10), call_id=call_id, first_sent_at_ms=time.time_ns() // 1_000_000,
                answered_below=0, reply_partition=0, caller=caller, body=body,
            )
        )  # fmt: skip

    shard = next(s for s in range(SHARDS) if operator.positions and s == _shard_of(owned))
    producer = Producer({"bootstrap.servers": stack.settings.bootstrap_servers})
    secret = stack.settings.secret()
    forged = Credentials(alice.token, bytes(32))
    (mixed,) = enveloped_requests([request("bob", 90), request("alice", 91)])
    records = [
        (None, request("alice", 1)), (bytes(32), request("alice", 2)), (secret.proof(request("alice", 3)), request("alice", 3)),
        (sealed_key(forged, one := request("alice", 4)), one), (sealed_key(bob, one := request("alice", 5)), one),
        (sealed_key(alice, request("alice", 6)), request("alice", 7)), (sealed_key(bob, mixed), mixed), (b"\xa1", request("alice", 8)),
        (b"\xa1\xff", request("alice", 9)), (b"\xa1\x05alice", request("alice", 10)),
    ]  # fmt: skip
    for key, value in records:
        producer.produce(OM_REQUESTS, value, key, shard)
    producer.flush(10)
    good = request("alice", 11)
    producer.produce(OM_REQUESTS, good, sealed_key(alice, good), shard)
    producer.produce(OM_REQUESTS, good, sealed_key(alice, good), shard)  # the same record again: a replay
    producer.flush(10)
    with signed(stack, alice) as mine:
        names = lambda: [one.key for one in mine.list_keys(owned, "bucket", prefix="forged-")]  # noqa: E731
        stack.wait("the good request is executed", lambda: "forged-11" in names())
        assert names() == ["forged-11"]
        born = mine.key_info(owned, "bucket", "forged-11").info.object_id
        mine.delete_key(owned, "bucket", "forged-11")
        producer.produce(OM_REQUESTS, good, sealed_key(alice, good), shard)
        producer.flush(10)
        mine.put_key(owned, "bucket", "after", b"x")
        assert names() == [], f"a replay is the same request: {born}"


def _shard_of(volume: str) -> int:
    from schemas.sharding import shard_of

    return shard_of(volume, SHARDS)


def test_unsigned_clients_and_calls_are_refused(stack: TestStack, owned: str) -> None:
    with signed(stack, None, caller="alice") as nobody:
        denied(lambda: nobody.put_key(owned, "bucket", "n", b"x"))
        denied(lambda: nobody.key_info(owned, "bucket", "k"))
        denied(lambda: list(nobody.list_volumes()))
    with pytest.raises(StratologError):
        direct(stack, None).close()
    for path in (
        "/v1/volumes",
        "/v1/users",
        "/v1/shards/0/rows?cf=keyTable&bucket=1",
        "/v1/shards/0/digest",
        "/v1/shards/0/checkpoint",
        "/v1/door",
    ):
        answer = httpx.get(f"http://{stack.address('om1')}{path}", trust_env=False)
        assert answer.status_code == 403, path
    for path in ("/health", "/status", "/metrics"):
        assert httpx.get(f"http://{stack.address('om1')}{path}", trust_env=False).status_code in (200, 503)


def test_users_do_not_read_rows(stack: TestStack, alice: Credentials, operator: Client) -> None:
    del operator
    asked = "/v1/shards/0/digest"
    url = f"http://{stack.address('om1')}{asked}"
    assert httpx.get(url, auth=CallSigner(alice), trust_env=False).status_code == 403
    assert httpx.get(url, auth=stack.settings.secret().sign, trust_env=False).status_code == 200


def test_the_audit_reads_rows_with_its_own_credentials(stack: TestStack, alice: Credentials, owned: str) -> None:
    addresses = {OM_LOG: {node.name: node.address for node in stack.settings.nodes}}
    shard, rows = (
        shard_of(owned, SHARDS),
        ReplicaRows(addresses, credentials=auditor_credentials(stack.settings.secret())),
    )
    buckets = [Difference(cf=VOLUME_TABLE, bucket=n, log_sum=0, replica_sum=0) for n in range(BUCKETS)]
    found = [key for one in buckets for key in rows.ask(OM_LOG, "om1", shard, one).rows]
    assert volume_key(owned) in found
    for stranger in (None, alice):
        with pytest.raises(NoRows, match="status 403"):
            ReplicaRows(addresses, credentials=stranger).ask(OM_LOG, "om1", shard, buckets[0])


def test_an_administrator_moves_a_leader_by_a_signature_and_a_user_does_not(
    stack: TestStack, operator: Client, alice: Credentials
) -> None:
    made = operator.call(CreateUser(user="chief", administrator=True, groups=[]))
    chief = credentials_of(stack.settings.secret(), TokenName(user="chief", generation=made.index, number=0))
    node, target = stack.settings.nodes[0].address, stack.settings.nodes[1]
    params = {"node": target.name, "address": target.address}

    def moved(credentials: Credentials | None) -> httpx.Response:
        auth = None if credentials is None else CallSigner(credentials)
        url = f"http://{node}/v1/shards/0/transfer"
        return httpx.post(url, params=params, auth=auth, timeout=30, trust_env=False)

    for stranger in (None, alice):
        answer = moved(stranger)
        assert (answer.status_code, answer.json()["error"]) == (403, "PERMISSION_DENIED"), answer.text
    # Whether this node owns the shard just now or not, it is no more a matter of rights.
    assert moved(chief).status_code != 403


def test_delegation_tokens(stack: TestStack, owned: str, alice: Credentials, bob: Credentials) -> None:
    with signed(stack, alice) as mine, signed(stack, bob) as theirs:
        token = mine.get_delegation_token("bob")
        with signed(stack, token) as worker, direct(stack, token) as straight:
            worker.put_key(owned, "bucket", "by-token", b"x")
            assert straight.key_info(owned, "bucket", "by-token").info.owner == "alice"
            denied(worker.get_delegation_token)
            theirs.renew_delegation_token(token)
            theirs.cancel_delegation_token(token)
            stack.wait(
                "the token is refused", lambda: is_denied(lambda: worker.put_key(owned, "bucket", "by-token", b"y"))
            )
            stack.wait("reads by it, too", lambda: is_denied(lambda: straight.key_info(owned, "bucket", "by-token")))


def is_denied(act: Callable[[], Any]) -> bool:
    try:
        act()
    except RequestFailed as error:
        return error.status == "PERMISSION_DENIED"
    return False


def test_a_removed_user_is_refused_by_every_leader(stack: TestStack, operator: Client, owned: str) -> None:
    carl = user(stack, operator, "carl")
    operator.add_acl(owned, acls=["user:carl:r"])
    operator.add_acl(owned, "bucket", acls=["user:carl:rwc"])
    with signed(stack, carl) as client:
        client.put_key(owned, "bucket", "carls", b"x")
        operator.call(RemoveUser(user="carl"))
        stack.wait("it is refused", lambda: is_denied(lambda: client.put_key(owned, "bucket", "carls", b"y")), 5)
        stack.wait("and may not read", lambda: is_denied(lambda: client.key_info(owned, "bucket", "carls")), 5)
    again = user(stack, operator, "carl")
    with signed(stack, carl) as old, signed(stack, again) as new:
        denied(lambda: old.put_key(owned, "bucket", "carls", b"y"))
        new.put_key(owned, "bucket", "carls", b"z")


def test_rotation_under_load_refuses_nothing(stack: TestStack, operator: Client, owned: str) -> None:
    dora = user(stack, operator, "dora")
    operator.add_acl(owned, acls=["user:dora:r"])
    operator.add_acl(owned, "bucket", acls=["user:dora:rwc"])
    errors: list[StratologError] = []
    stop = threading.Event()
    done = [0]

    def load(credentials: Credentials) -> None:
        with signed(stack, credentials) as client:
            while not stop.is_set():
                try:
                    client.put_key(owned, "bucket", "doras", b"x")
                    done[0] += 1
                except StratologError as error:
                    errors.append(error)

    threads = [threading.Thread(target=load, args=(dora,))]
    threads[0].start()
    for _ in range(3):
        made = operator.call(RotateUser(user="dora", overlap_ms=60_000))
        fresh = credentials_of(stack.settings.secret(), TokenName(user="dora", generation=made.index, number=0))
        threads.append(threading.Thread(target=load, args=(fresh,)))
        threads[-1].start()
        time.sleep(0.5)
        if len(threads) == 2:
            break
    time.sleep(1.0)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert done[0] > 20


def test_late_validation_judges_likewise(
    stack: TestStack, operator: Client, owned: str, alice: Credentials, bob: Credentials
) -> None:
    for shard in range(SHARDS):
        operator.call(SetRequestMode(shard=shard, request_type="PutKey", mode="late"))
    try:
        with signed(stack, alice) as mine, signed(stack, bob) as theirs:
            mine.put_key(owned, "bucket", "late", b"mine")
            denied(lambda: theirs.put_key(owned, "bucket", "late", b"theirs"))
            assert mine.key_info(owned, "bucket", "late").info.size == 4
    finally:
        for shard in range(SHARDS):
            operator.call(SetRequestMode(shard=shard, request_type="PutKey", mode="leader"))
    stack.wait_converged()
    auth = stack.settings.secret().sign
    digests = {
        httpx.get(
            f"http://{stack.address(node)}/v1/shards/{_shard_of(owned)}/digest?scrub=true", auth=auth, trust_env=False
        ).json()["digest"]
        for node in stack.nodes
    }
    assert len(digests) == 1


def test_the_command_makes_users_and_changes_lists(
    stack: TestStack, operator: Client, owned: str, tmp_path: Path
) -> None:
    del operator

    def run(*words: str, file: Path | None = None, code: int = 0) -> str:
        more = {} if file is None else {"STRATOLOG_CREDENTIALS_FILE": str(file)}
        found = warm.run(
            "--config", str(stack.settings_file), *words, env=_environment() | more, cwd=ROOT, timeout_s=60
        )
        assert found.returncode == code, found.stderr + found.stdout
        return found.stdout + found.stderr

    mine = tmp_path / "erin"
    run("admin", "user", "add", "erin", "--group", "staff", "--file", str(mine))
    assert mine.stat().st_mode & 0o777 == 0o600
    assert "erin" in run("admin", "user", "list")
    run("sh", "acl", "add", f"/{owned}", "--acl", "user:erin:r")
    run("sh", "acl", "set", f"/{owned}/bucket", "--acl", "user:erin:rlc", "--acl", "world::r[DEFAULT]")
    assert "user:erin:rcl[ACCESS]" in run("sh", "acl", "get", f"/{owned}/bucket")
    assert "k" in run("sh", "key", "list", f"/{owned}/bucket", file=mine)
    assert "PERMISSION_DENIED" in run("sh", "key", "delete", f"/{owned}/bucket/k", file=mine, code=1)
    token = tmp_path / "token"
    run("sh", "token", "get", str(token), file=mine)
    run("sh", "key", "list", f"/{owned}/bucket", file=token)
    run("sh", "token", "cancel", str(token), file=mine)
    run("admin", "user", "rotate", "erin", "--file", str(mine))
    run("sh", "key", "list", f"/{owned}/bucket", file=mine)
    mine.chmod(0o644)
    assert "may be read by others" in run("sh", "key", "list", f"/{owned}/bucket", file=mine, code=2)


def _environment() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if not name.startswith("STRATOLOG_")}
