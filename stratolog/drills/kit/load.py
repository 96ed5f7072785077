"""A drill's own light load: a few writers, a volume named for the drill, a journal of acknowledged writes.

The volume lies in the drill's shard. :func:`own_load` deletes the volume at the end. Rows that any deletion leaves
behind stay (rows of deletedTable, retry rows until they expire).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

from producers.client import Client
from producers.errors import RequestFailed, StratologError
from producers.requests.keys import fit_blocks, session_of
from schemas.records.messages import CommitKey, CreateKey, DeleteKey
from schemas.sharding import shard_of
from stratolog.configuration.settings import Settings
from stratolog.drills.core.journal import Journal, Write
from stratolog.drills.core.report import StepFailed
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.session import Session
from stratolog.local.processes import wait_until
from stratolog.nodes.node_http import url_of

BUCKET = "load"
WRITERS = 2
WRITES_BEFORE = 20
"""Acknowledged writes that a drill waits for before it does anything."""
PACE_S = 0.02
"""Seconds that each writer waits between two keys, so that the load stays light for the machine's users."""
DEADLINE_MS = 120_000
WAIT_S = 120.0
REMOVE_IN_FLIGHT = 200
PUT_IN_FLIGHT = 32
PAGE_ENTRIES = 1_000


def volume_name(drill: str, shard: int, shards: int) -> str:
    """Return a fresh name for a volume in ``shard``; the name says which drill made it."""
    mark = os.urandom(3).hex()
    names = (f"drill-{drill}-{mark}-{number}" for number in count())
    return next(name for name in names if shard_of(name, shards) == shard)


@contextmanager
def client_of(settings: Settings, deadline_ms: int = DEADLINE_MS, *, operator: bool = False) -> Iterator[Client]:
    """Open a client whose calls outlast a failover.

    At its end the client soon gives up unanswered calls. An ``operator``'s client has the cluster's secret.
    """
    credentials = settings.credentials()
    client = Client(
        settings.connection, caller=settings.caller if credentials is None else None, deadline_ms=deadline_ms,
        read_from=[url_of(node.address) for node in settings.nodes], tls=settings.tls_files(),
        cluster_secret=settings.secret() if operator else None, credentials=credentials,
    )  # fmt: skip
    client.close_timeout_ms = 5_000
    with client:
        yield client


class Load:
    """Writes from construction until :meth:`stop`."""

    def __init__(self, client: Client, volume: str, *, writers: int = WRITERS) -> None:
        """Create volume and bucket, and begin."""
        self.client = client
        self.volume = volume
        self.journal = Journal()
        self._stop = threading.Event()
        client.create_volume(volume)
        client.create_bucket(volume, BUCKET)
        self._threads = [threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(writers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each writer finish its request; raises StepFailed if one hangs."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * DEADLINE_MS / 1000)
            if thread.is_alive():
                raise StepFailed("a writer of the drill's load hangs")

    def wait_more(self, number: int) -> None:
        """Wait until ``number`` more keys are acknowledged; raises StepFailed with what failed."""
        wanted = len(self.journal.acknowledged) + number
        if not wait_until(lambda: len(self.journal.acknowledged) >= wanted, WAIT_S):
            failed = f"; failed: {self.journal.failures[-1]}" if self.journal.failures else ""
            raise StepFailed(
                f"{len(self.journal.acknowledged)} of {wanted} writes acknowledged in {WAIT_S:.0f} s{failed}"
            )

    def _write(self, writer: int) -> None:
        for number in count():
            if self._stop.is_set():
                return
            key, size = f"writer-{writer}/{number:06d}", 1 + number % 7
            try:
                self.put(key, size)
            except StratologError as error:
                self.journal.failures.append(str(error))
            self._stop.wait(PACE_S)

    def put(self, key: str, size: int) -> None:
        """Write one key, with its entry in the journal; raises one of ``producers.errors``."""
        self.journal.tried[key] = size
        index = put_key(self.client, self.volume, key, size)
        self.journal.acknowledged[key] = Write(key=key, size=size, index=index, acknowledged_s=time.monotonic())

    def put_many(self, number: int, name_bytes: int) -> None:
        """Write keys with long names, which no compression makes small, many at once; they are in the journal, too."""
        names = [f"long/{os.urandom(name_bytes // 2).hex()}" for _ in range(number)]
        with ThreadPoolExecutor(PUT_IN_FLIGHT, thread_name_prefix="drill-bulk") as threads:
            for done in [threads.submit(self.put, name, 1) for name in names]:
                done.result()

    def give_up(self) -> None:
        """Tell the writers to end, and do not wait for them."""
        self._stop.set()


@contextmanager
def own_load(session: Session, cluster: Cluster, drill: str, shard: int) -> Iterator[Load]:
    """Write to a volume of the drill's own in ``shard``; the volume is deleted however the drill ends."""
    settings = cluster.settings
    volume = volume_name(drill, shard, settings.shards)
    with client_of(settings) as client:
        with session.step(f"write keys to /{volume}, shard {shard}"):
            remove = session.touching(f"volume {volume}, of this drill's own", lambda: removed(settings, volume))
            load = Load(client, volume)
        try:
            load.wait_more(WRITES_BEFORE)
            yield load
        finally:
            load.give_up()
    with session.step("delete the drill's volume"):
        remove()


def removed(settings: Settings, volume: str) -> str:
    """Delete a volume with a new client, because the drill's client may be closed by now."""
    try:
        with client_of(settings) as client:
            return remove_volume(client, volume, BUCKET)
    except StratologError as error:
        return f"{volume} stays: {error}"


def put_key(client: Client, volume: str, key: str, size: int, bucket: str = BUCKET) -> int:
    """Create and commit a key; return the index of its commit."""
    session = session_of(client.call(CreateKey(volume=volume, bucket=bucket, key=key, size=size)))
    body = CommitKey(
        volume=volume, bucket=bucket, key=key, session_id=session.session_id, size=size,
        blocks=fit_blocks(session.blocks, size),
    )  # fmt: skip
    return client.call(body).index


def remove_volume(client: Client, volume: str, bucket: str) -> str:
    """Delete a volume of one bucket with all its keys; say how that ended."""
    try:
        keys = [entry.key for entry in client.list_keys(volume, bucket)]
        for start in range(0, len(keys), REMOVE_IN_FLIGHT):
            chunk = keys[start : start + REMOVE_IN_FLIGHT]
            for future in [client.submit(DeleteKey(volume=volume, bucket=bucket, key=key)) for key in chunk]:
                future.result()
        client.delete_bucket(volume, bucket)
        client.delete_volume(volume)
    except RequestFailed as error:
        if error.status.endswith("_NOT_FOUND"):
            return f"{volume} is not there"
        return f"{volume} stays: {error}"
    except StratologError as error:
        return f"{volume} stays: {error}"
    return f"{volume} and its {len(keys)} keys are deleted"


def listed(cluster: Cluster, node: str, volume: str, bucket: str = BUCKET) -> dict[str, int]:
    """Return what one node has of a bucket: key -> size."""
    path = f"/v1/volumes/{volume}/buckets/{bucket}/keys"
    found: dict[str, int] = {}
    after = ""
    while True:
        answer = cluster.get(node, path, limit=PAGE_ENTRIES, start_after=after, consistency="stale")
        entries: Sequence[dict[str, Any]] = answer["entries"]
        found |= {entry["key"]: entry["size"] for entry in entries}
        if not answer["truncated"]:
            return found
        after = entries[-1]["key"]


def usage(cluster: Cluster, node: str, volume: str, bucket: str = BUCKET) -> dict[str, int]:
    """Return one node's counters of a bucket."""
    return dict(cluster.get(node, f"/v1/volumes/{volume}/buckets/{bucket}", consistency="stale")["usage"])
