"""Small pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill

COLUMNS = 120
"""Columns of prose, as in all pages."""


def cell(text: object) -> str:
    """Return text for a cell of a table: on one line, its bars escaped."""
    return " ".join(str(text).split()).replace("|", "\\|")


def code(text: object) -> str:
    """Return text as code, and nothing for nothing."""
    return f"`{text}`" if str(text) else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table, and an empty one."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return [*lines, ""]


def prose(text: str) -> list[str]:
    """Return the lines of paragraphs, each within COLUMNS and followed by an empty one."""
    paragraphs = ["\n".join(lines.split()) for lines in text.strip().split("\n\n")]
    lines: list[str] = []
    for paragraph in paragraphs:
        one_line = " ".join(paragraph.split())
        lines += [*fill(one_line, COLUMNS, break_long_words=False, break_on_hyphens=False).splitlines(), ""]
    return lines


def plain(text: str) -> str:
    """Return a docstring's text as Markdown: double backticks become single ones, roles their names."""
    for role in (":func:", ":class:", ":meth:", ":mod:", ":data:"):
        text = text.replace(role, "")
    return text.replace("``", "`")


def page(title: str, *parts: Iterable[str]) -> str:
    """Return a page."""
    lines = [f"# {title}", ""]
    for part in parts:
        lines += part
    return "\n".join(lines).rstrip() + "\n"
