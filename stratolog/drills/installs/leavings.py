"""What a kill left of a replica: a copy of all its folders, put in order as the node's start would, opened, scanned."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from replicated_db.core.errors import StopProcess
from replicated_db.shell.bootstrap.bootstrap import installed_of
from replicated_db.shell.bootstrap.install import finish
from stratolog.configuration.settings import Settings
from stratolog.drills.installs.core.stages import ReplicaState
from stratolog.drills.kit.rebuild import opened_replica

EMPTY = ReplicaState(offset=-1, installed=None, is_whole=True)
NOT_COPIED = (".lock", ".transfers")


def left_behind(settings: Settings, database: Path, shard: int) -> ReplicaState:
    """Return what the next start of a node that does not run will find. Raises StepFailed if it cannot be opened."""
    with tempfile.TemporaryDirectory(prefix="stratolog-drill-") as scratch:
        copy = Path(scratch) / database.name
        for path in (database, *database.parent.glob(f"{database.name}.*")):
            if path.is_dir() and path.suffix not in NOT_COPIED:
                shutil.copytree(path, Path(scratch) / path.name)
            elif path.is_file() and path.suffix not in NOT_COPIED:
                shutil.copy2(path, Path(scratch) / path.name)
        finish(copy)
        if not (copy / "CURRENT").is_file():
            return EMPTY
        return _state_of(settings, Path(scratch), shard)


def _state_of(settings: Settings, folder: Path, shard: int) -> ReplicaState:
    with opened_replica(settings, shard, folder) as replica:
        position, stored, snapshot = replica.snapshot()
        try:
            is_whole = replica.scan(snapshot) == stored
        except StopProcess:
            is_whole = False
        finally:
            snapshot.close()
        return ReplicaState(offset=position.offset, installed=installed_of(replica.store), is_whole=is_whole)
