"""What can be seen of a log record without decoding it.

Every record but a claim begins with its term and the nonce of its claim (``records.log``).
"""

from __future__ import annotations

from schemas.codecs.codec import HEADER_BYTES

NONCE_BYTES = 16
MOST_TERM_BYTES = 10
"""What a ``long`` takes at the most."""

_STOP = HEADER_BYTES + MOST_TERM_BYTES + NONCE_BYTES


def has_nonce(value: bytes, nonce: bytes) -> bool:
    """Whether an encoded record may be of the claim of ``nonce``.

    It says so of another claim's record only with the probability that random bytes are equal.
    """
    return value.find(nonce, HEADER_BYTES, _STOP) >= 0
