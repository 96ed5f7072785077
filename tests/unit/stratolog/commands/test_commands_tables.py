"""Tables: whole lines without a terminal, whole words on a narrow one, names as they are."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from stratolog.commands.common.tables import fitting, harmless, print_table_on, shown_cell

COLUMNS = ("datanode", "address", "rack", "health", "silent ms")
ROWS = [("dn1", "127.0.0.1:9901", "/default-rack", "HEALTHY", 1089), ("dn2", None, None, "UNHEALTHY", 12)]
LESS = ("silent ms", "rack")


def printed(width: int, *, terminal: bool, rows: object = ROWS, columns: object = COLUMNS, less: object = LESS) -> str:
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=terminal, color_system=None, legacy_windows=False)
    print_table_on(console, "Datanodes in /a/long/path/that/nobody/breaks", columns, rows, less)  # type: ignore[arg-type]
    return output.getvalue()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_without_a_terminal_every_row_is_a_line(width: int) -> None:
    long = "k" * 300
    lines = printed(width, terminal=False, rows=[*ROWS, (long, "x y z", "/r", "-", 0)]).splitlines()
    assert sum(long in line for line in lines) == 1
    assert any("dn1" in line and "127.0.0.1:9901" in line and "HEALTHY" in line and "1089" in line for line in lines)


@pytest.mark.parametrize(
    ("width", "gone"), [(42, {"silent ms", "rack"}), (58, {"silent ms"}), (66, set()), (80, set()), (200, set())]
)
def test_on_a_narrow_terminal_columns_go_and_words_stay(width: int, gone: set[str]) -> None:
    text = printed(width, terminal=True)
    for word in ("datanode", "127.0.0.1:9901", "HEALTHY", "UNHEALTHY"):
        assert word in text, width
    assert ("(no room here for: " in text) == bool(gone)
    for name in gone:
        assert name in text.rpartition("no room here for: ")[2].replace("\n", " ")
    assert all(len(line) <= width for line in text.splitlines()[1:]), width


def test_text_is_broken_between_words_before_a_column_goes() -> None:
    cells = [[Text("drill"), Text("what it does in many words")]]
    assert fitting(("name", "does"), cells, ("does",), 20) == {"name": 5, "does": 8}
    assert fitting(("name", "does"), cells, ("does",), 12) == {"name": 5}


def test_a_long_name_takes_no_column_away() -> None:
    cells = [[Text("k" * 500), Text("1 KB")]]
    assert fitting(("key", "size"), cells, ("size",), 40) == {"key": 29, "size": 4}


def test_names_are_not_markup_and_do_not_steer_the_terminal() -> None:
    rows = [("[/]", "[bold red]x[/bold red]"), ("a\x1b[2Jb\nc", ":warning:")]
    text = printed(80, terminal=False, rows=rows, columns=("key", "value"), less=())
    assert "[bold red]x[/bold red]" in text
    assert "a\\x1b[2Jb\\nc" in text
    assert ":warning:" in text
    assert "\x1b" not in text


def test_truths_are_yes_and_no() -> None:
    assert [shown_cell(cell).plain for cell in (True, False, None, 1, 0, "")] == ["yes", "no", "-", "1", "0", ""]
    assert harmless("ä ö\u2028") == "ä ö\\u2028"
