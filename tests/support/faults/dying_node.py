"""A node that is killed in its install at an exact place: ``python dying_node.py NAME PLACE`` runs the real node, with SIGKILL from itself.

Between two renames of an install lie microseconds on some disks, so nobody from outside meets each. A place is ``BUILD`` (all files are
fetched, the tree is to be made), or the step that is to be done, as ``PUT_ASIDE:DATABASE`` or ``FORGET_JOURNAL``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from om_processors import node
from replicated_db.core.bootstrap.install_steps import Next
from replicated_db.shell.bootstrap import install
from replicated_db.shell.bootstrap.candidate import Candidate
from stratolog.configuration.loading import load_settings
from stratolog.configuration.node_configs import node_config

BUILD = "BUILD"


def place_of(step: Next) -> str:
    return step.step.name if step.part is None else f"{step.step.name}:{step.part.name}"


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL is never survived")


def arm(place: str) -> None:
    """Have this process die at a place."""
    done = install._do

    def do(database: Path, step: Next) -> None:
        if place_of(step) == place:
            die()
        done(database, step)

    install._do = do
    if place == BUILD:
        Candidate.build = die  # type: ignore[method-assign]


if __name__ == "__main__":
    arm(sys.argv[2])
    node.run(node_config(load_settings(), sys.argv[1]))
