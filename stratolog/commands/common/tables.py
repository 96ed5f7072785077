"""Tables for people, as wide as what they are printed on.

Rules:

1. Where there is no terminal (a pipe, a file) nothing is folded: every row is one line, however long.
2. On a terminal that is too narrow, text is broken between words first. Then columns are left out, the least important
   one first (``less``), and a line below the table names them. Words are broken only when no more columns may be left
   out.
3. None is shown as a dash, a boolean as ``yes`` or ``no``.
4. Names come from users: a text is printed as it is, never read as markup, and characters that would steer a terminal
   are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

LONG_WORD = 24
"""A longer word (a key's name, a path) is broken before a column is left out because of it."""
UNBOUNDED = 1_000_000
"""Width of a line, in characters, where there is no terminal."""


def shown_cell(cell: object) -> Text:
    """Return a cell's text; a ``Text`` stays as it is.

    >>> shown_cell(None).plain, shown_cell(True).plain, shown_cell(0).plain, shown_cell("[b]").plain
    ('-', 'yes', '0', '[b]')
    """
    if isinstance(cell, Text):
        return cell
    if cell is None:
        return Text("-")
    if isinstance(cell, bool):
        return Text("yes" if cell else "no")
    return Text(harmless(str(cell)))


def yes_or_no(*, holds: bool) -> Text:
    """Return the answer to a question, in green or red."""
    return Text("yes", style="green") if holds else Text("NO", style="bold red")


def harmless(text: str) -> str:
    """Return a text with escapes for characters that would steer a terminal or end the line.

    >>> harmless("a" + chr(27) + "[2J") == "a" + chr(92) + "x1b[2J"
    True
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def print_table_on(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], less: Sequence[str] = ()
) -> None:
    """Print a table; columns of ``less`` are left out where there is no room, the first one first."""
    cells = [[shown_cell(cell) for cell in row] for row in rows]
    console.print(Text(harmless(title), style="italic"), soft_wrap=True)
    if not console.is_terminal:
        whole = fitting(columns, cells, (), UNBOUNDED)
        wide = Console(file=console.file, width=_total(whole.values()), no_color=True)
        wide.print(_table(columns, cells, whole))
        return
    shown = fitting(columns, cells, less, console.width)
    console.print(_table(columns, cells, shown))
    if gone := [name for name in columns if name not in shown]:
        console.print(f"(no room here for: {', '.join(gone)})", style="dim", markup=False, highlight=False)


def fitting(columns: Sequence[str], cells: Sequence[Sequence[Text]], less: Sequence[str], width: int) -> dict[str, int]:
    """Return the columns that are shown in ``width``, and how wide each is. Pure.

    Each column is as wide as its longest cell if all columns fit. Else the widest columns shrink, down to their longest
    word. If that is not enough, columns of ``less`` are left out, the first one first.
    """
    texts = {name: [Text(name), *(row[number] for row in cells)] for number, name in enumerate(columns)}
    need = {
        name: max(_longest_word(own[0]), *(min(_longest_word(text), LONG_WORD) for text in own))
        for name, own in texts.items()
    }
    for name in less:
        if _total(need.values()) <= width:
            break
        need.pop(name)
    found = {name: max(text.cell_len for text in texts[name]) for name in need}
    while (surplus := _total(found.values()) - width) > 0:
        # A column is narrower than its longest word only when no column can shrink otherwise.
        least = need if any(found[name] > need[name] for name in found) else dict.fromkeys(found, 1)
        widest = max((name for name in found if found[name] > least[name]), key=lambda name: found[name], default=None)
        if widest is None:
            break
        second = max((found[name] for name in found if name != widest and found[name] > least[name]), default=0)
        found[widest] = max(least[widest], found[widest] - surplus, min(second, found[widest] - 1))
    return found


def _total(widths: Iterable[int]) -> int:
    """Return the width of a table: two spaces before each column, one behind it, one at the end."""
    return 1 + sum(width + 3 for width in widths)


def _longest_word(text: Text) -> int:
    return max((cell_len(word) for word in text.plain.split()), default=0)


def _table(columns: Sequence[str], cells: Sequence[Sequence[Text]], widths: Mapping[str, int]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    kept = [number for number, name in enumerate(columns) if name in widths]
    for number in kept:
        table.add_column(Text(columns[number]), overflow="fold", width=widths[columns[number]])
    for row in cells:
        table.add_row(*(row[number] for number in kept))
    return table
