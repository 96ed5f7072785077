"""Whose folder it is, and which layouts may meet which software."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datanode_processors.layout import (
    LAYOUT_VERSION,
    LOCK_FILE,
    VERSION_FILE,
    Create,
    Keep,
    Layout,
    LayoutRefused,
    Refuse,
    Upgrade,
    decide,
    open_folder,
    read_layout,
    write_layout,
)


def layout(
    version: int = 1, *, datanode: str = "dn1", cluster: str = "c", prepared: bool = False, brokers_id: str = ""
) -> Layout:
    return Layout(
        layout_version=version, datanode=datanode, cluster=cluster, upgrade_prepared=prepared, brokers_id=brokers_id
    )


def start(path: Path, **changed: object) -> Layout:
    folder = open_folder(path, **{"datanode": "dn1", "cluster": "c", **changed})  # type: ignore[arg-type]
    folder.close()
    return folder.layout


@pytest.mark.parametrize(
    ("found", "empty", "software", "decision"),
    [
        (None, True, 1, Create()),
        (layout(), False, 1, Keep()),
        (layout(prepared=True), False, 1, Keep()),
        (layout(1, prepared=True), False, 3, Upgrade(steps=(1, 2))),
    ],
)
def test_what_may_start(found: Layout | None, empty: bool, software: int, decision: object):
    assert decide(found, datanode="dn1", cluster="c", empty=empty, software_version=software) == decision


@pytest.mark.parametrize(
    ("found", "software", "reason"),
    [
        (None, 1, "not empty"),
        (layout(datanode="dn2"), 1, "'dn2', not 'dn1'"),
        (layout(cluster="other"), 1, "'other', not 'c'"),
        (layout(2), 1, "upgrade the software"),
        (layout(2, prepared=True), 1, "upgrade the software"),
        (layout(1), 2, "prepare-upgrade"),
    ],
)
def test_what_is_refused(found: Layout | None, software: int, reason: str):
    decision = decide(found, datanode="dn1", cluster="c", empty=False, software_version=software)
    assert isinstance(decision, Refuse)
    assert reason in decision.reason


def test_a_folder_stays_with_its_brokers(tmp_path: Path):
    folder = open_folder(tmp_path, datanode="dn1", cluster="c")
    folder.check_brokers("")
    assert "brokers_id" not in json.loads((tmp_path / VERSION_FILE).read_text()), "as older software wrote it"
    folder.check_brokers("blue")
    folder.mark_prepared(True)
    folder.close()
    again = open_folder(tmp_path, datanode="dn1", cluster="c")
    assert again.layout == layout(prepared=True, brokers_id="blue")
    for told in ("blue", ""):
        again.check_brokers(told)
    with pytest.raises(LayoutRefused, match="the brokers of Kafka cluster 'blue', and .* are those of 'red'"):
        again.check_brokers("red")
    again.close()
    upgraded = start(tmp_path, software_version=2, upgrades={1: lambda _: None})
    assert upgraded == layout(2, brokers_id="blue")


def test_a_folder_without_the_id_of_its_brokers_takes_those_it_is_started_with(tmp_path: Path):
    """Older software wrote none, and drops it when it marks the folder."""
    tmp_path.joinpath(VERSION_FILE).write_text(
        json.dumps({"layout_version": 1, "datanode": "dn1", "cluster": "c", "upgrade_prepared": False})
    )
    folder = open_folder(tmp_path, datanode="dn1", cluster="c")
    folder.check_brokers("red")
    folder.close()
    assert start(tmp_path).brokers_id == "red"


@given(st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_a_version_changes_only_upward_and_only_if_prepared(old: int, new: int, prepared: bool):
    decision = decide(layout(old, prepared=prepared), datanode="dn1", cluster="c", empty=False, software_version=new)
    if old == new:
        assert decision == Keep()
    elif old < new and prepared:
        assert decision == Upgrade(steps=tuple(range(old, new)))
    else:
        assert isinstance(decision, Refuse)


def test_a_new_folder_is_taken_and_stays_its_datanodes(tmp_path: Path):
    assert start(tmp_path / "new") == layout(LAYOUT_VERSION)
    assert start(tmp_path / "new") == layout(LAYOUT_VERSION)
    with pytest.raises(LayoutRefused, match="belongs to datanode 'dn1', not 'dn2'"):
        start(tmp_path / "new", datanode="dn2")
    with pytest.raises(LayoutRefused, match="belongs to cluster 'c', not 'd'"):
        start(tmp_path / "new", cluster="d")


def test_somebody_elses_folder_is_refused_and_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(LayoutRefused, match="not empty"):
        start(tmp_path)
    assert not (tmp_path / VERSION_FILE).exists()


def test_an_upgrade_has_to_be_prepared_and_takes_every_step_once(tmp_path: Path):
    start(tmp_path)
    taken: list[int] = []
    upgrades = {1: lambda _: taken.append(1), 2: lambda _: taken.append(2)}
    with pytest.raises(LayoutRefused, match="not prepared"):
        start(tmp_path, software_version=3, upgrades=upgrades)
    assert taken == []
    folder = open_folder(tmp_path, datanode="dn1", cluster="c")
    folder.mark_prepared(True)
    folder.close()
    assert start(tmp_path) == layout(prepared=True)
    assert start(tmp_path, software_version=3, upgrades=upgrades) == layout(3)
    assert start(tmp_path, software_version=3, upgrades=upgrades) == layout(3)
    assert taken == [1, 2]
    with pytest.raises(LayoutRefused, match="upgrade the software"):
        start(tmp_path)


def test_an_interrupted_upgrade_goes_on_at_the_step_that_failed(tmp_path: Path):
    write_layout(tmp_path, layout(1, prepared=True))
    taken: list[int] = []

    def fails(_: Path) -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        start(tmp_path, software_version=3, upgrades={1: lambda _: taken.append(1), 2: fails})
    assert read_layout(tmp_path) == layout(2, prepared=True)
    assert start(tmp_path, software_version=3, upgrades={2: lambda _: taken.append(2)}) == layout(3)
    assert taken == [1, 2]


def test_a_step_that_is_missing_changes_nothing(tmp_path: Path):
    write_layout(tmp_path, layout(1, prepared=True))
    with pytest.raises(LayoutRefused, match="no upgrade from layout 2"):
        start(tmp_path, software_version=3, upgrades={1: lambda path: (path / "changed").touch()})
    assert not (tmp_path / "changed").exists()


def test_the_mark_can_be_taken_back(tmp_path: Path):
    folder = open_folder(tmp_path, datanode="dn1", cluster="c")
    folder.mark_prepared(True)
    folder.mark_prepared(False)
    folder.close()
    assert start(tmp_path) == layout()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"layout_version": "1", "datanode": "dn1", "cluster": "c", "upgrade_prepared": False}),
    ],
)
def test_a_version_that_cannot_be_understood_is_refused(tmp_path: Path, text: str):
    (tmp_path / VERSION_FILE).write_text(text)
    with pytest.raises(LayoutRefused, match=VERSION_FILE):
        start(tmp_path)


def test_what_an_interrupted_first_start_leaves_is_taken(tmp_path: Path):
    (tmp_path / ".VERSION.new").write_text("{")
    assert start(tmp_path) == layout()


def test_two_processes_do_not_share_a_folder(tmp_path: Path):
    folder = open_folder(tmp_path, datanode="dn1", cluster="c")
    code = "from datanode_processors.layout import *; from pathlib import Path; import sys; open_folder(Path(sys.argv[1]), datanode='dn1', cluster='c')"
    other = [sys.executable, "-c", code, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    refused = subprocess.run(other, capture_output=True, text=True, check=False, env=environment)
    assert "another process has it open" in refused.stderr
    folder.close()
    assert subprocess.run(other, check=False, env=environment).returncode == 0


def test_the_lock_of_a_folder_is_for_its_owner_and_group_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        open_folder(tmp_path / "dn1", datanode="dn1", cluster="test").close()
    finally:
        os.umask(before)
    assert (tmp_path / "dn1" / LOCK_FILE).stat().st_mode & 0o777 == 0o640
