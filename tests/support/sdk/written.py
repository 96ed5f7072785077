"""Bytes for tests to write, in the client or on the wire."""

import random


def some_bytes(length: int, seed: int = 1) -> bytes:
    """Return bytes that do not compress: the same ones for the same length and seed."""
    return random.Random(seed).randbytes(length)
