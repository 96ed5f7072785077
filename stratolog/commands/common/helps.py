"""What ``--help`` shows of arguments: their form, and not which class of ours reads them.

Typer shows the type of an argument beside its form: ``/VOLUME/BUCKET  <Address>``. The form says it already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
import typer.main


def tidied(app: typer.Typer) -> Any:
    """Return the command of an app (a ``click`` group), with the types of arguments that have a form of their own left out."""
    command = typer.main.get_command(app)
    for one in _all(command):
        for parameter in one.params:
            if isinstance(parameter, typer.core.TyperArgument) and parameter.metavar is not None:
                setattr(parameter, "display_type_rich", _nothing)  # noqa: B010 - a method, which mypy does not let us assign
    return command


def _nothing(ctx: Any) -> None:  # noqa: ARG001 - the signature is typer's
    return None


def _all(command: Any) -> Iterator[Any]:
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from _all(child)
