"""The stages of an install, by what is seen from outside: the folders beside the database, and the words of progress.

``replicated_db.core.bootstrap.install_steps`` has the folders. A stage is what a kill finds: the process has done all
that comes before it, and not all that is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from replicated_db.core.bootstrap.install_steps import OnDisk, Part


class InstallStage(Enum):
    """What an install is at, in the order in which an install gets there."""

    SEEKING = "before a listing came"
    FETCHING = "fetching files"
    FETCHED = "all files fetched, no tree"
    SECOND_ROUND = "in a second round"
    BUILDING = "putting the tree together"
    CHECKING = "checking the tree"
    OWNING = "writing its own rows into the tree"
    JOURNALLED = "the journal written, nothing renamed"
    CHECKPOINTS_ASIDE = "the old checkpoints put aside"
    CHECKPOINTS_PLACED = "the new checkpoints in place"
    DATABASE_ASIDE = "the old database put aside"
    DATABASE_PLACED = "the new database in place"
    JOURNAL_GONE = "the journal removed"
    CLEANING = "what was replaced removed"
    INSTALLED = "installed, nothing replayed"
    REPLAYING = "replaying the log"

    @property
    def is_new(self) -> bool:
        """Whether the replica is the new one: from the journal on."""
        return ORDER[self] >= ORDER[InstallStage.JOURNALLED]


ORDER = {stage: number for number, stage in enumerate(InstallStage)}

JOURNAL_ROWS = {
    # What the tree still has, and what is in the place.
    (frozenset(Part), True): InstallStage.JOURNALLED,
    (frozenset(Part), False): InstallStage.CHECKPOINTS_ASIDE,
    (frozenset({Part.DATABASE}), True): InstallStage.CHECKPOINTS_PLACED,
    (frozenset({Part.DATABASE}), False): InstallStage.DATABASE_ASIDE,
    (frozenset[Part](), True): InstallStage.DATABASE_PLACED,
}
"""The stages with a journal: by the parts that the tree still has, and whether the next of them has its place taken.

Where the replica had no checkpoints there is nothing to put aside: JOURNALLED then looks like CHECKPOINTS_ASIDE.
"""

BUILDING_WORDS = "puts the candidate together"
OWNING_WORDS = "installs the candidate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen of an install.

    ``fetched`` are the contents that came whole since the process was started, ``wanted`` those that its last listing
    wanted (None: no listing came), ``round`` is the number of that listing. ``progress`` is what the process says,
    empty if it has not spoken since it was started. ``begun``: it has. ``renamed``: a journal was there, so the replica
    is the new one. ``replays``: the node has replayed something.
    """

    disk: OnDisk
    fetched: int
    wanted: int | None
    round: int
    progress: str
    candidate: bool
    begun: bool
    renamed: bool
    replays: bool


def stage_of(seen: Sight) -> InstallStage:
    """Return the stage that an install is at."""
    if seen.disk.journal:
        return _renaming(seen.disk)
    if seen.disk.replaced:
        return InstallStage.JOURNAL_GONE
    if seen.replays:
        return InstallStage.REPLAYING
    if seen.renamed:
        return InstallStage.CLEANING if seen.disk.tree else InstallStage.INSTALLED
    if not seen.candidate:
        return InstallStage.INSTALLED if seen.begun else InstallStage.SEEKING
    if not seen.progress or seen.wanted is None:
        return InstallStage.SEEKING
    return _of_tree(seen) if seen.disk.tree else _of_contents(seen)


def _renaming(disk: OnDisk) -> InstallStage:
    following = next((part for part in Part if part in disk.coming), None)
    return JOURNAL_ROWS[disk.coming, following is None or following in disk.in_place]


def _of_tree(seen: Sight) -> InstallStage:
    if OWNING_WORDS not in seen.progress:
        return InstallStage.BUILDING if BUILDING_WORDS in seen.progress else InstallStage.CHECKING
    # The install renames both parts out of the tree before it removes the tree.
    return InstallStage.OWNING if seen.disk.coming else InstallStage.CLEANING


def _of_contents(seen: Sight) -> InstallStage:
    if seen.round > 1:
        return InstallStage.SECOND_ROUND
    return InstallStage.FETCHED if seen.wanted is not None and seen.fetched >= seen.wanted else InstallStage.FETCHING


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """A replica as it lies on a disk: its offset (-1: empty), what it has installed last, whether its rows are whole.

    ``is_whole``: a full scan of its rows gives the digests that it stores.
    """

    offset: int
    installed: Mapping[str, Any] | None
    is_whole: bool


def is_replaying(view: Mapping[str, Any]) -> bool:
    """Whether a node's view of a shard says that it has applied a record behind what it has installed."""
    installed = view.get("installed")
    return installed is not None and int(view["applied_offset"]) > int(installed["offset"])


def is_new(before: ReplicaState, after: ReplicaState) -> bool:
    """Whether an install took place between two looks."""
    return after.installed is not None and after.installed != before.installed


def mixture(stage: InstallStage, before: ReplicaState, after: ReplicaState) -> str | None:
    """Return what is wrong with what a kill left, None if it is the old replica or the new one, as the stage says."""
    if not after.is_whole:
        return f"{stage.value}: rows and digests differ at offset {after.offset}"
    if is_new(before, after) != stage.is_new:
        return f"{stage.value}: the replica is the {'new' if is_new(before, after) else 'old'} one"
    if not stage.is_new and after.offset != before.offset:
        return f"{stage.value}: the old replica moved from offset {before.offset} to {after.offset}"
    if stage.is_new and after.installed is not None and after.offset < int(after.installed["offset"]):
        return f"{stage.value}: the new replica stands at {after.offset}, before what was installed"
    return None
