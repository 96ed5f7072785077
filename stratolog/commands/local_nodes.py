"""Single nodes of the local stack, for the commands that start and stop them."""

from __future__ import annotations

from stratolog.errors import Unavailable
from stratolog.local import stack, state
from stratolog.local.processes import spawn
from stratolog.local.state import NODE, Member
from stratolog.settings import Settings


def spawn_node(settings: Settings, name: str) -> Member:
    """Start a node's process, as 'stratolog up' does."""
    log = settings.data_dir / "logs" / f"{name}.log"
    environment = stack.node_environment(settings.data_dir / state.SETTINGS_FILE)
    process = spawn(stack.node_command(name), log=log, detached=True, env=environment)
    return Member(kind=NODE, name=name, address=settings.node(name).address, log=log, process=process, extra={})


def member_of(settings: Settings, name: str) -> Member | None:
    """Return a node of the local stack, running or not; raises Unavailable if there is no stack."""
    known = state.read_state(settings.data_dir)
    if known is None:
        raise Unavailable(f"no stack is running in {settings.data_dir}: start one with 'stratolog up'")
    return next((member for member in known.of(NODE) if member.name == name), None)
