"""Options that all commands take, and the settings of an invocation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.local import state
from stratolog.nodes.node_http import learn, sign

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """Options given before the command's name. ``at`` is a state directory to read instead of the running stack."""

    config: Path | None
    at: Path | None = None


def settings_of(context: typer.Context) -> Settings:
    """Return the settings of this invocation; raises UsageError if one is wrong."""
    return learn(load_settings(context.ensure_object(Invocation).config))


def connected_settings_of(context: typer.Context) -> Settings:
    """Return the settings that reach the running local stack, or what was given explicitly."""
    return sign(learn(state.connected(settings_of(context))))
