"""The state file: what is written is read back, what is damaged is refused, what is stale harms nobody."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UserError
from stratolog.local.processes import Process
from stratolog.local.state import (
    SETTINGS_FILE,
    UI,
    StackMember,
    StackState,
    connected,
    locked,
    read_state,
    running_state,
    state_file,
    write_state,
)

GONE = Process(pid=os.getpid(), started="long ago")


def member(process: Process, name: str = "om1", kind: str = "node") -> StackMember:
    return StackMember(
        kind=kind, name=name, address="127.0.0.1:9871", log=Path("/x.log"), process=process, extra={"port": 1}
    )


def this_process() -> Process:
    found = Process.of(os.getpid())
    assert found is not None
    return found


def settings_in(folder: Path, **variables: str) -> Settings:
    return load_settings(environment={"STRATOLOG_DATA_DIR": str(folder), **variables})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    state = StackState(members=(member(GONE), member(this_process(), "b", "broker")))
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    assert os.listdir(tmp_path) == ["stack.json"]


def test_members_by_kind_and_by_life(tmp_path: Path) -> None:
    gone, here = member(GONE), member(this_process(), "b", "broker")
    state = StackState(members=(gone, here))
    assert state.of("node") == (gone,)
    assert state.running() == (here,)


def test_no_file_is_no_stack(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    with pytest.raises(Unavailable, match="no stack is running in .*stratolog up"):
        running_state(tmp_path)


def test_a_stale_file_is_no_running_stack(tmp_path: Path) -> None:
    write_state(tmp_path, StackState(members=(member(GONE),)))
    with pytest.raises(Unavailable, match="no stack is running"):
        running_state(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"version": 1}', '{"version": 1, "members": [{}]}', '{"version": 1, "members": 3}'],
)
def test_a_damaged_file_is_refused_by_name(content: str, tmp_path: Path) -> None:
    state_file(tmp_path).write_text(content)
    with pytest.raises(UserError, match=r"stack\.json is not readable"):
        read_state(tmp_path)


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    state_file(tmp_path).write_text(json.dumps({"version": 2, "members": []}))
    with pytest.raises(UserError, match="of version 2, not 1"):
        read_state(tmp_path)


def test_only_one_command_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UserError, match="another command is starting or stopping"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_running_stack_lends_its_settings(tmp_path: Path) -> None:
    stack = settings_in(tmp_path).with_values(bootstrap_servers="127.0.0.1:20001", shards=4, caller="starter")
    (tmp_path / SETTINGS_FILE).write_text(stack.to_toml())
    write_state(tmp_path, StackState(members=(member(this_process()),)))
    found = connected(settings_in(tmp_path, STRATOLOG_CALLER="alice", STRATOLOG_MAX_IN_FLIGHT="7"))
    assert (found.bootstrap_servers, found.shards) == ("127.0.0.1:20001", 4)
    assert (found.caller, found.max_in_flight) == ("alice", 7)


def test_explicit_brokers_win_over_the_running_stack(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text(settings_in(tmp_path).with_values(shards=4).to_toml())
    write_state(tmp_path, StackState(members=(member(this_process()),)))
    given = settings_in(tmp_path, STRATOLOG_BOOTSTRAP_SERVERS="elsewhere:9092")
    assert connected(given) == given


def test_a_stack_that_does_not_run_lends_nothing(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text(settings_in(tmp_path).with_values(shards=4).to_toml())
    write_state(tmp_path, StackState(members=(member(GONE),)))
    assert connected(settings_in(tmp_path)).shards == 2


def test_older_software_reads_the_file_of_a_stack_with_a_dashboard(tmp_path: Path) -> None:
    """It refuses kinds that it does not know, and it looks at 'members' alone."""
    dashboard = replace(member(this_process()), kind=UI, name=UI)
    known = StackState(members=(member(this_process()), dashboard))
    write_state(tmp_path, known)
    assert read_state(tmp_path) == known
    written = json.loads(state_file(tmp_path).read_text())
    assert (written["version"], [one["kind"] for one in written["members"]]) == (1, ["node"])
    del written["more"]  # as older software writes it
    state_file(tmp_path).write_text(json.dumps(written))
    assert read_state(tmp_path) == StackState(members=known.members[:1])
