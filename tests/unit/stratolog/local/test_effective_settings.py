"""What a stack's data directory says of whom nodes believe, and what a later ``up`` makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.local.effective_settings import effective_settings
from stratolog.local.stack import weaknesses
from stratolog.local.state import SETTINGS_FILE, StackState


class Up:
    """A data directory, and ``up`` as far as its settings go; ``given`` is what a file or an option says."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "stack"
        self.data_dir.mkdir()

    def __call__(self, **given: Any) -> Settings:
        asked = replace(Settings(data_dir=self.data_dir), **given, explicit=frozenset(given))
        found, _ = effective_settings(asked, StackState())
        (self.data_dir / SETTINGS_FILE).write_text(found.to_toml())
        return load_settings(self.data_dir / SETTINGS_FILE, environment={})


@pytest.fixture
def up(tmp_path: Path) -> Up:
    return Up(tmp_path)


def test_auth_stays_signed_when_the_stack_is_started_again_without_the_setting(up: Up):
    assert up(auth="signed").auth == "signed"
    assert up().auth == "signed"
    assert up(brokers=1).auth == "signed"
    assert up(auth="none").auth == "none"
    assert up().auth == "none"


def test_a_stack_that_becomes_secure_has_its_users_sign(up: Up):
    assert up().auth == "none"
    assert (up(secure=True).secure, up().auth) == (True, "signed")
    # It is lowered by a word about it alone: open brokers do not mean that nodes believe anybody.
    assert (up(secure=False).secure, up().auth) == (False, "signed")
    assert up(auth="none").auth == "none"
    assert up(secure=True, auth="none").auth == "none"


def test_a_secure_stack_of_an_older_release_keeps_what_its_users_have(up: Up):
    up(secure=True, auth="none")
    assert up(secure=True).auth == "none"
    assert up(auth="signed").auth == "signed"


def test_up_says_that_users_of_a_secure_stack_do_not_sign(up: Up):
    said = [words for words in weaknesses(up(secure=True, auth="none")) if "auth is none" in words]
    assert len(said) == 1
    assert "'up --auth signed'" in said[0]
    assert weaknesses(up(auth="signed")) == []
    assert weaknesses(up(secure=False, auth="none")) == []


def test_block_tokens_stay_as_they_were_asked_for_while_there_is_tls(up: Up):
    assert up(secure=True, block_tokens=False).block_tokens is False
    assert up().block_tokens is False
    assert up(block_tokens=True).block_tokens is True
    assert up().block_tokens is True
    assert up(secure=False).block_tokens is None


@pytest.mark.parametrize(
    ("before", "given"),
    [
        ({"auth": "signed"}, {"auth": "none"}),
        ({"auth": "none"}, {"auth": "signed"}),
        ({"secure": True}, {"auth": "none"}),
        ({"secure": True}, {"secure": False}),
        ({}, {"secure": True}),
        ({"secure": True}, {"block_tokens": False}),
    ],
)
def test_whom_nodes_believe_does_not_change_while_processes_run(
    up: Up, monkeypatch: pytest.MonkeyPatch, before: dict[str, Any], given: dict[str, Any]
):
    kept = up(**before)
    monkeypatch.setattr(StackState, "running", lambda _: ("one that runs",))
    with pytest.raises(UsageError, match="'stratolog down' first"):
        up(**given)
    again = up()
    assert (again.auth, again.secure, again.block_tokens) == (kept.auth, kept.secure, kept.block_tokens)
