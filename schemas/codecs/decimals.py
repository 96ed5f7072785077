"""Whole numbers that somebody else has written in decimal digits.

``int`` takes digits of any script, and raises ValueError beyond 4,300 of them: a caller that has asked
``str.isdecimal`` first does not expect it. So text of a query, a command, a setting, a file or a peer is read here.
"""

from __future__ import annotations

MAX_DECIMAL = 2**63 - 1
"""The largest number that is read, unless the caller has a limit of its own: the numbers of records have 64 bits."""


def decimal_of(text: str, highest: int = MAX_DECIMAL) -> int | None:
    """Return the number that ASCII digits say; None for other text, and for a number beyond ``highest``.

    >>> decimal_of("0017"), decimal_of("17", 16), decimal_of("-1"), decimal_of("9" * 5000), decimal_of("٣")
    (17, None, None, None, None)
    """
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0")
    if len(digits) > len(str(highest)):
        return None
    found = int(digits or "0")
    return found if found <= highest else None
