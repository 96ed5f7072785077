"""HTML as text: elements whose texts and attributes are escaped, whatever a stranger has written into the log.

The page's Content-Security-Policy allows no inline style and no inline script; widths are attributes of SVG elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from stratolog.ui.core.words import Tone

VOID = frozenset({"br", "hr", "input", "line", "rect", "path", "circle"})
MAX_TEXT_CHARACTERS = 2_000
"""Most characters of one text on the page: keys and reasons may be kilobytes long."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = Markup | str | int | None | Iterable["Content"]


def element(name: str, *children: Content, **attributes: str | float | bool | None) -> Markup:
    """Return an element. ``class_`` is class, ``data_x`` is data-x; an attribute that is None or False is left out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{written}>" if name in {"br", "hr", "input"} else f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Content) -> Markup:
    """Return children one after the other, texts escaped."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int):
        return Markup(escape(shown(str(children))))
    return Markup("".join(map(joined, children)))


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(shown(str(value)))}"'


def shown(text: str) -> str:
    r"""Return a text as it is shown: not too long, and control characters as what they are, not what they do.

    >>> shown("a\x1b[31m" + chr(0x202E) + "b")
    'a\\x1b[31m\\u202eb'
    """
    cut = text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[:MAX_TEXT_CHARACTERS]}…"
    return "".join(one if one.isprintable() or one == "\n" else _named(one) for one in cut)


def _named(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def badge(text: str, tone: Tone) -> Markup:
    """Return a word on a ground of its tone."""
    return element("span", text, class_=f"badge {tone.value}")


def table(
    columns: Iterable[str], rows: Iterable[Iterable[Content]], *, numbers: Iterable[int] = (), caption: str = ""
) -> Markup:
    """Return a table; ``numbers`` are the columns that are aligned to the right."""
    right = frozenset(numbers)

    def cells(kind: str, row: Iterable[Content]) -> list[Markup]:
        return [element(kind, cell, class_="number" if place in right else None) for place, cell in enumerate(row)]

    head = [element("th", name, scope="col", class_="number" if n in right else None) for n, name in enumerate(columns)]
    return element(
        "table", element("caption", caption, class_="hidden") if caption else None,
        element("thead", element("tr", head)), element("tbody", [element("tr", cells("td", row)) for row in rows]),
    )  # fmt: skip


def quiet(text: str) -> Markup:
    """Return a remark in small grey type."""
    return element("p", text, class_="quiet")


def facts_line(facts: Iterable[tuple[str, Content]]) -> Markup:
    """Return figures side by side, each with its name."""
    return element("dl", [element("div", element("dt", name), element("dd", value)) for name, value in facts])
