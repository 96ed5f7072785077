"""Single texts as a page shows them."""

from __future__ import annotations

from datetime import UTC, datetime

MAX_TEXT_CHARACTERS = 2_000
"""Most characters of one text on the page: keys and reasons may be kilobytes long."""


def shown(value: object) -> object:
    r"""Return a value as it is shown: not too long, and control characters as what they are, not what they do.

    What is HTML already stays as it is. Nothing is shown for None.

    >>> shown("a\x1b[31m" + chr(0x202E) + "b")
    'a\\x1b[31m\\u202eb'
    """
    if value is None:
        return ""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    if len(text) > MAX_TEXT_CHARACTERS:
        text = f"{text[:MAX_TEXT_CHARACTERS]}…"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _named(one) for one in text)


def _named(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def clock_of(at_ms: int) -> str:
    """Return a time of day in UTC, with its date.

    >>> clock_of(1_767_225_599_999)
    '2025-12-31 23:59:59Z'
    """
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"  # a stranger's record may say anything


def plain_of(value: object) -> str:
    """Return a value of a status or a record as text.

    >>> plain_of(True), plain_of(1234), plain_of(["om1", "om2"])
    ('yes', '1,234', 'om1, om2')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
