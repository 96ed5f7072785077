"""Wrong arguments of every public method of both clients: ValueError or TypeError that names the argument, and nothing is sent."""

import asyncio
import inspect
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import producers
from producers import AsyncClient, Client, ClusterSecret, StreamOptions
from producers.errors import Exists, InvalidArgument, NotFound, RequestFailed, error_of
from producers.reads.read_views import UsageView
from producers.requests import bodies
from producers.requests.arguments import MAX_LONG
from producers.requests.core.calls import Policy
from producers.requests.engine import RequestEngine, RequestSettings, make_settings
from schemas import result_codes
from schemas.access.credentials import Credentials
from schemas.records.log import FORCED
from schemas.records.messages import CreateVolume, DeleteVolume, Response
from schemas.records.rows import BlockLocation
from schemas.security.tls import TlsFiles
from tests.support.sdk.memory import MemoryCluster, MemoryConnection, client_to

BLOCK = BlockLocation(container_id=1, local_id=2, offset=0, length=5, pipeline="p1")
COUNT = UsageView(update_id=1, kept_bytes=1, counted_bytes=1, kept_names=1, counted_names=1)
NO_TEXT = (None, 1, b"v", ["v"], "\udcff")
NO_QUOTA = (None, "1", 1.5, True, 0, -2, MAX_LONG + 1)
NO_NEW_QUOTA = NO_QUOTA[1:]
NO_COUNT = (None, "1", 1.5, True, -1, MAX_LONG + 1)
NO_LIMIT = ("1", 1.5, True, 0, -1, MAX_LONG + 1)
NO_CONSISTENCY = (None, 1, "", "eventual")
NO_METADATA = ("a", 1, [("a", "b")], {1: "b"}, {"a": 1}, {"a": "\udcff"})
NO_LIST = (None, 1, "ab", b"ab")
PLACE = {"volume": "v", "bucket": "b", "key": "k"}
NAMES = dict.fromkeys(PLACE, NO_TEXT)
PLACES = {"volume": NO_TEXT, "bucket": NO_TEXT}
LISTING = {"prefix": NO_TEXT, "start_after": NO_TEXT, "limit": NO_LIMIT, "consistency": NO_CONSISTENCY}
QUOTAS = {"owner": NO_TEXT, "quota_in_bytes": NO_QUOTA, "quota_in_namespace": NO_QUOTA}
NEW_QUOTAS = {"owner": NO_TEXT[1:], "quota_in_bytes": NO_NEW_QUOTA, "quota_in_namespace": NO_NEW_QUOTA}
OWN = Credentials("alice:1", bytes(32))
ACL_PLACE = {"volume": NO_TEXT, "bucket": NO_TEXT, "key": NO_TEXT, "prefix": NO_TEXT}
ACL = ACL_PLACE | {"acls": (*NO_LIST, [1], ["alice:r"], ["user:alice:q"])}
OPENED = {"key": "k", "size": 0, "replication": "RATIS/THREE", "metadata": {}}
METHODS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "submit": ({}, {"body": (None, "CreateVolume", CreateVolume)}),
    "call": ({}, {"body": (None, "CreateVolume", CreateVolume)}),
    "create_volume": ({}, {"volume": NO_TEXT} | QUOTAS),
    "set_volume_property": ({}, {"volume": NO_TEXT} | NEW_QUOTAS),
    "delete_volume": ({}, {"volume": NO_TEXT}),
    "create_bucket": ({}, {"volume": NO_TEXT, "bucket": NO_TEXT} | QUOTAS),
    "set_bucket_property": ({}, {"volume": NO_TEXT, "bucket": NO_TEXT} | NEW_QUOTAS),
    "delete_bucket": ({}, {"volume": NO_TEXT, "bucket": NO_TEXT}),
    "usage": ({}, {"volume": NO_TEXT, "bucket": NO_TEXT}),
    "repair_quota": (
        {"count": COUNT},
        {
            "volume": NO_TEXT, "bucket": NO_TEXT,
            "count": (None, 1, {}, replace(COUNT, update_id=MAX_LONG + 1), replace(COUNT, kept_bytes=MAX_LONG + 1)),
        },
    ),
    "create_key": ({"size": 0}, NAMES | {"size": NO_COUNT, "replication": NO_TEXT, "metadata": NO_METADATA}),
    "allocate_block": (
        {"session_id": 1},
        NAMES | {"session_id": NO_COUNT, "excluded_pipelines": (*NO_LIST, [1], ["\udcff"])},
    ),
    "commit_key": (
        {"session_id": 1, "size": 5, "blocks": [BLOCK]},
        NAMES | {"session_id": NO_COUNT, "size": NO_COUNT, "blocks": (*NO_LIST, [1])},
    ),
    "put_key": (
        {"data": b"x"},
        NAMES | {"data": (None, 1, "x", bytearray(b"x"), [b"x"]), "replication": NO_TEXT, "metadata": NO_METADATA},
    ),
    "delete_key": ({}, NAMES),
    "rename_key": (
        {"from_key": "k", "to_key": "l"},
        {"volume": NO_TEXT, "bucket": NO_TEXT, "from_key": NO_TEXT, "to_key": NO_TEXT},
    ),
    "create_snapshot": ({}, PLACES | {"snapshot": NO_TEXT}),
    "delete_snapshot": ({"snapshot": "s"}, PLACES | {"snapshot": NO_TEXT}),
    "rename_snapshot": ({"snapshot": "s", "to": "t"}, PLACES | {"snapshot": NO_TEXT, "to": NO_TEXT}),
    "set_snapshot_properties": (
        {"snapshot": "s", "properties": {"a": "b"}}, PLACES | {"snapshot": NO_TEXT, "properties": (None, *NO_METADATA)},
    ),
    "add_acl": ({"acls": ["world::r"]}, ACL),
    "remove_acl": ({"acls": ["world::r"]}, ACL),
    "set_acl": ({"acls": ["world::r"]}, ACL),
    "get_acl": ({}, ACL_PLACE | {"consistency": NO_CONSISTENCY}),
    "get_delegation_token": ({}, {"renewer": NO_TEXT}),
    "renew_delegation_token": ({}, {"token": (None, "alice:1:2", OWN)}),
    "cancel_delegation_token": ({}, {"token": (None, "alice:1:2", OWN)}),
    "open": (
        {"path": "/v/b/k"},
        {
            "path": (*NO_TEXT, "", "/", "v/b", "/v//k"), "mode": (None, 1, "r", "w", "ab"), "size": NO_COUNT,
            "replication": NO_TEXT, "metadata": NO_METADATA, "options": (1, {}), "consistency": NO_CONSISTENCY,
        },
    ),
    "log_digest_base": (
        {"shard": 0, "index": 1, "slots": [1], "sums": [2], "basis": "oracle"},
        {
            "shard": (*NO_COUNT, 1024), "index": NO_COUNT, "slots": (*NO_LIST, [-1], [1 << 31], ["a"]),
            "sums": (*NO_LIST, [1 << 63], [1.5]), "basis": NO_TEXT, "force": (None, 1, "no"),
        },
    ),
    "volume_info": ({}, {"volume": NO_TEXT, "consistency": NO_CONSISTENCY}),
    "bucket_info": ({}, {"volume": NO_TEXT, "bucket": NO_TEXT, "consistency": NO_CONSISTENCY}),
    "key_info": ({}, NAMES | {"consistency": NO_CONSISTENCY}),
    "key_infos": ({"keys": ["a"]}, {"volume": NO_TEXT, "bucket": NO_TEXT, "keys": (None, 1, "a", [1]), "consistency": NO_CONSISTENCY}),
    "snapshot_info": ({"snapshot": "s"}, {"volume": NO_TEXT, "bucket": NO_TEXT, "snapshot": NO_TEXT, "consistency": NO_CONSISTENCY}),
    "list_volumes": ({}, LISTING),
    "list_buckets": ({}, {"volume": NO_TEXT} | LISTING),
    "list_keys": ({}, {"volume": NO_TEXT, "bucket": NO_TEXT} | LISTING),
    "list_snapshots": ({}, {"volume": NO_TEXT, "bucket": NO_TEXT} | LISTING),
    "snapshot_diff": (
        {"from_snapshot": "s"},
        {
            "volume": NO_TEXT, "bucket": NO_TEXT, "from_snapshot": NO_TEXT, "to_snapshot": NO_TEXT[1:],
            "page_size": (None, *NO_LIMIT, 1001), "on_progress": (1, "f"), "consistency": NO_CONSISTENCY,
        },
    ),
    "cancel_snapshot_diff": ({}, {"job": (*NO_TEXT, "", "j", "0" * 33, "../x")}),
    "close": ({}, {"timeout_ms": NO_COUNT}),
}  # fmt: skip
"""By method: arguments that it needs besides names, and by argument what is none."""
SYNC_ALONE = {"submit_with", "over", "together"}
ASYNC_ALONE = {"connect"}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "bootstrap_servers": (None, 1, "", " ", ","), "caller": NO_TEXT[1:], "deadline_ms": (None, "1", 1.5, 0, 300_001),
    "max_in_flight": (None, "1", 0), "read_from": (None, 1, "127.0.0.1:1", [1], ["ftp://h:1"]),
    "tracer": (1, "opentelemetry"), "nodes": (None, 1, "127.0.0.1:1", [1], ["h"], ["h:0"]),
    "max_linger_ms": (None, "1", -1, 1001, float("nan")), "connect_timeout_ms": (None, "1", 0),
    "cluster_secret": ("secret", b"secret"), "credentials": ("alice:1", b"secret"), "streams": ({}, 1),
    "tls": (1, True, "ca.pem", {"ca": "ca.pem"}, TlsFiles(ca=Path("/nowhere/ca.pem"))),
    "kafka": (1, "SSL", {"acks": "0"}, {"sasl.password": "x"}, {"security.protocol": "TLS"}, {"sasl.username": "x"}),
}  # fmt: skip
CASES = [
    (method, argument, value)
    for method, (_, wrong) in METHODS.items()
    for argument, values in wrong.items()
    for value in values
]


def methods(kind) -> set[str]:
    return {name for name, value in vars(kind).items() if not name.startswith("_") and not isinstance(value, property)}


def test_both_clients_have_the_same_properties():
    of_client, of_async = (
        {name for name, _ in inspect.getmembers(kind, lambda value: isinstance(value, property))}
        for kind in (Client, AsyncClient)
    )
    # A client's pipeline is there from the start; the awaited one's when it is connected, and in that process alone.
    assert of_async - {"pipeline", "reads"} == of_client


def arguments_of(kind, method):
    return list(inspect.signature(getattr(kind, method)).parameters.values())[1:]


def given(method, argument, value):
    needed = METHODS[method][0]
    taken = {parameter.name for parameter in arguments_of(Client, method)}
    return {name: given for name, given in PLACE.items() if name in taken} | needed | {argument: value}


@pytest.fixture(scope="module")
def cluster():
    return MemoryCluster()


@pytest.fixture(scope="module")
def client(cluster):
    client, _ = client_to(cluster)
    yield client
    client.close()


def test_every_method_and_argument_has_its_cases():
    assert methods(Client) - SYNC_ALONE == methods(AsyncClient) - ASYNC_ALONE == set(METHODS)
    for method, (_, wrong) in METHODS.items():
        assert set(wrong) == {parameter.name for parameter in arguments_of(Client, method)}, method
    for kind in (Client, AsyncClient):
        options = set(inspect.signature(kind).parameters) - {"open_pipeline"}
        assert options == set(OPTIONS)


@pytest.mark.parametrize(("method", "argument", "value"), CASES)
def test_a_wrong_argument_is_named_and_nothing_is_sent(client, cluster, method, argument, value):
    with pytest.raises((ValueError, TypeError), match=rf"(^|: ){argument}\b"):
        getattr(client, method)(**given(method, argument, value))
    assert not cluster.seen


def test_a_wrong_argument_is_named_by_the_awaited_methods_too(cluster):
    async def ask(client, method, argument, value):
        await getattr(client, method)(**given(method, argument, value))

    async def main():
        pipeline = lambda settings: RequestEngine(settings, connect=lambda *_: MemoryConnection(cluster))  # noqa: E731
        async with AsyncClient("memory:0", open_pipeline=pipeline) as client:
            for method, argument, value in CASES:
                with pytest.raises((ValueError, TypeError), match=rf"(^|: ){argument}\b"):
                    await ask(client, method, argument, value)

    asyncio.run(main())
    assert not cluster.seen


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option, values in OPTIONS.items() for value in values]
)
def test_a_wrong_option_of_a_client_is_named_before_it_connects(kind, option, value):
    with pytest.raises((ValueError, TypeError), match=rf"(^|: ){option}\b"):
        kind(**({"bootstrap_servers": "127.0.0.1:1"} | {option: value}))


@pytest.mark.parametrize("option", list(StreamOptions.__dataclass_fields__))
@pytest.mark.parametrize("value", [None, b"", 1.5, True, -1, 1 << 63])
def test_a_wrong_stream_option_is_named(option, value):
    with pytest.raises((ValueError, TypeError), match=rf"(^|: ){option}\b"):
        StreamOptions(**{option: value})


@pytest.mark.parametrize("option", ["watch_timeout_ms", "commit_timeout_ms", "read_ahead_bytes"])
@pytest.mark.parametrize("least", [1])
def test_the_least_that_is_said_to_be_taken_is_taken(option, least):
    assert getattr(StreamOptions(**{option: least}), option) == least


def test_a_secret_is_bytes():
    with pytest.raises(TypeError, match="secret"):
        ClusterSecret("x" * 64)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_both_clients_take_the_same_arguments(method):
    assert arguments_of(Client, method) == arguments_of(AsyncClient, method)


def test_both_clients_take_the_same_options():
    ours, theirs = (dict(inspect.signature(kind).parameters) for kind in (Client, AsyncClient))
    theirs.pop("open_pipeline")  # for tests: an asyncio client connects later
    assert ours == theirs


CODES = [value for name, value in vars(result_codes).items() if name.isupper() and name == value]


@pytest.mark.parametrize("code", CODES)
def test_codes_of_what_is_missing_or_taken_have_exceptions_of_their_own(code):
    answer = Response(client_id=bytes(16), call_id=1, shard=0, index=1, status=code, message="m", result=None)
    error = error_of(answer, DeleteVolume(volume="v"))
    assert isinstance(error, NotFound) == code.endswith("_NOT_FOUND")
    assert isinstance(error, Exists) == code.endswith("_ALREADY_EXISTS")


def test_what_is_missing_or_taken_is_still_a_failed_request(client):
    client.create_volume("v")
    with pytest.raises(Exists, match="VOLUME_ALREADY_EXISTS") as taken:
        client.create_volume("v")
    with pytest.raises(NotFound, match="BUCKET_NOT_FOUND"):
        client.delete_bucket("v", "b")
    assert isinstance(taken.value, RequestFailed)


def test_an_invalid_argument_can_be_pickled():
    error = pickle.loads(pickle.dumps(InvalidArgument("limit", "must be at least 1, not 0")))
    assert (error.argument, str(error)) == ("limit", "INVALID_REQUEST: limit must be at least 1, not 0")


def test_names_of_the_sdk_are_documented():
    without = [
        name for name in producers.__all__ if isinstance(value := getattr(producers, name), type) and not value.__doc__
    ]
    assert without == []


MOST = (1 << 63) - 1
TAKEN: dict[str, dict[str, tuple[Any, ...]]] = {
    "create_volume": {"quota_in_bytes": (-1, 1, MOST), "quota_in_namespace": (-1, 1, MOST)},
    "set_volume_property": {"quota_in_bytes": (None, -1, 1, MOST), "owner": (None, "o")},
    "set_bucket_property": {"quota_in_namespace": (None, -1, 1, MOST), "owner": (None, "o")},
    "create_key": {"size": (0, MOST), "metadata": (None, {}, {"a": "b"})},
    "allocate_block": {"session_id": (0, MOST), "excluded_pipelines": ([], ("p",))},
    "commit_key": {"session_id": (0, MOST), "size": (0, MOST), "blocks": ([],)},
    "put_key": {"data": (b"", b"x"), "metadata": (None, {}, {"a": "b"})},
    "log_digest_base": {
        "shard": (0, 1023), "index": (0, MOST), "slots": ([], [0, (1 << 31) - 1]), "sums": ([], [-MOST - 1, MOST]),
        "force": (True, False),
    },
}  # fmt: skip
"""By method and argument: what is just within the limits."""
LIMITS: dict[str, tuple[Any, ...]] = {
    "deadline_ms": (1, 300_000), "max_in_flight": (1,), "max_linger_ms": (0, 0.5, 1000), "connect_timeout_ms": (1,),
    "caller": ("me",), "bootstrap_servers": (" b:1,",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "argument", "value"),
    [(method, name, value) for method, named in TAKEN.items() for name, values in named.items() for value in values],
)
def test_what_is_just_within_the_limits_is_taken(method, argument, value):
    body = getattr(bodies, method)(**defaults(method) | {argument: value})
    if argument != "force":
        expected = list(value) if isinstance(value, tuple) else {} if argument == "metadata" and not value else value
        assert getattr(body, argument) == expected


def defaults(method):
    """Return arguments of a request that are right."""
    words = {
        "session_id": 1, "size": 1, "blocks": [], "data": b"x", "metadata": None, "excluded_pipelines": [], "shard": 1, "index": 1,
        "slots": [1], "sums": [1], "force": False, "quota_in_bytes": -1, "quota_in_namespace": -1,
    }  # fmt: skip
    return {name: words.get(name, name) for name in inspect.signature(getattr(bodies, method)).parameters}


def test_a_digest_base_that_is_forced_says_so():
    given = defaults("log_digest_base")
    assert bodies.log_digest_base(**given).basis == "basis"
    assert bodies.log_digest_base(**given | {"force": True}).basis == FORCED + "basis"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in LIMITS.items() for value in values])
def test_settings_just_within_the_limits_are_taken(name, value):
    given = {
        "bootstrap_servers": "b:1", "caller": None, "deadline_ms": 1_000, "max_in_flight": 10, "max_linger_ms": 1,
        "connect_timeout_ms": 1_000,
    }  # fmt: skip
    settings = make_settings(**given | {name: value})
    assert value in {getattr(settings, name, None), getattr(settings.policy, name, None)}


@pytest.mark.parametrize(
    "wrong",
    [{"bootstrap_servers": ""}, {"max_linger_ms": -1}, {"max_linger_ms": 1000.5}, {"connect_timeout_ms": 0}],
    ids=str,
)
def test_settings_that_are_made_otherwise_have_the_same_limits(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RequestSettings(**{"bootstrap_servers": "b:1", "caller": "me", "policy": Policy()} | wrong)


PAGES: dict[str, tuple[str, ...]] = {
    "list_volumes": (), "list_buckets": ("volume",), "list_keys": ("volume", "bucket"),
    "list_snapshots": ("volume", "bucket"),
}  # fmt: skip


@pytest.mark.parametrize("method", PAGES)
def test_a_listing_refuses_what_is_wrong_when_it_is_called_and_not_when_it_is_read(client, method):
    right = dict.fromkeys(PAGES[method], "name")
    assert iter(getattr(client, method)(**right))
    for name in (*PAGES[method], "prefix", "start_after"):
        with pytest.raises(TypeError, match=name):
            getattr(client, method)(**right | {name: 1})
    for name, value in (("consistency", "perhaps"), ("limit", 0)):
        with pytest.raises(ValueError, match=name):
            getattr(client, method)(**right | {name: value})
