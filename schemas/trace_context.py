"""How a trace travels with a request and with a record of the log (decision 0062).

A traced request is a record of ``om.requests`` of its own, whose key is the W3C ``traceparent`` of its call, in ASCII.
Record keys are the one place beside the value that a leader may read from strangers: the headers of a stranger's record
end librdkafka's Python binding (decision 0033). A privileged request's key is its proof, so it is not traced. A record
of ``om.log`` names the traced requests in it by headers, ``traceparent`` once for each; who may write there may be
believed. Neither is part of any value, of any hash or of the chain.
"""

from __future__ import annotations

TRACEPARENT = "traceparent"
"""Name of the headers, and of the field in the W3C's recommendation."""

TRACEPARENT_BYTES = 55
"""Length of a ``traceparent`` of version 00: ``00-TRACE_ID-SPAN_ID-FLAGS``, in hexadecimal digits.

A proof, the only other key, has 32 bytes.
"""


def traceparent_of(key: bytes | None) -> str | None:
    """Return what may be a ``traceparent`` in a record's key, or in a header's value; None for anything else.

    Whether its digits are some is for the reader of the text to say.

    >>> traceparent_of(b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01")
    '00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01'
    >>> traceparent_of(bytes(32)), traceparent_of(None)
    (None, None)
    """
    if key is None or len(key) != TRACEPARENT_BYTES or not key.isascii():
        return None
    return key.decode("ascii")
