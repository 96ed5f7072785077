"""Single nodes of the local stack, for the commands that start and stop them."""

from __future__ import annotations

from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable
from stratolog.local import state
from stratolog.local.state import NODE, StackMember


def member_of(settings: Settings, name: str) -> StackMember | None:
    """Return a node of the local stack, running or not; raises Unavailable if there is no stack."""
    known = state.read_state(settings.data_dir)
    if known is None:
        raise Unavailable(f"no stack is running in {settings.data_dir}: start one with 'stratolog up'")
    return next((member for member in known.of(NODE) if member.name == name), None)
