"""The faults by name: what a drill does, what it touches, what it needs, and which campaign inflicts the same.

A drill inflicts its fault once; a campaign (``tests/chaos``) again and again, and compares everything at the end. A
drill beside the running stack is its own campaign, by the same name. The bodies are in ``stratolog.drills.bodies``.
Campaigns of faults that need a test's means (networks, disks, damaged files) have no drill: ``tests/chaos/registry.py``
adds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stratolog.errors import UsageError


class ProcessFault(Enum):
    """What is done to a process, by the signal that does it."""

    KILL = "SIGKILL"
    PAUSE = "SIGSTOP"
    STOP = "SIGTERM"


class DrillPlace(Enum):
    """Where a drill does its damage, and so what its command asks for."""

    SHARD = "a shard of the running stack"
    BESIDE = "nothing of the running stack"
    OPTIONS = "what its own options say"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A drill: what it does, what of the stack it touches (and how that is put back), what it needs besides.

    ``campaign`` is the name of the campaign of the same fault; empty if there is none.
    """

    name: str
    does: str
    touches: str
    needs: str = ""
    place: DrillPlace = DrillPlace.SHARD
    campaign: str = ""


DRILLS: tuple[Drill, ...] = (
    Drill(
        name="kill-leader",
        campaign="leader-kill",
        does=(
            "SIGKILL a shard's leader under load: time to the first acknowledged write, nothing lost, nothing "
            "applied twice, digests equal."
        ),
        touches="One node's process, which is started again; a volume of its own, which is deleted.",
        needs="three nodes",
    ),
    Drill(
        name="zombie-leader",
        campaign="leader-pause",
        does=(
            "SIGSTOP a shard's leader until another leads, SIGCONT: what it still appends is void, its answers are "
            "right or missing, it steps down."
        ),
        touches="One node's process, which is resumed; a volume of its own, which is deleted.",
        needs="three nodes",
    ),
    Drill(
        name="kill-follower",
        campaign="follower-kill",
        does="SIGKILL a follower under load: it goes on from its own stored position and ends with an equal digest.",
        touches="One node's process, which is started again; a volume of its own, which is deleted.",
        needs="two nodes",
    ),
    Drill(
        name="replay",
        place=DrillPlace.OPTIONS,
        does=(
            "Rebuild a replica from the log's first record, or from a checkpoint, and compare it with the log's "
            "digest and with live replicas."
        ),
        touches="A directory of its own, which is deleted.",
        needs="for --from N: a checkpoint taken at or before offset N; for --oracle: pyspark",
    ),
    Drill(
        name="point-in-time",
        place=DrillPlace.OPTIONS,
        does=(
            "The state as of an index or a time, rebuilt in a directory of its own, to be looked at with 'stratolog "
            "sh --at DIR'."
        ),
        touches="A directory of its own, which stays.",
    ),
    Drill(
        name="lost-broker",
        campaign="broker-kill",
        does=(
            "SIGKILL the broker that leads the shard's log: writes go on with two in sync; started again, all three "
            "are in sync."
        ),
        touches="One broker's process, which is started again; a volume of its own, which is deleted.",
        needs="three brokers ('stratolog up --brokers 3')",
    ),
    Drill(
        name="corrupt-replica",
        does=(
            "Change a row behind a follower's back: found by a scrub, narrowed to the row, repaired from a peer, "
            "verified."
        ),
        touches=(
            "One row of its own volume on one node, whose database is copied first and put back unless repaired; "
            "that node is restarted; the leadership is moved and moved back."
        ),
        needs="three nodes",
    ),
    Drill(
        name="poison-request",
        does=(
            "Undecodable bytes, an unknown schema, too large, refused by its execution: rejected or answered, "
            "nothing stops, the data stays."
        ),
        touches="Records of om.requests that nobody executes; a volume of its own, which is deleted.",
    ),
    Drill(
        name="rolling-upgrade",
        place=DrillPlace.BESIDE,
        campaign="rolling-upgrade",
        does=(
            "Two versions in one shard, in both directions: late validation diverges and it is said where, "
            "leader-side execution does not."
        ),
        touches="A directory of its own, which is deleted; nothing of the running stack.",
    ),
    Drill(
        name="bootstrap",
        place=DrillPlace.BESIDE,
        campaign="bootstrap",
        does=(
            "A node loses its disk under load: it installs a peer's checkpoint instead of reading the log, and ends "
            "with an equal digest."
        ),
        touches="A stack of its own (one broker, three nodes), which is deleted; nothing of the running stack.",
    ),
    Drill(
        name="bootstrap-leader-change",
        place=DrillPlace.BESIDE,
        campaign="bootstrap-leader-change",
        does=(
            "The leader changes several times while a node installs a peer's checkpoint: what is whole is kept, and it "
            "ends with an equal digest."
        ),
        touches="A stack of its own (one broker, three nodes), which is deleted; nothing of the running stack.",
    ),
    Drill(
        name="bootstrap-kill",
        place=DrillPlace.BESIDE,
        campaign="bootstrap-kill",
        does=(
            "A node is killed at every stage of its install: each time the old replica or the new one is left, never a "
            "mixture, and nothing is fetched twice."
        ),
        touches="A stack of its own (one broker, three nodes), which is deleted; nothing of the running stack.",
    ),
    Drill(
        name="expired-log",
        place=DrillPlace.BESIDE,
        campaign="expired-log",
        does=(
            "A node is away while the log is trimmed, twice: it installs a peer's checkpoint, the second time without "
            "the files that it has, and ends with an equal digest."
        ),
        touches="A stack of its own (one broker, three nodes), which is deleted; nothing of the running stack.",
    ),
    Drill(
        name="restore",
        place=DrillPlace.BESIDE,
        campaign="restore",
        does=(
            "Back a cluster up twice under load, destroy it, restore it onto new brokers and nodes: equal digests, "
            "bytes sent against bytes saved, and writes go on."
        ),
        touches="Two stacks of its own (one broker, three nodes each), which are deleted; nothing of the running stack.",
    ),
    Drill(
        name="rotate-keys",
        place=DrillPlace.BESIDE,
        campaign="rotate-keys",
        does=(
            "Passwords, all certificates, users' secrets and delegation tokens are changed under load by every way in: "
            "nothing is refused, and old keys are."
        ),
        touches=(
            "A secure stack of its own (one broker, two nodes, three datanodes), which is deleted; nothing of the "
            "running stack."
        ),
    ),
)  # fmt: skip


def names_at(place: DrillPlace) -> list[str]:
    """Return the names of the drills of a place, in order."""
    return [drill.name for drill in DRILLS if drill.place is place]


def find(name: str) -> Drill:
    """Return a drill by name; for an unknown name, raises UsageError with all names."""
    for drill in DRILLS:
        if drill.name == name:
            return drill
    raise UsageError(f"no drill {name!r}; there are: {', '.join(drill.name for drill in DRILLS)}")
