"""A light load in this process: a few keys at a time, journals of what became of them. Tests and drills use it.

A drill writes to a volume named for it, in its shard. :func:`own_load` deletes that volume at the end. Rows that any
deletion leaves behind stay (rows of deletedTable, retry rows until they expire).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any, Self

from producers.client import Client
from producers.errors import RequestFailed, StratologError
from producers.requests.keys import session_of
from schemas.records.messages import CreateKey, DeleteKey, Response
from schemas.sharding import shard_of
from stratolog.configuration.settings import Settings
from stratolog.drills.core.report import StepFailed
from stratolog.drills.kit.cluster import Cluster
from stratolog.drills.kit.core.journal import COMMIT, KEYS_OF_BLOCKS, Journal
from stratolog.drills.kit.session import Session
from stratolog.drills.kit.writer import ChainWriter, commit_of, note_ack
from stratolog.local.processes import wait_until
from stratolog.nodes.node_http import url_of
from transport.waiting.deadline import Deadline

BUCKET = "load"
WRITERS = 2
"""Keys of a volume that are written at a time."""
WRITES_BEFORE = 20
"""Acknowledged writes that a drill waits for before it does anything."""
KEYS_PER_S = 30.0
"""So many keys a second in each volume, so that the load stays light for the machine's users."""
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
    """Writes to volumes, which it creates, from :meth:`start` until :meth:`stop`; in a ``with`` block for its time."""

    def __init__(
        self, client: Client, volumes: Sequence[str], *, in_flight: int = WRITERS, keys_per_s: float = KEYS_PER_S
    ) -> None:  # fmt: skip
        """Create the volumes and their buckets; ``in_flight`` keys of each are written at a time, so many a second."""
        self.client = client
        name = client.client_id.hex()
        self.journals = {volume: Journal(client_id=name, volume=volume, bucket=BUCKET) for volume in volumes}
        for volume in volumes:
            client.create_volume(volume)
            client.create_bucket(volume, BUCKET)
        self._writers = [
            ChainWriter(
                client, journal, volume=volume, bucket=BUCKET, in_flight=in_flight, chains=KEYS_OF_BLOCKS
            )
            for volume, journal in self.journals.items()
        ]  # fmt: skip
        self._threads = [
            threading.Thread(target=writer.run, args=(keys_per_s,), daemon=True, name="load")
            for writer in self._writers
        ]

    @property
    def volume(self) -> str:
        """The volume, of a load that has one."""
        (volume,) = self.journals
        return volume

    @property
    def journal(self) -> Journal:
        """The journal, of a load that has one volume."""
        return self.journals[self.volume]

    def start(self) -> Self:
        """Begin to write."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Let what is in flight have its outcome; raises StepFailed if a writer hangs."""
        self.give_up()
        deadline = Deadline.after_ms(2 * DEADLINE_MS)
        for thread in self._threads:
            thread.join(deadline.left_s)
            if thread.is_alive():
                raise StepFailed("a writer of the load hangs")

    def give_up(self) -> None:
        """Tell the writers to end, and do not wait for them."""
        for writer in self._writers:
            writer.stop.set()

    def __enter__(self) -> Self:
        """Begin to write."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def wait_more(self, number: int, volume: str | None = None) -> None:
        """Wait until ``number`` more keys are acknowledged in a volume (None: in each); raises StepFailed."""
        chosen = list(self.journals.values()) if volume is None else [self.journals[volume]]
        wanted = [(journal, len(journal.acknowledged) + number) for journal in chosen]

        def behind() -> list[str]:
            return [
                f"{journal.volume}: {len(journal.acknowledged)} of {goal} writes acknowledged"
                + (f", failed: {journal.failures[-1]}" if journal.failures else "")
                for journal, goal in wanted
                if len(journal.acknowledged) < goal
            ]

        if not wait_until(lambda: not behind(), WAIT_S):
            raise StepFailed(f"after {WAIT_S:.0f} s, {'; '.join(behind())}")

    def put(self, key: str, size: int) -> None:
        """Write one key with a name of the caller's, with its entry in the journal; raises ``producers.errors``."""
        self.journal.on_tried(key, COMMIT, size)
        note_ack(self.journal, key, COMMIT, put_key(self.client, self.volume, BUCKET, key, size))

    def put_many(self, number: int, name_bytes: int) -> None:
        """Write keys with long names, which no compression makes small, many at once; they are in the journal, too."""
        names = [f"long/{os.urandom(name_bytes // 2).hex()}" for _ in range(number)]
        with ThreadPoolExecutor(PUT_IN_FLIGHT, thread_name_prefix="load-bulk") as threads:
            for done in [threads.submit(self.put, name, 1) for name in names]:
                done.result()


@contextmanager
def own_load(session: Session, cluster: Cluster, drill: str, shard: int) -> Iterator[Load]:
    """Write to a volume of the drill's own in ``shard``; the volume is deleted however the drill ends."""
    settings = cluster.settings
    volume = volume_name(drill, shard, settings.shards)
    with client_of(settings) as client:
        with session.step(f"write keys to /{volume}, shard {shard}"):
            remove = session.touching(f"volume {volume}, of this drill's own", lambda: removed(settings, volume))
            load = Load(client, [volume]).start()
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


def put_key(client: Client, volume: str, bucket: str, key: str, size: int) -> Response:
    """Create and commit a key; return the answer to the commit. Raises one of ``producers.errors``."""
    session = session_of(client.call(CreateKey(volume=volume, bucket=bucket, key=key, size=size)))
    return client.call(commit_of((volume, bucket), key, size, session))


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


def listed(
    cluster: Cluster, node: str, volume: str, bucket: str = BUCKET, consistency: str = "stale"
) -> dict[str, int]:  # fmt: skip
    """Return what one node lists of a bucket, page by page: key -> size."""
    path = f"/v1/volumes/{volume}/buckets/{bucket}/keys"
    found: dict[str, int] = {}
    after = ""
    while True:
        answer = cluster.get(node, path, limit=PAGE_ENTRIES, start_after=after, consistency=consistency)
        entries: Sequence[dict[str, Any]] = answer["entries"]
        found |= {entry["key"]: entry["size"] for entry in entries}
        if not answer["truncated"]:
            return found
        after = entries[-1]["key"]


def usage(cluster: Cluster, node: str, volume: str, bucket: str = BUCKET) -> dict[str, int]:
    """Return one node's counters of a bucket."""
    return dict(cluster.get(node, f"/v1/volumes/{volume}/buckets/{bucket}", consistency="stale")["usage"])
