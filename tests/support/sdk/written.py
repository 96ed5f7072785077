"""Bytes for tests to write, in the client or on the wire."""

import random
from itertools import count

_seeds = count(1)


def some_bytes(length: int, seed: int = 1) -> bytes:
    """Return bytes that do not compress: the same ones for the same length and seed."""
    return random.Random(seed).randbytes(length)


def fresh_bytes(length: int) -> bytes:
    """Return bytes that no call before has returned: what is read back is then what was written last, and nothing else."""
    return some_bytes(length, next(_seeds))
