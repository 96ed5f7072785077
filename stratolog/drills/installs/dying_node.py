"""A node that dies in its install, at an exact stage: ``python -m stratolog.drills.installs.dying_node NODE STAGE``.

Some stages last for microseconds, or for as long as an fsync: nobody from outside meets each. So the process is the
real node, and sends itself SIGKILL where that stage is reached. The other stages last for milliseconds at least, and a
process is killed there from outside.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from replicated_db.core.bootstrap.install_steps import Next, OnDisk, Part, Step, next_step
from replicated_db.shell.bootstrap import bootstrap, candidate, install
from stratolog.configuration.loading import load_settings
from stratolog.configuration.node_configs import node_config
from stratolog.drills.installs.core.stages import InstallStage

CALLS: Mapping[InstallStage, tuple[Any, str]] = {
    InstallStage.FETCHED: (candidate.Candidate, "build"),
    InstallStage.BUILDING: (candidate, "placement"),
    InstallStage.CHECKING: (bootstrap, "check_candidate"),
    InstallStage.OWNING: (bootstrap, "install"),
}
"""Where and how a function is called that is called in this stage first."""

STEPS: Mapping[InstallStage, Next] = {
    InstallStage.JOURNALLED: Next(Step.PUT_ASIDE, Part.CHECKPOINTS),
    InstallStage.CHECKPOINTS_ASIDE: Next(Step.PUT_IN_PLACE, Part.CHECKPOINTS),
    InstallStage.CHECKPOINTS_PLACED: Next(Step.PUT_ASIDE, Part.DATABASE),
    InstallStage.DATABASE_ASIDE: Next(Step.PUT_IN_PLACE, Part.DATABASE),
    InstallStage.DATABASE_PLACED: Next(Step.FORGET_JOURNAL),
    InstallStage.JOURNAL_GONE: Next(Step.REMOVE_REPLACED),
    InstallStage.CLEANING: Next(Step.REMOVE_TREE),
}
"""The step that ends the stage."""


def dies_in(stage: InstallStage) -> bool:
    """Whether a process can be told to die in a stage."""
    return stage in CALLS or stage in STEPS


def command_of(name: str, stage: InstallStage) -> list[str]:
    """Return the command of a node that dies in a stage."""
    return [sys.executable, "-m", __name__, name, stage.name]


def die(*_: object, **__: object) -> NoReturn:
    """End this process as a kill does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL is never survived")


def arm(
    stage: InstallStage, put: Callable[[Any, str, Any], None] = setattr, end: Callable[..., NoReturn] = die
) -> None:  # fmt: skip
    """Have this process end in a stage. ``put`` sets an attribute, ``end`` ends."""
    if stage in CALLS:
        put(*CALLS[stage], end)
        return
    last = STEPS[stage]
    begun = last.step is not Step.REMOVE_TREE  # a start removes the tree of an install that was never whole, too

    def next_or_end(found: OnDisk) -> Next:
        nonlocal begun
        step = next_step(found)
        if begun and step == last:
            end()
        begun = begun or step.step not in (Step.REMOVE_TREE, Step.NOTHING)
        return step

    put(install, "next_step", next_or_end)


def main() -> None:
    """Run the node."""
    from om_processors import node  # here: a drill asks this module for commands, and has no node

    config = node_config(load_settings(), sys.argv[1])
    arm(InstallStage[sys.argv[2]])
    node.run(config)


if __name__ == "__main__":
    main()
