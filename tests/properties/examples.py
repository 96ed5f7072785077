"""How many examples a property is tried on: all of them in ``make test-full``, a fifth in ``make test``."""

from __future__ import annotations

import os

QUICK_SHARE = 5
FEWEST = 10


def examples(full: int) -> int:
    """Return how many examples are tried now, of ``full``: all if THOROUGH is set, as ``make test-full`` does."""
    return full if os.environ.get("THOROUGH") else max(min(full, FEWEST), full // QUICK_SHARE)
