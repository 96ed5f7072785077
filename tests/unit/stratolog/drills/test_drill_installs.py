"""Stages of an install as they are seen from outside, what a kill may leave, and the findings of the drills about both."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from replicated_db.core.bootstrap.install_steps import OnDisk, Part
from replicated_db.core.bootstrap.peer_choice import ServingPeer
from replicated_db.shell.bootstrap.bootstrap import Terms, bootstrap
from replicated_db.shell.bootstrap.candidate import candidate_folder
from replicated_db.shell.bootstrap.install import finish, journal_of, replaced_folder
from stratolog.drills.core.report import StepFailed
from stratolog.drills.installs import dying_node
from stratolog.drills.installs.core import kill_findings
from stratolog.drills.installs.core.kill_findings import CandidateSight, LeaderChange
from stratolog.drills.installs.core.stages import (
    InstallStage,
    ReplicaState,
    Sight,
    is_replaying,
    mixture,
    stage_of,
)
from stratolog.drills.installs.kills import InstallKills
from stratolog.drills.installs.watch import InstallWatch, candidate_of, contents_of
from tests.support.local.secret import SECRET
from tests.support.replicated.transfers import Log, RocksNode, serving

BOTH, NONE = frozenset(Part), frozenset[Part]()
DATABASE, CHECKPOINTS = frozenset({Part.DATABASE}), frozenset({Part.CHECKPOINTS})
SCANS, PUTS, INSTALLS = "scans the candidate, 0 rows", "puts the candidate together", "installs the candidate"


def on_disk(**changed: Any) -> OnDisk:
    found: dict[str, Any] = {"journal": False, "replaced": False, "tree": False, "coming": NONE, "in_place": BOTH}
    return OnDisk(**(found | changed))


def sight(disk: OnDisk | None = None, **changed: Any) -> Sight:
    found: dict[str, Any] = {
        "disk": disk or on_disk(), "fetched": 0, "wanted": 4, "round": 1, "progress": "fetches: 0 B", "candidate": True,
        "begun": True, "renamed": False, "replays": False,
    }  # fmt: skip
    return Sight(**(found | changed))


def tree(progress: str, coming: frozenset[Part] = BOTH) -> Sight:
    return sight(on_disk(tree=True, coming=coming), progress=progress, fetched=4)


def journal(coming: frozenset[Part], in_place: frozenset[Part], *, replaced: bool = True) -> Sight:
    return sight(on_disk(journal=True, replaced=replaced, tree=True, coming=coming, in_place=in_place), renamed=True)


@pytest.mark.parametrize(
    ("seen", "stage"),
    [
        (sight(candidate=False, begun=False), InstallStage.SEEKING),
        (sight(progress=""), InstallStage.SEEKING),  # a former process spoke last
        (sight(wanted=None), InstallStage.SEEKING),
        (sight(fetched=3), InstallStage.FETCHING),
        (sight(fetched=4), InstallStage.FETCHED),
        (sight(wanted=0), InstallStage.FETCHED),
        (sight(fetched=4, round=2), InstallStage.SECOND_ROUND),
        (tree(PUTS), InstallStage.BUILDING),
        (tree(SCANS), InstallStage.CHECKING),
        (tree("the log does not answer"), InstallStage.CHECKING),
        (tree(INSTALLS), InstallStage.OWNING),
        (journal(BOTH, BOTH, replaced=False), InstallStage.JOURNALLED),
        (journal(BOTH, DATABASE), InstallStage.CHECKPOINTS_ASIDE),
        (journal(DATABASE, BOTH), InstallStage.CHECKPOINTS_PLACED),
        (journal(DATABASE, CHECKPOINTS), InstallStage.DATABASE_ASIDE),
        (journal(NONE, BOTH), InstallStage.DATABASE_PLACED),
        (sight(on_disk(replaced=True, tree=True)), InstallStage.JOURNAL_GONE),
        (tree(INSTALLS, NONE), InstallStage.CLEANING),
        (sight(on_disk(tree=True), progress="", renamed=True), InstallStage.CLEANING),
        (sight(progress="", renamed=True), InstallStage.INSTALLED),
        (sight(candidate=False), InstallStage.INSTALLED),
        (sight(candidate=False, replays=True), InstallStage.REPLAYING),
    ],
)
def test_the_stage_of_an_install(seen: Sight, stage: InstallStage) -> None:
    assert stage_of(seen) is stage


def test_every_stage_is_seen_by_something() -> None:
    cases: Any = next(mark for mark in test_the_stage_of_an_install.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {stage for _, stage in cases.args[1]} == set(InstallStage)


def test_the_replica_is_the_new_one_from_the_journal_on() -> None:
    new = [stage for stage in InstallStage if stage.is_new]
    assert new == list(InstallStage)[list(InstallStage).index(InstallStage.JOURNALLED) :]


OLD = ReplicaState(offset=20, installed={"offset": 10, "peer": "om1"}, is_whole=True)
NEW = ReplicaState(offset=55, installed={"offset": 50, "peer": "om2"}, is_whole=True)


@pytest.mark.parametrize(
    ("stage", "left", "wrong"),
    [
        (InstallStage.CHECKING, OLD, None),
        (InstallStage.JOURNALLED, NEW, None),
        (InstallStage.CHECKING, NEW, "the new one"),
        (InstallStage.DATABASE_ASIDE, OLD, "the old one"),
        (
            InstallStage.FETCHING,
            ReplicaState(offset=21, installed=OLD.installed, is_whole=True),
            "from offset 20 to 21",
        ),
        (InstallStage.FETCHING, ReplicaState(offset=20, installed=OLD.installed, is_whole=False), "rows and digests"),
        (InstallStage.REPLAYING, ReplicaState(offset=49, installed=NEW.installed, is_whole=True), "before what was"),
        (InstallStage.REPLAYING, ReplicaState(offset=55, installed=NEW.installed, is_whole=False), "rows and digests"),
    ],
)
def test_what_a_kill_may_leave(stage: InstallStage, left: ReplicaState, wrong: str | None) -> None:
    found = mixture(stage, OLD, left)
    assert found is None if wrong is None else found is not None and wrong in found


def test_a_node_replays_once_it_has_applied_more_than_it_installed() -> None:
    assert is_replaying({"applied_offset": 11, "installed": {"offset": 10}})
    assert not is_replaying({"applied_offset": 10, "installed": {"offset": 10}})
    assert not is_replaying({"applied_offset": 11})
    assert not is_replaying({})


def test_findings_of_kills() -> None:
    assert kill_findings.never_mixed(3, []).holds
    assert not kill_findings.never_mixed(0, []).holds
    assert not kill_findings.never_mixed(3, ["checking the tree: the replica is the new one"]).holds
    assert kill_findings.not_fetched_again(100, 0).holds
    assert not kill_findings.not_fetched_again(0, 0).holds
    assert not kill_findings.not_fetched_again(100, 1).holds
    assert kill_findings.every_stage({InstallStage.CHECKING: 1}, [InstallStage.CHECKING]) is None
    assert "putting the tree together" in (kill_findings.every_stage({}, [InstallStage.BUILDING]) or "")


def candidate(peer: str, term: int, *, tree: bool = False, **files: int) -> CandidateSight:
    whole = {digest: (inode, 0, 100) for digest, inode in files.items()}
    return CandidateSight(peer=peer, term=term, leader=peer, whole=whole, tree=tree)


def change(before: CandidateSight, after: CandidateSight, *, lost: bool) -> LeaderChange:
    return LeaderChange(old_leader="om1", new_leader="om2", peer_lost=lost, before=before, after=after)


def test_findings_of_leader_changes() -> None:
    moved = change(candidate("om1", 3, a=1), candidate("om1", 3, a=1, b=2), lost=False)
    lost = change(candidate("om1", 3, a=1, b=2), candidate("om2", 4, a=1, c=3), lost=True)
    both = [moved, lost]
    assert (moved.kept_bytes, lost.kept_bytes) == (100, 100)
    for finding in (
        kill_findings.changed_during(both, 2), kill_findings.goes_on(both), kill_findings.marked_anew(both),
        kill_findings.kept_whole(both),
    ):  # fmt: skip
        assert finding.holds, finding
    assert "100 B of 200 B" in kill_findings.kept_whole(both).seen


def test_findings_of_leader_changes_that_went_wrong() -> None:
    stayed = change(candidate("om1", 3, a=1), candidate("om1", 3, a=1), lost=True)
    a_tree = change(candidate("om1", 3, a=1), candidate("om2", 4, tree=True), lost=True)
    again = change(candidate("om1", 3, a=1), candidate("om2", 4, a=2), lost=True)
    disturbed = change(candidate("om1", 3, a=1), candidate("om2", 3, a=1), lost=False)
    dropped = change(candidate("om1", 3, a=1), candidate("om1", 3), lost=False)
    assert not kill_findings.changed_during([stayed], 2).holds
    assert not kill_findings.marked_anew([stayed]).holds
    assert not kill_findings.marked_anew([a_tree]).holds
    assert not kill_findings.kept_whole([again]).holds
    assert not kill_findings.goes_on([disturbed]).holds
    assert not kill_findings.goes_on([dropped]).holds
    for nothing in (kill_findings.marked_anew, kill_findings.goes_on, kill_findings.kept_whole):
        assert not nothing([]).holds


# Watching, on a real folder.


def watch(database: Path, **options: Any) -> InstallWatch:
    return InstallWatch(database, database.with_name("om1.log"), lambda: False, lambda: True, **options)


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_watch_sees_an_install_come_by(tmp_path: Path) -> None:
    database = tmp_path / "shard-0"
    log = put(tmp_path / "om1.log", "an earlier process: 9.0 KiB in 9 files are to be fetched\n")
    (database).mkdir()
    seen = watch(database)
    folder = tmp_path / "shard-0.candidate"
    assert seen.stage() is InstallStage.SEEKING
    put(folder / "progress.txt", "shard 0: bootstrap: looks for a peer")
    assert seen.stage() is InstallStage.SEEKING
    with log.open("a") as file:
        file.write("shard 0: bootstrap: round 1: waits\nom2 lists …; 1.0 KiB in 2 files are to be fetched, 0 check")
        file.flush()
        assert seen.stage() is InstallStage.SEEKING  # the line has not ended yet
        file.write("points\n")
    put(folder / "content" / ("a" * 32), "one")
    put(folder / "content" / ("b" * 32 + ".part"), "tw")
    assert seen.stage() is InstallStage.FETCHING
    assert seen.listings == 1
    put(folder / "content" / ("b" * 32), "two")
    assert seen.stage() is InstallStage.FETCHED
    assert {digest[0]: size for digest, (_, _, size) in contents_of(database).items()} == {"a": 3, "b": 3}
    put(folder / "progress.txt", f"shard 0: bootstrap: {PUTS}")
    (folder / "tree" / "db").mkdir(parents=True)
    assert seen.wait(InstallStage.BUILDING, 5) is InstallStage.BUILDING
    put(tmp_path / "shard-0.install")
    (folder / "tree" / "checkpoints").mkdir()
    assert seen.stage() is InstallStage.CHECKPOINTS_ASIDE  # the replica had none
    assert seen.renamed


def test_a_watch_does_not_take_a_former_process_for_this_one(tmp_path: Path) -> None:
    database = tmp_path / "shard-0"
    for path in (put(tmp_path / "shard-0.candidate" / "progress.txt", SCANS), tmp_path / "shard-0.candidate"):
        old_ns = time.time_ns() - 10**9
        os.utime(path, ns=(old_ns, old_ns))
    (tmp_path / "shard-0.candidate" / "tree" / "db").mkdir(parents=True)
    assert watch(database).stage() is InstallStage.SEEKING
    assert watch(database, renamed=True).stage() is InstallStage.CLEANING


def test_a_kill_in_the_middle_of_a_progress_file_hides_nothing(tmp_path: Path) -> None:
    database = tmp_path / "shard-0"
    put(tmp_path / "shard-0.candidate" / "content" / "of-a-former-process", "x")
    log = put(tmp_path / "om1.log")
    seen = watch(database)
    put(tmp_path / "shard-0.candidate" / "progress.txt")
    log.write_text("1 B in 1 files are to be fetched\n")
    assert seen.stage() is InstallStage.FETCHING
    put(tmp_path / "shard-0.candidate" / "content" / "of-this-one", "y")
    assert seen.stage() is InstallStage.FETCHED


def test_the_candidate_as_it_lies_there(tmp_path: Path) -> None:
    database = tmp_path / "shard-0"
    assert candidate_of(database) is None
    put(tmp_path / "shard-0.candidate" / "mark.json", json.dumps({"peer": "om2", "term": 4, "leader": "om3"}))
    put(tmp_path / "shard-0.candidate" / "content" / "c", "12345")
    found = candidate_of(database)
    assert found is not None
    assert (found.mark, found.tree, kill_findings.bytes_of(found)) == (("om2", 4, "om3"), False, 5)


# Killing, with a victim that goes by a script.


class Scripted:
    """A victim whose n-th start lays down what the n-th entry of a script says, and whose replica is then that entry's."""

    def __init__(self, folder: Path, script: Sequence[tuple[InstallStage, ReplicaState]]) -> None:
        self.database = folder / "shard-0"
        self.log = folder / "om1.log"
        self.database.mkdir()
        self.script = list(script)
        self.starts = 0
        self.running = False
        self.told: list[InstallStage | None] = []

    def start(self, dies_in: InstallStage | None = None) -> None:
        self.told.append(dies_in)
        self.starts += 1
        self.running = True
        if self.script[self.starts - 1][0] is InstallStage.FETCHING:
            put(self.database.with_name("shard-0.candidate") / "progress.txt", "fetches")
            put(self.log, "5 B in 9 files are to be fetched\n" * self.starts)
            put(self.database.with_name("shard-0.candidate") / "content" / f"new-{self.starts}", "12345")
        else:
            put(self.database.with_name("shard-0.install"))

    def kill(self) -> None:
        self.running = False

    def runs(self) -> bool:
        return self.running

    def replays(self) -> bool:
        return False

    def left(self) -> ReplicaState:
        return self.script[self.starts - 1][1] if self.starts else OLD


def test_each_stage_is_aimed_at_until_it_is_met(tmp_path: Path) -> None:
    fetching, placed = (InstallStage.FETCHING, OLD), (InstallStage.DATABASE_PLACED, NEW)
    victim = Scripted(tmp_path, [fetching, placed])
    kills = InstallKills(victim)
    found = list(kills.at_each([InstallStage.FETCHING, InstallStage.DATABASE_PLACED], lambda: None, 9))
    assert [(kill.found, kill.wrong) for kill in found] == [
        (InstallStage.FETCHING, None), (InstallStage.DATABASE_PLACED, None),
    ]  # fmt: skip
    assert [(kill.kept_bytes, kill.fetched_again) for kill in found] == [(0, 0), (5, 0)]
    assert not kills.reaches(InstallStage.FETCHING)
    assert kills.reaches(InstallStage.JOURNAL_GONE)
    assert victim.told == [None, InstallStage.DATABASE_PLACED]


def test_a_stage_that_lies_behind_wants_another_install(tmp_path: Path) -> None:
    victim = Scripted(tmp_path, [(InstallStage.DATABASE_PLACED, NEW), (InstallStage.FETCHING, NEW)])
    asked: list[int] = []

    def need_again() -> None:
        asked.append(victim.starts)
        victim.database.with_name("shard-0.install").unlink()

    found = list(InstallKills(victim).at_each([InstallStage.FETCHING], need_again, 9))
    assert [kill.found for kill in found] == [InstallStage.DATABASE_PLACED, InstallStage.FETCHING]
    assert asked == [1]


def test_kills_are_bounded(tmp_path: Path) -> None:
    victim = Scripted(tmp_path, [(InstallStage.FETCHING, OLD)] * 3)
    put(victim.database.with_name("shard-0.candidate") / "content" / "there", "already")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stratolog.drills.installs.kills.STAGE_S", 0.01)
        assert len(list(InstallKills(victim).at_each([InstallStage.CLEANING], lambda: None, 3))) == 3


def test_a_victim_that_ends_by_itself(tmp_path: Path) -> None:
    victim = Scripted(tmp_path, [(InstallStage.FETCHING, OLD)] * 2)
    victim.runs = lambda: False  # type: ignore[method-assign]
    with pytest.raises(StepFailed, match="om1 ended by itself"):
        InstallKills(victim).kill_at(InstallStage.REPLAYING)
    assert InstallKills(victim).kill_at(InstallStage.FETCHED).found is InstallStage.FETCHING  # it was told to


# A node that kills itself in its install, over a real database and a real peer.


ROWS = 50


class Died(BaseException):
    """Instead of SIGKILL: what is on the disk is the same."""


def dies(*_: object, **__: object) -> NoReturn:
    raise Died


def starts(asker: RocksNode, terms: Terms, *, installs: bool) -> None:
    finish(asker.database)
    if installs:
        bootstrap(asker.target(), terms, asker.notes.append)


def dies_in(stage: InstallStage, asker: RocksNode, peer: ServingPeer) -> InstallWatch:
    """Start as a node does, with an install that ends in a stage; return the watch of that start."""
    database = asker.database
    renamed = journal_of(database).exists() or replaced_folder(database).exists()
    seen = watch(database, renamed=renamed)
    terms = Terms(peers=lambda: [peer], secret=SECRET, own_offset=4, searches=1)
    with pytest.MonkeyPatch.context() as patch:
        dying_node.arm(stage, patch.setattr, dies)
        with pytest.raises(Died):
            starts(asker, terms, installs=not renamed)
    put(seen.log, "\n".join(asker.notes) + "\n")
    return seen


def test_a_node_dies_in_each_short_stage(tmp_path: Path) -> None:
    """One disk, from one stage to the next: each start goes on from what the last one left."""
    log = Log()
    log.write(ROWS, checkpoint="snapshot-1")
    source = RocksNode(tmp_path / "n1", log.log, "n1").catch_up()
    asker = RocksNode(tmp_path / "n2", log.log, "n2").catch_up(5)
    asker.close()
    short = [stage for stage in InstallStage if dying_node.dies_in(stage)]
    assert [stage for stage in InstallStage if stage not in short] == [
        InstallStage.SEEKING, InstallStage.FETCHING, InstallStage.SECOND_ROUND, InstallStage.INSTALLED,
        InstallStage.REPLAYING,
    ]  # fmt: skip
    with serving(source.desk(), "n1") as peer:
        assert [dies_in(stage, asker, peer).stage() for stage in short] == short
    source.close()


def test_a_tree_that_was_never_whole_does_not_end_a_start_that_is_to_die_while_it_cleans(tmp_path: Path) -> None:
    tree = candidate_folder(tmp_path / "shard-0") / "tree"
    tree.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        dying_node.arm(InstallStage.CLEANING, patch.setattr, dies)
        assert finish(tmp_path / "shard-0") == 1
    assert not tree.exists()


def test_the_command_of_a_dying_node() -> None:
    assert dying_node.command_of("om1", InstallStage.BUILDING)[1:] == [
        "-m", "stratolog.drills.installs.dying_node", "om1", "BUILDING",
    ]  # fmt: skip
