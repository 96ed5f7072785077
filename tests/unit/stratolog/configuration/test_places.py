"""Where settings and a stack are found when nobody says, and users without a name or a home."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from producers.requests.caller import default_caller
from stratolog.configuration.loading import load_settings
from stratolog.configuration.places import project_directory, stack_directory, user_name, working_directory
from stratolog.errors import UsageError
from stratolog.local import jars


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make a directory below the test's own, and go there."""

    def go(path: str) -> Path:
        folder = tmp_path / path
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(folder)
        return folder

    return go


def stack_in(folder: Path) -> Path:
    data = folder / ".stratolog"
    data.mkdir(parents=True)
    (data / "stack.toml").write_text("")
    return data


def test_a_stack_above_the_working_directory_is_found_and_nothing_is_made(
    inside: Callable[[str], Path], tmp_path: Path
) -> None:
    data = stack_in(tmp_path / "project")
    below = inside("project/a/b")
    assert load_settings(environment={}).data_dir == data
    assert os.listdir(below) == []


def test_without_one_it_is_the_working_directory(inside: Callable[[str], Path], tmp_path: Path) -> None:
    below = inside("elsewhere")
    (tmp_path / ".stratolog").mkdir()  # no stack was ever started in it
    assert load_settings(environment={}).data_dir == below / ".stratolog"


def test_the_nearest_one_counts(inside: Callable[[str], Path], tmp_path: Path) -> None:
    stack_in(tmp_path / "project")
    nearer = stack_in(tmp_path / "project" / "a")
    inside("project/a/b")
    assert load_settings(environment={}).data_dir == nearer


def test_a_settings_file_above_says_where_from_its_own_directory(inside: Callable[[str], Path], tmp_path: Path) -> None:
    inside("project/a")
    (tmp_path / "project" / "stratolog.toml").write_text('data_dir = "data"\nshards = 5\n')
    found = load_settings(environment={})
    assert (found.data_dir, found.shards) == (tmp_path / "project" / "data", 5)
    (tmp_path / "project" / "stratolog.toml").write_text("shards = 5\n")
    assert load_settings(environment={}).data_dir == tmp_path / "project" / ".stratolog"


def test_what_is_given_is_from_the_working_directory(inside: Callable[[str], Path], tmp_path: Path) -> None:
    data = stack_in(tmp_path / "project")
    below = inside("project/a")
    assert load_settings(environment={"STRATOLOG_DATA_DIR": "mine"}).data_dir == below / "mine"
    named = tmp_path / "other.toml"
    named.write_text("shards = 3\n")
    assert load_settings(named, environment={}).data_dir == data
    named.write_text('data_dir = "mine"\n')
    assert load_settings(named, environment={}).data_dir == below / "mine"


def test_a_strangers_stack_further_up_is_not_ours(
    inside: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp anybody may leave settings that name his own servers."""
    stack_in(tmp_path / "project")
    below = inside("project/a")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert project_directory(below) == stack_directory(below) == below
    assert project_directory(tmp_path / "project") == tmp_path / "project", "here, one is where one went"


def test_a_working_directory_that_is_gone(inside: Callable[[str], Path]) -> None:
    inside("gone").rmdir()
    with pytest.raises(UsageError, match="the working directory is gone"):
        working_directory()


# -- users without a name, a home ----------------------------------------------------------------------------------------


def test_a_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container under an arbitrary user id: every command ended in a traceback."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 1000650000")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert default_caller() == user_name() == str(os.getuid())
    settings = load_settings(environment={})
    assert settings.caller == str(os.getuid())


@pytest.mark.parametrize("name", ["DOMAIN\\alice", "alice@example.org", "josé", "a b", "x" * 255])
def test_any_name_of_a_system_goes_through_the_stacks_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that was good enough for the default was refused where the stack's settings were read back."""
    monkeypatch.setattr(getpass, "getuser", lambda: name)
    written = tmp_path / "stack.toml"
    written.write_text(load_settings(environment={}).to_toml())
    assert load_settings(written, environment={}).caller == name


@pytest.mark.parametrize("name", ["a\x1b[2J", "x" * 256, " "])
def test_names_that_nobody_has(name: str) -> None:
    with pytest.raises(UsageError, match="STRATOLOG_CALLER"):
        load_settings(environment={"STRATOLOG_CALLER": name})


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(self: Path) -> Path:
        if self.parts and self.parts[0].startswith("~"):
            raise RuntimeError("Could not determine home directory.")
        return self

    monkeypatch.setattr(Path, "expanduser", unknown)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_only_who_needs_the_cache_is_refused(tmp_path: Path) -> None:
    settings = load_settings(environment={})
    assert settings.cache_dir == Path("~/.cache/stratolog")
    written = tmp_path / "stack.toml"
    written.write_text(settings.to_toml())
    assert load_settings(written, environment={}).cache_dir == settings.cache_dir
    with pytest.raises(UsageError, match="no home directory is known.*set STRATOLOG_CACHE_DIR"):
        jars.fetch("kafka", "0", settings.cache_dir)
    with pytest.raises(UsageError, match="setting 'data_dir': no home directory is known for ~/x"):
        load_settings(environment={"STRATOLOG_DATA_DIR": "~/x"})
