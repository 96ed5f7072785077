"""Reads from the nodes, over HTTP or by the direct door, with fail-over and consistency (design, section 5).

What belongs here: the addresses, the paths of the nodes' HTTP API, and the way from its JSON to rows. The rules:

1. Any node answers for every shard.
2. If a node cannot be reached, or answers 5xx (no leader, not caught up, flagged), the next one is asked. After a
   round of all nodes there is a pause; at the deadline a RetryableError is raised with the last reason.
3. A 4xx is final: RequestFailed with its code.
4. ``session`` reads carry the positions that the client's own responses carried, and see at least those writes.
5. ``node_addresses`` decides which nodes are asked, and in which order.
6. Keys are looked up and listed by the direct door if the client has one (``direct/key_lookups``); what it does not
   answer is asked over HTTP.
7. Each answer names the brokers of its node, if the node is not older. A node of other brokers than the client's, or
   than another node's, is left out: nothing that it says is used.
8. A wait of more than two seconds says what it waits for (``waiting``).
"""

from __future__ import annotations

import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import quote

import httpx

from producers.direct.key_lookups import LookUp, page_of, rows_of
from producers.errors import (
    CLIENT_CLOSED,
    NOT_CONNECTED,
    ClientClosed,
    InvalidArgument,
    NotConnected,
    NotFound,
    RequestFailed,
    RetryableError,
    failure,
)
from producers.reads import snapshot_diffs
from producers.reads.call_signer import CallSigner
from producers.reads.node_addresses import Find, NodeAddresses
from producers.reads.read_views import (
    PAGE_ENTRIES,
    AclView,
    BucketView,
    KeyView,
    ListedBucket,
    ListedVolume,
    Page,
    Pages,
    Row,
    SnapshotDiffEntry,
    SnapshotView,
    TokenGrant,
    UsageView,
    View,
    VolumeView,
)
from producers.reads.read_words import ROOT, asked, missing
from producers.reads.snapshot_diffs import OnProgress, SnapshotDiff, SnapshotDiffProgress
from producers.requests import arguments
from producers.requests.bodies import acl_object
from producers.requests.core.one_cluster import OneCluster
from producers.requests.listed_page import ListedPage
from producers.waiting import SlowWait
from schemas.access.credentials import Credentials
from schemas.codecs.codec import Undecodable, decode_as
from schemas.door.frames import MAX_READ_KEYS
from schemas.kafka.brokers_id import BROKERS_HEADER
from schemas.records.door import DoorRows
from schemas.records.rows import BlockLocation, BucketInfo, KeyInfo, SnapshotInfo, VolumeInfo
from schemas.result_codes import (
    INTERNAL_ERROR,
    INVALID_BUCKET_NAME,
    INVALID_REQUEST,
    INVALID_SNAPSHOT_ERROR,
    INVALID_VOLUME_NAME,
    KEY_NOT_FOUND,
    OK,
)
from schemas.security.certificates import AN_OM
from schemas.security.tls import ProcessTls, verify_of
from schemas.settings.table import CommandSettings
from transport.processes import begins_anew_in_forks
from transport.waiting.core.backoff import Backoff
from transport.waiting.daemon_threads import DaemonThreads
from transport.waiting.deadline import Deadline

Consistency = Literal["linearizable", "session", "stale"]
"""``linearizable``: sees every write acknowledged before; ``session``: sees my own; ``stale``: whatever is there."""
CONSISTENCIES: tuple[str, ...] = get_args(Consistency)
DEFAULT_CONSISTENCY: Consistency = "linearizable"
PAUSES = Backoff(first_s=0.05, last_s=1.0)
"""Between two rounds of all nodes."""
REQUEST_TIMEOUT_MS = 10_000
"""Longest time for a node's answer before the next node is asked."""
COUNT_TIMEOUT_MS = 600_000
"""Longest time for a node to count a bucket's keys: about fifty million of them."""
CONNECT_TIMEOUT_MS = 2_000
"""Longest time for a node to accept a connection: a node that listens accepts at once."""
TOKENS_DEADLINE_MS = 10_000
"""Longest time for the question for a key's block tokens: a stream may wait meanwhile."""
NAMING_S = 1.0
"""How long a new client waits for the nodes that it was given to say whose brokers they are at."""
MAX_NAMING = 16
"""Nodes that a new client asks at once for that."""
HEALTH_PATH = "/health"
MIN_ASK_S = 0.1
"""A node's shortest time for an answer, even at the deadline, so that the error names its fault."""

AnyRow = TypeVar("AnyRow", bound=VolumeInfo | BucketInfo | KeyInfo | SnapshotInfo | SnapshotDiffEntry | BlockLocation)
"""A row of an answer, or a block in one."""


class Reads:
    """Reads from the nodes at ``addresses`` (``http://host:port``); safe to share between threads.

    ``positions`` returns the (shard, index) of the caller's own writes, for ``session`` reads; ``find`` returns the
    nodes' addresses, if none are given. With ``tls`` the nodes must prove who they are. With ``credentials`` every call
    is signed. Every read raises RequestFailed (4xx: NotFound for VOLUME_NOT_FOUND, …), NotConnected or RetryableError
    (no answer within ``deadline_ms``), and for arguments TypeError or InvalidArgument (a ValueError).

    >>> reads = Reads(["http://127.0.0.1:9871"], deadline_ms=5000)
    >>> reads.volume_info("vol1", consistency="stale").info.owner  # doctest: +SKIP
    'alice'
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        deadline_ms: int = CommandSettings.request_timeout_ms,
        positions: Callable[[], Mapping[int, int]] = dict,
        find: Find | None = None,
        tls: ProcessTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._nodes = NodeAddresses(addresses, find, is_secure=tls is not None)
        self._deadline_ms = deadline_ms
        self._positions = positions
        self._look_up: LookUp | None = None
        self._signer = None if credentials is None else CallSigner(credentials)
        self.cluster = OneCluster()
        """The cluster that the nodes, and the client's brokers, name."""
        self._tls = tls
        self._closed = False
        self.begin_anew()
        begins_anew_in_forks(self)

    def begin_anew(self) -> None:
        """Have no connection to any node: an answer of HTTP carries no number, so each process has its own."""
        self._lock = threading.Lock()
        self._open_http: httpx.Client | None = None

    @property
    def _http(self) -> httpx.Client:
        """Return the connections of this process; they are made at its first use of them."""
        with self._lock:
            if self._open_http is None:
                self._open_http = httpx.Client(
                    timeout=REQUEST_TIMEOUT_MS / 1000, trust_env=False, verify=verify_of(self._tls, AN_OM),
                    auth=self._signer,
                )  # fmt: skip
                if self._closed:
                    self._open_http.close()
            return self._open_http

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._deadline_ms)

    def follow(
        self, positions: Callable[[], Mapping[int, int]], look_up: LookUp | None = None,
        cluster: OneCluster | None = None,
    ) -> None:  # fmt: skip
        """Take the positions of ``session`` reads from ``positions`` from now on, and try ``look_up`` before HTTP.

        Raises InvalidArgument if a node that was given is of another ``cluster``, and says so within NAMING_S: whoever
        reads from one cluster and writes into another puts the blocks of one on the other's datanodes.
        """
        self._positions = positions
        self._look_up = look_up
        if cluster is None or cluster is self.cluster:
            return
        self.cluster = cluster
        if cluster.brokers_id and (faults := self._foreign_nodes()):
            raise InvalidArgument("read_from", f"(or nodes) must be nodes of one cluster: {'; '.join(faults)}")

    def _foreign_nodes(self) -> list[str]:
        """Ask the nodes that were given, all at once, whose brokers they are at; return what is wrong with them."""
        given = self._nodes.given
        if not given:
            return []
        threads = DaemonThreads(min(len(given), MAX_NAMING), "stratolog-naming")
        deadline = Deadline.after_s(NAMING_S)
        asked = [threads.submit(self._fault_at, address) for address in given]
        faults = []
        for one in asked:
            with suppress(TimeoutError):  # a node that says nothing now is judged by its first answer
                faults.append(one.result(deadline.left_s))
        threads.shutdown(wait=False)
        return [fault for fault in faults if fault is not None]

    def _fault_at(self, address: str) -> str | None:
        try:
            return self._fault_of(self._http.get(address + HEALTH_PATH, timeout=NAMING_S), address)
        except (httpx.HTTPError, RuntimeError):  # RuntimeError: the client is closed meanwhile
            return None

    def _fault_of(self, answer: httpx.Response, address: str) -> str | None:
        """Return why what a node answers is not used; None if it is of the client's cluster, or does not say."""
        return self.cluster.fault_of("", f"the node at {address}", answer.headers.get(BROKERS_HEADER, ""))

    def close(self) -> None:
        """Close the connections to the nodes."""
        self._closed = True
        self._http.close()

    def volume_info(self, volume: str, *, consistency: Consistency = DEFAULT_CONSISTENCY) -> VolumeView:
        """Read a volume with its counters ``used_namespace`` and ``allotted_bytes``."""
        return _view(VolumeInfo, self._checked_get(_volume_path(volume), {}, consistency))

    def bucket_info(self, volume: str, bucket: str, *, consistency: Consistency = DEFAULT_CONSISTENCY) -> BucketView:
        """Read a bucket with its counters ``used_bytes`` and ``used_namespace``."""
        return _view(BucketInfo, self._checked_get(_bucket_path(volume, bucket), {}, consistency))

    def usage(self, volume: str, bucket: str = "", *, timeout_ms: int = COUNT_TIMEOUT_MS) -> UsageView:
        """Have a node count a bucket's keys (a volume's buckets), beside what the counters say; for administrators.

        It takes about a minute for five million keys. ``timeout_ms`` is for all nodes together.
        """
        deadline = Deadline.after_ms(arguments.number("timeout_ms", timeout_ms, 1))
        place = {"volume": arguments.text("volume", volume), "bucket": arguments.text("bucket", bucket)}
        given = {**place, "consistency": DEFAULT_CONSISTENCY}
        found = self._asked_in_turn("GET", "/v1/usage", given, deadline, answer_ms=timeout_ms)[1]
        return UsageView(**{one.name: int(found[one.name]) for one in fields(UsageView)})

    def key_info(
        self, volume: str, bucket: str, key: str, *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> KeyView:
        """Read a committed key; ``.snapshot/NAME/KEY`` is the key as it was in the bucket's snapshot NAME."""
        return self._key(volume, bucket, key, consistency, with_bytes=False)[0]

    def key_with_bytes(
        self, volume: str, bucket: str, key: str, *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> tuple[KeyView, bytes | None]:
        """Read a key as :meth:`key_info` does, and its bytes at the same moment; None if they are in blocks.

        Raises RequestFailed also if an inline key's bytes are missing or are not as many as its row says.
        """
        view, data = self._key(volume, bucket, key, consistency, with_bytes=True)
        _check_bytes(view.info, data)
        return view, data

    @property
    def has_door(self) -> bool:
        """Whether keys are looked up by the direct door first."""
        return self._look_up is not None

    def key_to_read(
        self, volume: str, bucket: str, key: str, *, consistency: Consistency = DEFAULT_CONSISTENCY,
        with_bytes: bool = False,
    ) -> tuple[KeyView, bytes | None, TokenGrant | None]:  # fmt: skip
        """Read a key over HTTP, ``with_bytes`` those of an inline key too, and the block tokens to read its blocks.

        The tokens are None if no node gives any. Raises as :meth:`key_with_bytes`.
        """
        parameters = {"name": arguments.text("key", key), "tokens": "true"}
        answer = self._checked_get(
            f"{_bucket_path(volume, bucket)}/key", parameters | ({"bytes": "true"} if with_bytes else {}), consistency
        )
        view, data = _view(KeyInfo, answer), _bytes_of(answer) if with_bytes else None
        if with_bytes:
            _check_bytes(view.info, data)
        return view, data, _grant(answer)

    def open_key_tokens(self, volume: str, bucket: str, key: str, *, session_id: int) -> TokenGrant | None:
        """Return the block tokens to write the blocks of a session of this client; None if no node gives any."""
        parameters = {"name": key, "session_id": str(session_id), "tokens": "true"}
        path = f"{_bucket_path(volume, bucket)}/open-key"
        return _grant(self.get(path, parameters, "session", deadline=Deadline.after_ms(TOKENS_DEADLINE_MS)))

    def _key(
        self, volume: str, bucket: str, key: str, consistency: Consistency, *, with_bytes: bool
    ) -> tuple[KeyView, bytes | None]:
        parameters = {"name": arguments.text("key", key)}
        path = f"{_bucket_path(volume, bucket)}/key"
        arguments.choice("consistency", consistency, CONSISTENCIES)
        deadline = self._deadline()
        if (found := self._rows(volume, bucket, [key], consistency, deadline, with_bytes=with_bytes)) is None:
            asked_for = parameters | ({"bytes": "true"} if with_bytes else {})
            answer = self.get(path, asked_for, consistency, deadline=deadline)
            return _view(KeyInfo, answer), _bytes_of(answer)
        view = _views(found)[0] if found.status == OK else None
        if view is None:
            status = KEY_NOT_FOUND if found.status == OK else found.status
            thing = missing(status, path, parameters)
            raise failure(status, found.message if thing is None else f"{thing} does not exist")
        return view, found.data[0] if with_bytes else None

    def key_infos(
        self, volume: str, bucket: str, keys: Sequence[str], *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> list[KeyView | None]:
        """Read keys of one bucket, None for each that does not exist; each thousand of them at one moment if the client
        has ``nodes``, else one by one.
        """
        _bucket_path(volume, bucket)
        names = [arguments.text("keys", key) for key in arguments.sequence("keys", keys, str, "str")]
        arguments.choice("consistency", consistency, CONSISTENCIES)
        found: list[KeyView | None] = []
        for start in range(0, len(names), MAX_READ_KEYS):
            some = names[start : start + MAX_READ_KEYS]
            rows = self._rows(volume, bucket, some, consistency, self._deadline())
            if rows is not None and rows.status == OK:
                found += _views(rows)
            else:
                found += [self._info_or_none(volume, bucket, name, consistency) for name in some]
        return found

    def _info_or_none(self, volume: str, bucket: str, key: str, consistency: Consistency) -> KeyView | None:
        try:
            return self.key_info(volume, bucket, key, consistency=consistency)
        except NotFound as error:
            if error.status != KEY_NOT_FOUND:
                raise
            return None

    def _rows(
        self, volume: str, bucket: str, keys: Sequence[str], consistency: str, deadline: Deadline, *,
        with_bytes: bool = False,
    ) -> DoorRows | None:  # fmt: skip
        if self._look_up is None:
            return None
        timeout_s = _answer_s(deadline)
        return rows_of(self._look_up, volume, bucket, keys, consistency, timeout_s, with_bytes=with_bytes)

    def snapshot_info(
        self, volume: str, bucket: str, snapshot: str, *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> SnapshotView:
        """Read a snapshot with its counters ``disk_files``, ``disk_bytes`` and ``only_disk_bytes``.

        They are those of the node that answers.
        """
        name = _segment("snapshot", snapshot, INVALID_SNAPSHOT_ERROR)
        path = f"{_bucket_path(volume, bucket)}/snapshots/{name}"
        return _view(SnapshotInfo, self._checked_get(path, {}, consistency))

    def acl(
        self, volume: str, bucket: str = "", *, key: str = "", prefix: str = "",
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> AclView:  # fmt: skip
        """Read the access control list and the owner of a volume, bucket, key or prefix."""
        kind, name = acl_object(volume, bucket, key, prefix)
        given = {"kind": kind, "volume": volume, "bucket": bucket, "name": name}
        found = self._checked_get("/v1/acl", {name: value for name, value in given.items() if value}, consistency)
        return AclView(owner=str(found["owner"]), acls=[str(acl) for acl in found["acls"]])

    def list_volumes(
        self, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[ListedVolume]:  # fmt: skip
        """Iterate over the volumes of all shards by name, ``limit`` at most; each page is read when it is needed.

        A page is a snapshot of each shard, not of all together, and pages are read at different times.
        """
        return self.volumes(prefix, start_after, limit, consistency).entries()

    def list_buckets(
        self, volume: str, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[ListedBucket]:  # fmt: skip
        """Iterate over a volume's buckets by name, ``limit`` at most; each page is read when it is needed."""
        return self.buckets(volume, prefix, start_after, limit, consistency).entries()

    def list_keys(
        self, volume: str, bucket: str, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[KeyInfo]:  # fmt: skip
        """Iterate over a bucket's keys by name, ``limit`` at most; each page is read when it is needed.

        The keys come without blocks: ``key_info`` returns those. A prefix ``.snapshot/NAME/…`` lists the keys of a
        snapshot, under names that begin so.
        """
        return self.keys(volume, bucket, prefix, start_after, limit, consistency).entries()

    def list_snapshots(
        self, volume: str, bucket: str, *, prefix: str = "", start_after: str = "", limit: int | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[SnapshotInfo]:  # fmt: skip
        """Iterate over a bucket's snapshots by name, ``limit`` at most; each page is read when it is needed.

        Deleted snapshots are not listed.
        """
        return self.snapshots(volume, bucket, prefix, start_after, limit, consistency).entries()

    def volumes(
        self, prefix: str, start_after: str, limit: int | None, consistency: Consistency
    ) -> Pages[ListedVolume]:
        """Return the pages of the volumes, all still unread; raises TypeError or InvalidArgument."""

        def read(after: str, wanted: int) -> Page[ListedVolume]:
            return self.volumes_page(prefix=prefix, start_after=after, limit=wanted, consistency=consistency)

        _check_listing(prefix, start_after, consistency)
        return Pages(read, start_after, arguments.limit("limit", limit))

    def buckets(
        self, volume: str, prefix: str, start_after: str, limit: int | None, consistency: Consistency
    ) -> Pages[ListedBucket]:
        """Return the pages of a volume's buckets, all still unread; raises as :meth:`volumes`."""

        def read(after: str, wanted: int) -> Page[ListedBucket]:
            return self.buckets_page(volume, prefix=prefix, start_after=after, limit=wanted, consistency=consistency)

        arguments.text("volume", volume)
        _check_listing(prefix, start_after, consistency)
        return Pages(read, start_after, arguments.limit("limit", limit))

    def keys(
        self, volume: str, bucket: str, prefix: str, start_after: str, limit: int | None, consistency: Consistency
    ) -> Pages[KeyInfo]:
        """Return the pages of a bucket's keys, all still unread; raises as :meth:`volumes`."""

        def read(after: str, wanted: int) -> Page[KeyInfo]:
            return self.keys_page(
                volume, bucket, prefix=prefix, start_after=after, limit=wanted, consistency=consistency
            )

        arguments.text("volume", volume)
        arguments.text("bucket", bucket)
        _check_listing(prefix, start_after, consistency)
        return Pages(read, start_after, arguments.limit("limit", limit))

    def snapshots(
        self, volume: str, bucket: str, prefix: str, start_after: str, limit: int | None, consistency: Consistency
    ) -> Pages[SnapshotInfo]:
        """Return the pages of a bucket's snapshots, all still unread; raises as :meth:`volumes`."""

        def read(after: str, wanted: int) -> Page[SnapshotInfo]:
            return self.snapshots_page(
                volume, bucket, prefix=prefix, start_after=after, limit=wanted, consistency=consistency
            )

        arguments.text("volume", volume)
        arguments.text("bucket", bucket)
        _check_listing(prefix, start_after, consistency)
        return Pages(read, start_after, arguments.limit("limit", limit))

    def volumes_page(
        self, *, prefix: str = "", start_after: str = "", limit: int = PAGE_ENTRIES,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Page[ListedVolume]:  # fmt: skip
        """Read one page of the volumes, of ``limit`` entries at most (PAGE_ENTRIES)."""
        return _page(ListedVolume, "volume", self._listing(ROOT, prefix, start_after, limit, consistency))

    def buckets_page(
        self, volume: str, *, prefix: str = "", start_after: str = "", limit: int = PAGE_ENTRIES,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Page[ListedBucket]:  # fmt: skip
        """Read one page of a volume's buckets, of ``limit`` entries at most (PAGE_ENTRIES)."""
        path = f"{_volume_path(volume)}/buckets"
        return _page(ListedBucket, "bucket", self._listing(path, prefix, start_after, limit, consistency))

    def keys_page(
        self, volume: str, bucket: str, *, prefix: str = "", start_after: str = "", limit: int = PAGE_ENTRIES,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Page[KeyInfo]:  # fmt: skip
        """Read one page of a bucket's keys, of ``limit`` entries at most (PAGE_ENTRIES)."""
        path = f"{_bucket_path(volume, bucket)}/keys"
        deadline = self._deadline()
        found = self._door_page(volume, bucket, prefix, start_after, limit, consistency, deadline)
        if found is not None:
            return found
        return _page(KeyInfo, "key", self._listing(path, prefix, start_after, limit, consistency, deadline))

    def _door_page(
        self, volume: str, bucket: str, prefix: str, start_after: str, limit: int, consistency: Consistency,
        deadline: Deadline,
    ) -> Page[KeyInfo] | None:  # fmt: skip
        """Read a page by the direct door; None if HTTP is to be asked."""
        if self._look_up is None:
            return None
        _check_listing(prefix, start_after, consistency)
        page = ListedPage(
            prefix=prefix, start_after=start_after, limit=arguments.number("limit", limit, 1, PAGE_ENTRIES)
        )
        found = page_of(self._look_up, volume, bucket, page, consistency, _answer_s(deadline))
        if found is None:
            return None
        if found.status != OK:
            path = f"{_bucket_path(volume, bucket)}/keys"
            thing = missing(found.status, path, {})
            raise failure(found.status, found.message if thing is None else f"{thing} does not exist")
        # As over HTTP, listed keys come without their blocks.
        keys = [replace(view.info, blocks=[]) for view in _views(found) if view is not None]
        return Page(entries=keys, next_after=keys[-1].key if found.more else None, positions={found.shard: found.index})

    def snapshots_page(
        self, volume: str, bucket: str, *, prefix: str = "", start_after: str = "", limit: int = PAGE_ENTRIES,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Page[SnapshotInfo]:  # fmt: skip
        """Read one page of a bucket's snapshots, of ``limit`` entries at most (PAGE_ENTRIES)."""
        path = f"{_bucket_path(volume, bucket)}/snapshots"
        return _page(SnapshotInfo, "snapshot", self._listing(path, prefix, start_after, limit, consistency))

    def snapshot_diff(
        self, volume: str, bucket: str, from_snapshot: str, to_snapshot: str | None, *,
        page_size: int = PAGE_ENTRIES, on_progress: OnProgress | None = None,
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Pages[SnapshotDiffEntry]:  # fmt: skip
        """Return the pages of what changed between two snapshots (None: now), all still unread.

        Reading the first page begins a job on a node, and waits until it is done (``producers.reads.snapshot_diffs``).
        """
        arguments.choice("consistency", consistency, CONSISTENCIES)
        if on_progress is not None and not callable(on_progress):
            raise TypeError(f"on_progress must be callable, not {type(on_progress).__name__}")
        parameters = {"from": arguments.text("from_snapshot", from_snapshot)}
        if to_snapshot is not None:
            parameters["to"] = arguments.text("to_snapshot", to_snapshot)
        path = f"{_bucket_path(volume, bucket)}/snapshot-diffs"
        parameters["consistency"] = consistency
        diff = SnapshotDiff(
            self, path, parameters, asked(path, parameters), page_size=page_size, on_progress=on_progress
        )
        return Pages(diff.page, "", None)

    def cancel_snapshot_diff(self, job: str) -> SnapshotDiffProgress:
        """Cancel a snapshot diff by its id; raises NotFound if no node has it, RequestFailed if it has ended."""
        snapshot_diffs.check_job(job)
        return snapshot_diffs.cancel(self, self._nodes.in_order(self._deadline()), job)

    def _listing(
        self, path: str, prefix: str, start_after: str, limit: int, consistency: Consistency,
        deadline: Deadline | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        _check_listing(prefix, start_after, consistency)
        wanted = arguments.number("limit", limit, 1, PAGE_ENTRIES)
        parameters = {"prefix": prefix, "start_after": start_after, "limit": str(wanted)}
        given = {name: value for name, value in parameters.items() if value}
        return self.get(path, given, consistency, deadline=deadline)

    def _checked_get(self, path: str, parameters: Mapping[str, str], consistency: Consistency) -> dict[str, Any]:
        arguments.choice("consistency", consistency, CONSISTENCIES)
        return self.get(path, parameters, consistency)

    def get(
        self, path: str, parameters: Mapping[str, str], consistency: Consistency, *, deadline: Deadline | None = None
    ) -> dict[str, Any]:
        """Ask the nodes in turn for ``path``; return the first JSON object. ``deadline`` replaces the client's."""
        return self._asked_in_turn("GET", path, dict(parameters) | {"consistency": consistency}, deadline)[1]

    def post_to_any(self, path: str, parameters: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        """Post to the nodes in turn, for what may be begun twice; return who took it, and the answer."""
        return self._asked_in_turn("POST", path, parameters)

    def ask_at(self, method: str, address: str, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Ask one node once; raises RetryableError, NotConnected among them, and RequestFailed."""
        answer = self._ask(method, address, path, parameters, REQUEST_TIMEOUT_MS / 1000)
        if isinstance(answer, RetryableError):
            raise answer
        return answer

    def _asked_in_turn(
        self, method: str, path: str, parameters: Mapping[str, str], deadline: Deadline | None = None,
        answer_ms: int = REQUEST_TIMEOUT_MS,
    ) -> tuple[str, dict[str, Any]]:  # fmt: skip
        """Ask the nodes in turn until the deadline; return the address of the first that answers, and its answer.

        ``answer_ms``: how long one of them may take.
        """
        query = dict(parameters)
        if query.get("consistency") == "session" and (positions := self._positions()):
            query["session"] = ",".join(f"{shard}:{index}" for shard, index in sorted(positions.items()))
        until = deadline or self._deadline()
        patience = SlowWait(asked(path, query))
        rounds = 0
        while True:
            outcome = self._round(method, path, query, until, answer_ms)
            if not isinstance(outcome, RetryableError):
                return outcome
            rounds += 1
            pause_s = PAUSES.pause_s(rounds)
            if not until.has_room_for(pause_s) or not self._nodes.any_hope:
                raise type(outcome)(outcome.status, f"{asked(path, query)}: {outcome.message}")
            patience.still(outcome)
            time.sleep(pause_s)

    def _round(
        self, method: str, path: str, query: Mapping[str, str], deadline: Deadline, answer_ms: int
    ) -> tuple[str, dict[str, Any]] | RetryableError:
        """Ask each node once, the one that answered last first; return who answered what, or the last reason."""
        reason: RetryableError = NotConnected(NOT_CONNECTED, "no node was asked")
        try:
            addresses = self._nodes.in_order(deadline)
        except RetryableError as error:
            return error
        for address in addresses:
            outcome = self._ask(method, address, path, query, _answer_s(deadline, answer_ms))
            if not isinstance(outcome, RetryableError):
                self._nodes.answered(address)
                return address, outcome
            reason = outcome
        self._nodes.none_answered()
        return reason

    def _ask(
        self, method: str, address: str, path: str, query: Mapping[str, str], timeout_s: float
    ) -> dict[str, Any] | RetryableError:
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_MS / 1000))
        try:
            answer = self._http.request(method, address + path, params=query, timeout=timeout)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise RequestFailed(
                INVALID_REQUEST, f"{asked(path, query)}: a name is too long, or no Unicode text: {error}"
            ) from error
        except httpx.TransportError as error:
            return NotConnected(NOT_CONNECTED, f"{address}: {str(error) or type(error).__name__}")
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise ClientClosed(CLIENT_CLOSED, "the client is closed") from error
        if (fault := self._fault_of(answer, address)) is not None:
            return NotConnected(NOT_CONNECTED, fault)
        what = asked(path, query)
        if answer.status_code == httpx.codes.OK:
            return _object(answer, f"{what}: {address}")
        code, message, is_ours = _error(answer)
        if answer.is_server_error:
            return RetryableError(code, f"{address}: {message}")
        if (thing := missing(code, path, query)) is not None:
            raise failure(code, f"{thing} does not exist")
        # A node's own message names the input; a proxy's does not.
        raise failure(code, message if is_ours else f"{what}: {address}: {message}")


def _answer_s(deadline: Deadline, answer_ms: int = REQUEST_TIMEOUT_MS) -> float:
    """Return how long one node may take to answer, ``answer_ms`` at most."""
    return max(deadline.sooner(answer_ms / 1000).left_s, MIN_ASK_S)


def _volume_path(volume: str) -> str:
    """Return the path of a volume; raises TypeError, and a node's refusal for a name that no path can carry."""
    return f"{ROOT}/{_segment('volume', volume, INVALID_VOLUME_NAME)}"


def _bucket_path(volume: str, bucket: str) -> str:
    """Return the path of a bucket; raises as :func:`_volume_path`."""
    return f"{_volume_path(volume)}/buckets/{_segment('bucket', bucket, INVALID_BUCKET_NAME)}"


def _segment(what: str, name: str, illegal: str) -> str:
    """Return a name as one segment of a path. Names with a meaning in paths are refused as a node refuses them."""
    if arguments.text(what, name) in {"", ".", ".."}:
        raise RequestFailed(illegal, f"illegal {what} name {name!r}: it has {len(name)} characters, which is too few")
    return quote(name, safe="")


def _check_listing(prefix: str, start_after: str, consistency: Consistency) -> None:
    arguments.text("prefix", prefix)
    arguments.text("start_after", start_after)
    arguments.choice("consistency", consistency, CONSISTENCIES)


def _object(answer: httpx.Response, what: str) -> dict[str, Any]:
    try:
        value = answer.json()
    except ValueError as error:
        raise RequestFailed(INTERNAL_ERROR, f"{what}: the answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestFailed(INTERNAL_ERROR, f"{what}: the answer is not a JSON object")
    return value


def _error(answer: httpx.Response) -> tuple[str, str, bool]:
    """Return code and message of an answer other than 200, and whether a node sent them; a proxy may send neither."""
    try:
        value = answer.json()
        return str(value["error"]), str(value["message"]), True
    except (ValueError, KeyError, TypeError):
        return f"HTTP_{answer.status_code}", answer.text[:200] or answer.reason_phrase, False


def _view(row: type[Row], value: dict[str, Any]) -> View[Row]:
    return View(info=_row(row, value), usage=value.get("usage") or {}, positions=_positions(value))


def _views(found: DoorRows) -> list[KeyView | None]:
    """Return rows as views; raises RequestFailed for one that cannot be read."""
    positions = {found.shard: found.index}
    try:
        infos = [None if row is None else decode_as(KeyInfo, row) for row in found.rows]
    except Undecodable as error:
        raise RequestFailed(INTERNAL_ERROR, f"a node's row cannot be read: {error}") from error
    return [None if info is None else View(info=info, usage={}, positions=positions) for info in infos]


def _bytes_of(value: dict[str, Any]) -> bytes | None:
    """Return the bytes in a key's answer; None if there are none. Raises RequestFailed for what is not base64."""
    try:
        return None if value.get("data") is None else b64decode(value["data"], validate=True)
    except (ValueError, TypeError) as error:
        raise RequestFailed(INTERNAL_ERROR, f"a node's answer has bytes that cannot be read: {error}") from error


def _check_bytes(info: KeyInfo, data: bytes | None) -> None:
    """Raise RequestFailed unless the bytes that came with a key's row are the ones that the row says."""
    wanted = info.size if info.inline else 0
    if len(data or b"") != wanted:
        found = "no bytes" if data is None else f"{len(data)} bytes"
        name = f"/{info.volume}/{info.bucket}/{info.key}"
        raise RequestFailed(INTERNAL_ERROR, f"the row of {name} has {wanted} bytes, and the node found {found}")


def _grant(value: dict[str, Any]) -> TokenGrant | None:
    """Return the block tokens in an answer that has blocks; raises RequestFailed for what is none."""
    given = value.get("block_tokens")
    if given is None:
        return None
    try:
        blocks = [(int(block["container_id"]), int(block["local_id"])) for block in value["blocks"]]
        tokens = [bytes.fromhex(token) for token in given["tokens"]]
        return TokenGrant(tokens=dict(zip(blocks, tokens, strict=True)), lasts_ms=int(given["lasts_ms"]))
    except (KeyError, TypeError, ValueError):
        # Without the value: it may have tokens.
        raise RequestFailed(INTERNAL_ERROR, "a node's answer has block tokens that cannot be read") from None


def _positions(value: dict[str, Any]) -> dict[int, int]:
    return {int(shard): int(index) for shard, index in value.get("positions", {}).items()}


def _page(row: type[Row], name_field: str, value: dict[str, Any]) -> Page[Row]:
    entries = [_row(row, entry) for entry in value.get("entries", [])]
    more = bool(value.get("truncated")) and entries
    # Older nodes do not send it.
    next_after = str(value.get("next_after", getattr(entries[-1], name_field))) if more else None
    return Page(entries=entries, next_after=next_after, positions=_positions(value))


def _row(row: type[AnyRow], value: dict[str, Any]) -> AnyRow:
    """Return a row from its JSON object, without the fields that a newer node added.

    A field with a default may be absent: an older node does not know it.
    """
    wanted = [field for field in fields(row) if field.name != "usage"]
    try:
        known = {
            one.name: value[one.name]
            for one in wanted
            if one.name in value or (one.default is MISSING and one.default_factory is MISSING)
        }
        if "blocks" in known:
            known["blocks"] = [_row(BlockLocation, block) for block in known["blocks"]]
    except KeyError as error:
        raise RequestFailed(INTERNAL_ERROR, f"a node's {row.__name__} lacks the field {error}") from error
    except TypeError as error:
        raise RequestFailed(INTERNAL_ERROR, f"a node's {row.__name__} cannot be read: {error}") from error
    if issubclass(row, ListedVolume | ListedBucket):
        known["usage"] = value.get("usage") or {}
    return row(**known)
