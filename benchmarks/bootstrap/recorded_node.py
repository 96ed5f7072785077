"""An Object Manager node that writes down what its bootstrap does, and may be told to have no content.

    python -m benchmarks.bootstrap.recorded_node --events FILE [--full] [--unprepared] NODE

It is the node's own code. The bootstrap machine is one that also writes a line of JSON when it asks for a listing
(``asked``), gets it (``listed``), has fetched all of it (``round``), has checked the candidate (``checked``), and when
something fails (``failed``). With ``--full`` the candidate says in each round that it has no content, so that each
round is a full copy: what a bootstrap without content addresses would do. With ``--unprepared`` a leader takes each
snapshot at once, whatever is in memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from om_processors.leading.core import preparation
from replicated_db.core.bootstrap.bootstrap_machine import (
    AskListing,
    BootstrapEvent,
    BootstrapMachine,
    BootstrapState,
    Checked,
    CheckFailed,
    Fetched,
    Instruction,
    Listed,
    PeerFailed,
)
from replicated_db.core.bootstrap.listing import Content
from replicated_db.shell.bootstrap import bootstrap
from replicated_db.shell.bootstrap.candidate import Candidate
from stratolog.__main__ import main as run_command


class RecordedMachine(BootstrapMachine):
    """The machine; it writes down what it sees."""

    events: ClassVar[Path]

    def on(self, event: BootstrapEvent) -> list[Instruction]:
        """Take an event, and write down what it means."""
        rounds = self.rounds
        instructions = super().on(event)
        if isinstance(event, Listed) and self.rounds > rounds:
            listed = sum({one.content: one.content.size for one in event.listing.files}.values())
            self._write("listed", offset=event.listing.position.offset, listed_bytes=listed)
        if self._has_ended_round(event):
            self._write("round")
        if isinstance(event, Checked):
            self._write("checked")
        if isinstance(event, CheckFailed | PeerFailed):
            self._write("failed", reason=event.reason)
        if any(isinstance(one, AskListing) for one in instructions):
            self._write("asked")
        return instructions

    def _has_ended_round(self, event: BootstrapEvent) -> bool:
        """Whether all of a listing is here; the answer to the last one may have listed nothing new."""
        if isinstance(event, Fetched):
            return self.state in (BootstrapState.LISTING, BootstrapState.CHECKING)
        return isinstance(event, Listed) and self.state is BootstrapState.CHECKING

    def _write(self, event: str, **more: Any) -> None:
        record = {"event": event, "time_s": time.time(), "round": self.rounds, "fetched_bytes": self.fetched_bytes}
        with self.events.open("a") as file:
            file.write(json.dumps({**record, **more}) + "\n")


class ForgetfulCandidate(Candidate):
    """A candidate that says to have nothing; what was fetched serves the round in which it was fetched."""

    @property
    def have(self) -> frozenset[Content]:
        """No content."""
        return frozenset()


def main() -> None:
    """Run the node until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--unprepared", action="store_true")
    parser.add_argument("node")
    given = parser.parse_args()
    RecordedMachine.events = given.events
    vars(bootstrap)["BootstrapMachine"] = RecordedMachine
    if given.full:
        vars(bootstrap)["Candidate"] = ForgetfulCandidate
    if given.unprepared:
        vars(preparation)["PREPARED_ROWS"] = sys.maxsize
    sys.argv = ["stratolog", "node", "run", given.node]
    run_command()


if __name__ == "__main__":
    main()
