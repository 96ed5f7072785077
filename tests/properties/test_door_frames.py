"""Frames of the direct door, mutated: each side goes on, or says why it ends the connection (``door_fuzz``)."""

from __future__ import annotations

from tests.properties.examples import examples
from tests.support.om.door_fuzz import fuzz


def test_mutated_frames_are_read_or_refused_with_a_reason() -> None:
    seen = fuzz(examples(60_000), seed=18)
    for what in ("node: goes on", "node: told and left", "client: goes on", "client: leaves the node"):
        assert seen[what] > 100, seen
    for what in (
        "request: Proposal",
        "request: Rejected",
        "lookup",
        "client: ROWS read",
        "client: ROWS cannot be read",
    ):
        assert seen[what] > 10, seen
