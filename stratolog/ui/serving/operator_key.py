"""Who may start a drill from the page: whoever has a link that was made with the cluster's secret (decision 0052).

A browser cannot read the secret's file, and the secret must not go through an address bar. So each dashboard draws a
number when it starts, which is public, and an *operator's key* is derived from the secret and that number
(``ClusterSecret.link_key``). A link holds the key behind ``#``, which a browser never sends. The page's script proves
with it, call by call, what nodes' callers prove with the secret itself (``schemas/privilege.py``). A key ends with its
dashboard.
"""

from __future__ import annotations

import secrets

from schemas.privilege import ClusterSecret

NUMBER_BYTES = 16


def new_number() -> str:
    """Return a dashboard's number, in hexadecimal."""
    return secrets.token_hex(NUMBER_BYTES)


def secret_of_key(key: str) -> ClusterSecret:
    """Return what judges the proofs that are made with a key."""
    return ClusterSecret(key.encode())


def operator_link(url: str, key: str) -> str:
    """Return the URL of a dashboard (``http://host:port/``) with an operator's key."""
    return f"{url}#operator={key}"
