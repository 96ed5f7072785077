"""A datanode's folder: its owner, its layout (file ``DATA/VERSION``), and the rules for meeting another layout.

``VERSION`` is JSON: ``layout_version``, ``datanode``, ``cluster``, ``upgrade_prepared``, and since the folder's first
start with this software ``brokers_id``, the id of its brokers. It is replaced as a whole
(written aside, fsynced, renamed, directory fsynced), so a reader finds the old one or the new one. ``DATA/LOCK`` is
locked while a process has the folder open.

Rules (:func:`decide`):

1. A folder without VERSION is taken only if it is empty.
2. Another datanode's or another cluster's folder is refused; so is one whose brokers were others, once they are known
   (:meth:`DataFolder.check_brokers`): clusters may have one name.
3. A newer layout is refused: the software is too old.
4. An older layout is refused unless it is *prepared*: the older software has closed its containers and pipelines
   (``prepare-upgrade``), so that no block is open across the change. Then each step from version to version is taken,
   VERSION is written after each, and the mark is removed at the end. A step that was interrupted is taken again, so
   every step must bear repetition.
5. The mark stays when the same software starts again; it is removed when the datanode takes blocks again
   (:meth:`DataFolder.mark_prepared`).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.records.record import record
from transport.files.durable_files import write_durably

LAYOUT_VERSION = 1
"""Layout that this software reads and writes."""
VERSION_FILE = "VERSION"
LOCK_FILE = "LOCK"
_WRITING = ".VERSION.new"
_OURS_BEFORE_VERSION = frozenset({LOCK_FILE, _WRITING})
"""What an interrupted first start may leave in a folder that is otherwise empty."""

UpgradeStep = Callable[[Path], None]
UPGRADES: Mapping[int, UpgradeStep] = {}
"""For each older version that can be upgraded: the step that turns it into the next one."""


class LayoutRefused(Exception):
    """The folder must not be used as it is; the message says why, and what to do."""


@record
class Layout:
    """Contents of VERSION."""

    layout_version: int
    datanode: str
    cluster: str
    upgrade_prepared: bool
    brokers_id: str = ""
    """The id of its brokers' Kafka cluster; empty: older software has written it."""


@record
class Create:
    """The folder is new."""


@record
class Keep:
    """The folder is in this software's layout."""


@record
class Upgrade:
    """Take the steps from these versions, in this order."""

    steps: tuple[int, ...]


@record
class Refuse:
    """Do not start."""

    reason: str


Decision = Create | Keep | Upgrade | Refuse


def decide(found: Layout | None, *, datanode: str, cluster: str, empty: bool, software_version: int) -> Decision:
    """Return what a datanode is to do with a folder whose VERSION is ``found`` (None: it has
    none). Pure; rules 1 to 4.
    """
    if found is None:
        if empty:
            return Create()
        return Refuse(reason=f"it has no {VERSION_FILE} but is not empty: is it a datanode's folder?")
    if found.cluster != cluster:
        return Refuse(reason=f"it belongs to cluster {found.cluster!r}, not {cluster!r}")
    if found.datanode != datanode:
        return Refuse(reason=f"it belongs to datanode {found.datanode!r}, not {datanode!r}")
    if found.layout_version > software_version:
        return Refuse(
            reason=f"it has layout {found.layout_version}, this software knows {software_version}: upgrade the software"
        )
    if found.layout_version == software_version:
        return Keep()
    if not found.upgrade_prepared:
        return Refuse(
            reason=f"it has layout {found.layout_version}, this software writes {software_version}, "
            "and the upgrade is not prepared: "
            "start the former software, run `prepare-upgrade`, and start this one again"
        )
    return Upgrade(steps=tuple(range(found.layout_version, software_version)))


class DataFolder:
    """A datanode's folder, locked for this process."""

    def __init__(self, path: Path, layout: Layout, lock: int) -> None:
        """Use :func:`open_folder` instead."""
        self.path = path
        self.layout = layout
        self._lock: int | None = lock

    def mark_prepared(self, prepared: bool) -> None:
        """Set or remove the mark which allows newer software to upgrade this folder; it is stored on return.

        Raises OSError.
        """
        self._write(replace(self.layout, upgrade_prepared=prepared))

    def check_brokers(self, brokers_id: str) -> None:
        """Raise LayoutRefused if the folder has been at other brokers than those with this id (empty: not known).

        A folder that has been at none is theirs from then on; that is stored on return. Raises OSError.
        """
        before = self.layout.brokers_id
        if before and brokers_id and before != brokers_id:
            raise LayoutRefused(
                f"{self.path}: it belongs to the brokers of Kafka cluster {before!r}, and bootstrap_servers are those of "
                f"{brokers_id!r}: name its own brokers, or another folder"
            )
        if brokers_id and not before:
            self._write(replace(self.layout, brokers_id=brokers_id))

    def _write(self, layout: Layout) -> None:
        write_layout(self.path, layout)
        self.layout = layout

    def close(self) -> None:
        """Unlock the folder. Any number of times."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def open_folder(
    path: Path,
    *,
    datanode: str,
    cluster: str,
    software_version: int = LAYOUT_VERSION,
    upgrades: Mapping[int, UpgradeStep] = UPGRADES,
) -> DataFolder:
    """Make, check or upgrade a datanode's folder, and lock it. Raises LayoutRefused, OSError."""
    path.mkdir(parents=True, exist_ok=True)
    lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LayoutRefused(f"{path}: another process has it open") from None
        layout = _settle(path, datanode, cluster, software_version, upgrades)
    except BaseException:
        os.close(lock)
        raise
    return DataFolder(path, layout, lock)


def _settle(
    path: Path, datanode: str, cluster: str, software_version: int, upgrades: Mapping[int, UpgradeStep]
) -> Layout:
    """Carry out the decision, and return the layout that results."""
    found = read_layout(path)
    empty = set(os.listdir(path)) <= _OURS_BEFORE_VERSION
    decision = decide(found, datanode=datanode, cluster=cluster, empty=empty, software_version=software_version)
    if isinstance(decision, Refuse):
        raise LayoutRefused(f"{path}: {decision.reason}")
    if isinstance(decision, Keep) and found is not None:
        return found
    steps = decision.steps if isinstance(decision, Upgrade) else ()
    if missing := [version for version in steps if version not in upgrades]:
        raise LayoutRefused(f"{path}: this software has no upgrade from layout {missing[0]}")
    layout = found or Layout(
        layout_version=software_version, datanode=datanode, cluster=cluster, upgrade_prepared=False
    )
    for version in steps:
        upgrades[version](path)
        prepared = version + 1 < software_version
        layout = replace(layout, layout_version=version + 1, upgrade_prepared=prepared)
        write_layout(path, layout)
    if not steps:
        write_layout(path, layout)
    return layout


def read_layout(path: Path) -> Layout | None:
    """Return the contents of a folder's VERSION, None if there is none.

    Raises LayoutRefused if they cannot be understood, OSError.
    """
    file = path / VERSION_FILE
    try:
        said: Any = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LayoutRefused(f"{file}: not JSON: {error}") from error
    wanted = {"layout_version": int, "datanode": str, "cluster": str, "upgrade_prepared": bool}
    for name, kind in wanted.items():
        if not isinstance(said, dict) or type(said.get(name)) is not kind:
            raise LayoutRefused(f"{file}: {name} is not there, or is no {kind.__name__}")
    brokers_id = said.get("brokers_id", "")
    if not isinstance(brokers_id, str):
        raise LayoutRefused(f"{file}: brokers_id is no str")
    return Layout(**{name: said[name] for name in wanted}, brokers_id=brokers_id)


def write_layout(path: Path, layout: Layout) -> None:
    """Replace a folder's VERSION; it is stored on return. Raises OSError."""
    said = {name: getattr(layout, name) for name in ("layout_version", "datanode", "cluster", "upgrade_prepared")}
    if layout.brokers_id:
        said["brokers_id"] = layout.brokers_id
    write_durably(path / VERSION_FILE, json.dumps(said, indent=2) + "\n", aside=path / _WRITING)
