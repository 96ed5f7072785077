"""Which page of a bucket's keys a client wants, by the direct door."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPage:
    """At most ``limit`` keys whose names begin with ``prefix`` and come after ``start_after``."""

    prefix: str
    start_after: str
    limit: int
