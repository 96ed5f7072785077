"""The table of an install: from every state of the disk, one step after another, to the old replica or to the new one."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import pytest

from replicated_db.core.bootstrap.install_steps import Next, OnDisk, Part, Step, next_step


@dataclass
class Disk:
    """A disk in memory: which version of each part lies where."""

    journal: bool
    tree: bool
    coming: dict[Part, str] = field(default_factory=dict)
    in_place: dict[Part, str] = field(default_factory=dict)
    replaced: dict[Part, str] | None = None

    def look(self) -> OnDisk:
        return OnDisk(
            journal=self.journal, replaced=self.replaced is not None, tree=self.tree, coming=frozenset(self.coming),
            in_place=frozenset(self.in_place),
        )  # fmt: skip

    def do(self, step: Next) -> None:
        match step:
            case Next(Step.PUT_ASIDE, Part() as part):
                self.replaced = {**(self.replaced or {}), part: self.in_place.pop(part)}
            case Next(Step.PUT_IN_PLACE, Part() as part):
                assert part not in self.in_place
                self.in_place[part] = self.coming.pop(part)
            case Next(Step.FORGET_JOURNAL):
                assert not self.coming
                self.journal = False
            case Next(Step.REMOVE_REPLACED):
                assert not self.journal
                self.replaced = None
            case Next(Step.REMOVE_TREE):
                assert not self.journal
                self.tree, self.coming = False, {}


SUBSETS = [dict.fromkeys(chosen, "new") for chosen in ((), (Part.DATABASE,), (Part.CHECKPOINTS,), tuple(Part))]


@pytest.mark.parametrize(
    ("journal", "coming", "in_place", "replaced"),
    list(product((False, True), SUBSETS, SUBSETS, (None, *SUBSETS))),
)
def test_every_state_ends(
    journal: bool, coming: dict[Part, str], in_place: dict[Part, str], replaced: dict[Part, str] | None
):
    disk = Disk(
        journal, tree=bool(coming), coming=dict(coming), in_place=dict.fromkeys(in_place, "old"), replaced=replaced
    )
    whole_before = set(disk.in_place)
    for _ in range(10):
        step = next_step(disk.look())
        if step.step is Step.NOTHING:
            break
        disk.do(step)
    else:
        pytest.fail("no end")
    assert (disk.journal, disk.tree and bool(disk.coming), disk.replaced) == (False, False, None)
    if journal:
        assert all(disk.in_place[part] == "new" for part in coming)
    else:
        assert disk.in_place == dict.fromkeys(whole_before, "old")


@pytest.mark.parametrize("first", [{}, {Part.DATABASE: "old"}, {Part.DATABASE: "old", Part.CHECKPOINTS: "old"}])
def test_a_kill_before_any_step_changes_nothing_of_the_end(first: dict[Part, str]):
    """Rows 1 to 3: wherever the process dies, the next start does what is left, and the new parts are in place."""
    steps = 0
    while True:
        disk = Disk(True, tree=True, coming=dict.fromkeys(Part, "new"), in_place=dict(first))
        for _ in range(steps):
            disk.do(next_step(disk.look()))
        if next_step(disk.look()).step is Step.NOTHING:
            break
        if disk.journal:
            # Never mixed while a process may open it: the journal is there until both parts are new.
            assert next_step(disk.look()).step in (Step.PUT_ASIDE, Step.PUT_IN_PLACE, Step.FORGET_JOURNAL)
        else:
            assert disk.in_place == dict.fromkeys(Part, "new")
        steps += 1
    assert disk.in_place == dict.fromkeys(Part, "new")
    assert steps >= 4
