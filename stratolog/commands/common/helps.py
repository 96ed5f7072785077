"""What ``--help`` shows of an argument: its form, not the class that reads it.

Typer shows an argument's type beside its form, as in ``/VOLUME/BUCKET <Address>``. The form says enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
import typer.main


def tidied(app: typer.Typer) -> Any:
    """Return an app's command (a ``click`` group), without the types of arguments that have a form of their own."""
    command = typer.main.get_command(app)
    for one in _all(command):
        for parameter in one.params:
            if isinstance(parameter, typer.core.TyperArgument) and parameter.metavar is not None:
                setattr(parameter, "display_type_rich", _nothing)  # noqa: B010 - mypy lets nobody assign a method
    return command


def _nothing(ctx: Any) -> None:  # noqa: ARG001 - the signature is typer's
    return None


def _all(command: Any) -> Iterator[Any]:
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from _all(child)
