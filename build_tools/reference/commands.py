"""docs/reference/commands.md: every command with its arguments and options, from the command line's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.core

from build_tools.reference.markdown import code, page, prose, table
from stratolog.cli import EXIT_STATUS_HELP, build_app
from stratolog.commands.common.helps import tidied


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of each command, and the command itself, in the order in which ``--help`` lists them."""
    yield from _below((), tidied(build_app()))


def _below(words: tuple[str, ...], group: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from _below((*words, name), command)
        else:
            yield (*words, name), command


def commands_page() -> str:
    """Return the page."""
    intro = prose(
        "Every command has `--help`, which says the same. `--config FILE` comes before the command's name and gives "
        f"the settings file. {EXIT_STATUS_HELP} This page is made from the code."
    )
    parts: list[list[str]] = []
    before = None
    for words, command in commands():
        if words[0] != before:
            before = words[0]
            parts.append([f"## {before}", ""])
        parts.append(_section(words, command))
    return page("Commands", intro, *parts)


def _section(words: tuple[str, ...], command: Any) -> list[str]:
    context = command.make_context(words[-1], [], resilient_parsing=True)
    arguments = [one for one in command.params if isinstance(one, typer.core.TyperArgument)]
    options = [one for one in command.params if not isinstance(one, typer.core.TyperArgument) and not one.hidden]
    form = " ".join(["stratolog", *words, *map(_form, arguments), *(["[OPTIONS]"] if options else [])])
    lines = [f"### stratolog {' '.join(words)}", "", "```text", form, "```", "", *prose(command.help or "")]
    rows = [(code(_form(one)), one.help or "") for one in arguments]
    rows += [(_names(one, context), one.help or "") for one in options]
    return lines + (table(("argument", "meaning"), rows) if rows else [])


def _form(argument: Any) -> str:
    form = argument.metavar or argument.name.upper()
    form = f"{form}..." if argument.nargs == -1 and not form.endswith("...") else form
    return form if argument.required or form.startswith("[") else f"[{form}]"


def _names(option: Any, context: Any) -> str:
    names = ", ".join(code(one) for one in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    return f"{names} {code(option.metavar or option.display_type(context).strip('<>'))}"
