"""Output for people and for programs: results go to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console

from stratolog.commands.common.tables import harmless, print_table_on

console = Console()
"""Where results go."""
notes = Console(stderr=True)
"""Where progress and errors go."""


def complain(name: str, word: str, message: str, **more: Any) -> None:
    """Say on standard error why a command ends: a sentence, with ``--json`` one object."""
    printed.complaints += 1
    if "--json" in sys.argv:
        notes.file.write(json.dumps({"error": name, **more, "message": message}) + "\n")
        return
    notes.print(f"[bold red]{word}:[/]", end=" ")
    notes.print("\n".join(map(harmless, message.splitlines())), markup=False, highlight=False, soft_wrap=True)


@dataclass(slots=True)
class Printed:
    """How many results and complaints were printed.

    While ``results`` grows, a command need not say why it takes long (``waiting``).
    """

    results: int = 0
    complaints: int = 0


printed = Printed()


def print_json(value: Any) -> None:
    """Print one JSON object on one line."""
    printed.results += 1
    typer.echo(json.dumps(value, default=str))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], less: Sequence[str] = ()
) -> None:  # fmt: skip
    """Print a table; on a narrow terminal columns of ``less`` are left out, the first one first."""
    printed.results += 1
    print_table_on(console, title, columns, rows, less)


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show what is going on: a spinner on a terminal, lines elsewhere, nothing if ``quiet``."""
    if quiet:
        yield lambda _: None
    elif notes.is_terminal:
        with notes.status("starting") as spinner:
            yield spinner.update
    else:
        yield lambda text: notes.print(text, markup=False, highlight=False)


def print_fleet(found: Mapping[str, Any]) -> None:
    """Print datanodes and pipelines as a node's HTTP API returns them."""
    datanodes = [
        (
            one["datanode"], one["address"] or None, one["rack"] or None, one["state"], one["health"], one["silent_ms"],
            f"{one['free_bytes'] / 1e9:.1f} GB", one["containers"], " ".join(map(str, one["pipelines"])) or None,
        )
        for one in found.get("datanodes", ())
    ]  # fmt: skip
    if datanodes:
        columns = ("datanode", "address", "rack", "state", "health", "silent ms", "free", "containers", "pipelines")
        print_table(
            "Datanodes", columns, datanodes, ("rack", "silent ms", "containers", "free", "pipelines", "address")
        )
    pipelines = [
        (
            one["pipeline"], one["state"], bool(one["usable"]), one["leader"],
            " ".join(member["datanode"] for member in one["members"]),
        )
        for one in found.get("pipelines", ())
    ]  # fmt: skip
    if pipelines:
        of_pipelines = ("pipeline", "state", "takes blocks", "leader", "members")
        print_table("Pipelines", of_pipelines, pipelines, ("leader", "members"))
