"""Databases: one replica of one shard each (``database``), and what all those of a process share (``host``).

``follower`` feeds databases from Kafka. ``embedded``, with its ``submissions``, is a database with a thread of its own,
for a service in one process. Begin with ``database``.
"""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return what was in the module ``database`` before it was a folder, for one more release."""
    if name not in {"ReplicatedDatabase", "SubmissionUnknown"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from replicated_db.shell.database.embedded import EmbeddedDatabase
    from replicated_db.shell.database.submissions import SubmissionUnknown

    found: Any = EmbeddedDatabase if name == "ReplicatedDatabase" else SubmissionUnknown
    warnings.warn(
        f"{__name__}.{name} is {found.__module__}.{found.__name__}; this name goes with the next release",
        DeprecationWarning, stacklevel=2,
    )  # fmt: skip
    return found
