"""Installing a checked tree in a database's place: what is found on the disk, and what is done then.

The folders, beside each other: ``DB`` and ``DB.checkpoints`` (the replica), ``DB.candidate/tree`` (what comes),
``DB.replaced`` (what goes), and the journal ``DB.install``. The journal is written when the tree is whole, checked and
on the disk; before that, the replica is the old one, and from then on it is the new one, whatever happens. One table
says what to do, for the install and for each start after it: look, do one step, look again. Each step is a rename, or
a removal of what nobody needs, so a kill leaves a state that the table knows.

==== ======= ============= =================== ===========================================================
row  journal tree has part part in its place   step
==== ======= ============= =================== ===========================================================
1    yes     yes           yes                 PUT_ASIDE: the old part goes to ``DB.replaced``
2    yes     yes           no                  PUT_IN_PLACE: the part is renamed out of the tree
3    yes     no part left  any                 FORGET_JOURNAL: the install is done
4    no      any           any, replaced there REMOVE_REPLACED: what an install has put aside
5    no      yes           any                 REMOVE_TREE: it was never said to be whole
6    no      no            any                 NOTHING: the replica may be opened
==== ======= ============= =================== ===========================================================

Parts are the database and its checkpoints; rows 1 and 2 hold for each, the checkpoints first. Software that knows no
journal may have made a database in between, when it was started there (row 1 then puts that one aside): its rows are
the log's, and the installed replica reads the same log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Part(Enum):
    """What an install replaces."""

    CHECKPOINTS = "checkpoints"
    DATABASE = "db"


class Step(Enum):
    """What to do next."""

    PUT_ASIDE = "put the old part aside"
    PUT_IN_PLACE = "put the new part in its place"
    FORGET_JOURNAL = "remove the journal"
    REMOVE_REPLACED = "remove what was put aside"
    REMOVE_TREE = "remove an unfinished tree"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """What is there: the journal, ``DB.replaced``, the tree; of which parts the tree has a new one, the place one."""

    journal: bool
    replaced: bool
    tree: bool
    coming: frozenset[Part]
    in_place: frozenset[Part]


@dataclass(frozen=True, slots=True)
class Next:
    """A step, and the part that it is about (None: about no part)."""

    step: Step
    part: Part | None = None


def next_step(found: OnDisk) -> Next:
    """Return what to do; Step.NOTHING ends an install, and a start's look at the disk."""
    if found.journal:
        for part in Part:
            if part in found.coming:
                return Next(Step.PUT_ASIDE if part in found.in_place else Step.PUT_IN_PLACE, part)
        return Next(Step.FORGET_JOURNAL)
    if found.replaced:
        return Next(Step.REMOVE_REPLACED)
    if found.tree:
        return Next(Step.REMOVE_TREE)
    return Next(Step.NOTHING)
