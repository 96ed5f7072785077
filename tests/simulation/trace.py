"""Runs: a seed's actions on a fresh world; a failure with its seed, shrunk to the actions that it needs, told line by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

from om_processors.namespace import ids
from tests.simulation.faults import Faults, actions_of
from tests.simulation.world import Action, World

MAX_SHRINK_RUNS = 1500
"""Bounds the time that shrinking takes: a second or two for each hundred."""
WINDOW_BITS = 2
"""A container is begun in a window of so few indexes: a run has hundreds, and containers are to outlive their windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong, and after how many actions (of all, if in the healing)."""

    error: BaseException
    actions: Sequence[Action]
    step: int

    @property
    def kind(self) -> str:
        """Two failures of one kind are taken to be the same bug: the message without its numbers."""
        text = f"{type(self.error).__name__}: {self.error}"
        return "".join(letter for letter in text[:60] if not letter.isdigit())


def run(actions: Sequence[Action], world: World, make_faults: type[Faults] = Faults) -> Failure | None:
    """Do the actions, heal, check; return what failed. Anything that is raised and not foreseen is a failure, too."""
    done = 0
    try:
        faults = make_faults(world)
        with patch.object(ids, "CONTAINER_WINDOW_BITS", WINDOW_BITS):
            for action in actions:
                world.step(faults, action)
                done += 1
                if world.truth.halted is not None:
                    break
            world.heal()
    except Exception as error:  # whatever it is, it has a seed and will be told
        return Failure(error=error, actions=actions, step=done)
    finally:
        world.close()
    return None


def shrink(failure: Failure) -> Failure:
    """Leave out actions, in ever smaller pieces, as long as the same thing goes wrong."""
    best = Failure(error=failure.error, actions=failure.actions[: failure.step + 1], step=failure.step)
    shorter = run(best.actions, World())
    best = shorter if shorter is not None and shorter.kind == failure.kind else failure
    size, runs = max(1, len(best.actions) // 2), 0
    while size and runs < MAX_SHRINK_RUNS:
        start, removed = 0, False
        while start < len(best.actions) and runs < MAX_SHRINK_RUNS:
            candidate = [*best.actions[:start], *best.actions[start + size :]]
            found = run(candidate, World())
            runs += 1
            if found is not None and found.kind == best.kind:
                best, removed = found, True
            else:
                start += size
        if not removed or size > 1:
            size //= 2
    return best


def told(actions: Sequence[Action]) -> str:
    """Return the trace of a run: each action, and what came of it."""
    lines: list[str] = []
    world = World(lines.append)
    faults = Faults(world)
    error: BaseException | None = None
    try:
        for name, number in actions:
            lines.append(f"{name}({number})")
            world.step(faults, (name, number))
        lines.append("heal")
        world.heal()
    except Exception as raised:
        error = raised
    finally:
        world.close()
    return "\n".join([*lines, f"=> {type(error).__name__}: {error}" if error is not None else "=> nothing wrong"])


def explain(seed: int, failure: Failure) -> str:
    """Return everything that one needs to know about a failing seed."""
    small = shrink(failure)
    return "\n".join(
        [
            f"seed {seed} fails: {type(failure.error).__name__}: {failure.error}",
            f"shrunk from {len(failure.actions)} actions to {len(small.actions)}:",
            told(small.actions),
            f"repeat it with: make simulate SEEDS=1 START={seed}",
        ]
    )


def simulate(seed: int) -> tuple[World, Failure | None]:
    """Run a seed."""
    world = World()
    return world, run(actions_of(seed), world)
