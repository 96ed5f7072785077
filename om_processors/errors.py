"""The error of request execution and queries: a result code and a message that names the input.

Rule: a request that the caller or the state makes impossible raises :class:`OMError`. The error becomes the response,
and the request changes nothing. Any other exception is a defect or a failing store, and is not caught here.
"""

from __future__ import annotations


class OMError(Exception):
    """A refused request or query; ``status`` is a code of ``schemas/result_codes.py``."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
