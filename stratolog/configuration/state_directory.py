"""A state directory: shards as they were at some moment, each one a database that is read and never written.

What belongs here: its layout, and reads from it that look like those from a node (``producers.reads.reads``)::

    state.json      cluster, number of shards, as of what, and for each shard that is there its index, offset and digest
    shard-N/        the shard's RocksDB

``stratolog drill point-in-time`` makes one, ``stratolog sh --at DIR`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from om_processors.errors import OMError
from om_processors.execution.service import OM_FAMILIES
from om_processors.namespace.names import SNAPSHOT_INDICATOR
from om_processors.serving import queries
from om_processors.snapshots.core.snapshot_paths import is_reserved
from producers.errors import failure
from producers.reads.reads import Consistency, Reads
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.rocks import RocksReader
from schemas.result_codes import INVALID_REQUEST, NOT_SUPPORTED_OPERATION
from schemas.sharding import shard_of
from stratolog.errors import UsageError
from transport.waiting.deadline import Deadline

MANIFEST = "state.json"
VERSION = 1
NO_CHECKPOINTS = "a state directory has the rows of snapshots, and not what they hold"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPosition:
    """Where a shard stands in its log, and the log's digest there."""

    index: int
    offset: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a state directory says of itself."""

    cluster: str
    shards: int
    as_of: str
    positions: Mapping[int, ShardPosition]


def write_manifest(
    folder: Path, *, cluster: str, shards: int, as_of: str, positions: Mapping[int, ShardPosition]
) -> None:  # fmt: skip
    """Write the manifest, which makes a folder with databases a state directory."""
    found = {
        "version": VERSION, "cluster": cluster, "shards": shards, "as_of": as_of,
        "positions": {str(shard): asdict(position) for shard, position in positions.items()},
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(found, indent=2) + "\n")


def is_state(folder: Path) -> bool:
    """Whether a folder is a finished state directory."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Return what a state directory says of itself; raises UsageError if it is none."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text())
        if found["version"] != VERSION:
            raise UsageError(f"{path} is of version {found['version']}, not {VERSION}: another Stratolog wrote it")
        positions = {int(shard): ShardPosition(**position) for shard, position in found["positions"].items()}
        return Manifest(
            cluster=found["cluster"], shards=found["shards"], as_of=found["as_of"], positions=positions
        )  # fmt: skip
    except OSError as error:
        raise UsageError(
            f"{folder} is no state directory, as 'stratolog drill point-in-time' makes one: {MANIFEST}: "
            f"{error.strerror}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not readable: {error!r}") from error


@contextmanager
def reads_at(folder: Path) -> Iterator[Reads]:
    """Open reads from a state directory; raises UsageError if it is none, or does not open."""
    manifest = read_manifest(folder)
    readers: dict[int, RocksReader] = {}
    try:
        for shard in manifest.positions:
            readers[shard] = RocksReader(folder / f"shard-{shard}", OM_FAMILIES.names)
    except StoreFailure as error:
        raise UsageError(str(error)) from error
    reads = StateReads(manifest, readers)
    try:
        yield reads
    finally:
        reads.close()
        for reader in readers.values():
            reader.close()


class StateReads(Reads):
    """Reads from a state directory; it holds only one state, so the consistency asked for does not matter."""

    def __init__(self, manifest: Manifest, views: Mapping[int, RocksReader]) -> None:
        super().__init__([])
        self._manifest = manifest
        self._views = views

    def get(
        self,
        path: str,
        parameters: Mapping[str, str],
        consistency: Consistency,  # noqa: ARG002 - Reads' own
        *,
        deadline: Deadline | None = None,  # noqa: ARG002 - Reads' own
    ) -> Json:
        """Answer as a node does; raises RequestFailed."""
        parts = [unquote(part) for part in path.removeprefix("/v1/volumes").split("/") if part]
        try:
            return self._answer(parts, parameters)
        except OMError as error:
            raise failure(error.status, error.message) from error

    def _answer(self, parts: list[str], parameters: Mapping[str, str]) -> Json:
        page = (
            parameters.get("prefix", ""), parameters.get("start_after", ""),
            int(parameters.get("limit", queries.DEFAULT_LIMIT)),
        )  # fmt: skip
        match parts:
            case []:
                listings = [queries.list_volumes(view, *page) for view in self._views.values()]
                return {**queries.merge_listings(listings, page[2]), "positions": self._positions_of(self._views)}
            case [volume]:
                return self._of(volume, lambda view: queries.volume_info(view, volume))
            case [volume, "buckets"]:
                return self._of(volume, lambda view: queries.list_buckets(view, volume, *page))
            case [volume, "buckets", bucket]:
                return self._of(volume, lambda view: queries.bucket_info(view, volume, bucket))
            case [volume, "buckets", bucket, "snapshots"]:
                return self._of(volume, lambda view: queries.list_snapshots(view, volume, bucket, *page))
            case [volume, "buckets", bucket, "snapshots", snapshot]:
                return self._of(volume, lambda view: queries.snapshot_info(view, volume, bucket, snapshot))
            case [_, "buckets", _, "keys"] if page[0].startswith(f"{SNAPSHOT_INDICATOR}/"):
                raise OMError(NOT_SUPPORTED_OPERATION, f"{NO_CHECKPOINTS}: nothing is listed below {page[0]!r}")
            case [_, "buckets", _, "key"] if is_reserved(parameters.get("name", "")):
                raise OMError(NOT_SUPPORTED_OPERATION, f"{NO_CHECKPOINTS}: {parameters['name']!r} cannot be read")
            case [volume, "buckets", bucket, "keys"]:
                return self._of(volume, lambda view: queries.list_keys(view, volume, bucket, *page))
            case [volume, "buckets", bucket, "key"]:
                name = parameters.get("name", "")
                return self._of(volume, lambda view: queries.key_info(view, volume, bucket, name))
            case _:
                raise OMError(INVALID_REQUEST, f"a state directory has no {'/'.join(parts)}")

    def _of(self, volume: str, ask: Callable[[RocksReader], Json]) -> Json:
        shard = shard_of(volume, self._manifest.shards)
        if shard not in self._views:
            there = ", ".join(str(number) for number in self._views)
            raise OMError(
                INVALID_REQUEST, f"volume /{volume} lives in shard {shard}; this state has shard {there} only"
            )
        return {**ask(self._views[shard]), "positions": self._positions_of([shard])}

    def _positions_of(self, shards: Any) -> dict[str, int]:
        return {str(shard): self._manifest.positions[shard].index for shard in shards}
