"""Fuzzed frames, records and requests on every port of a real secure stack: nothing stops, and nothing is allowed.

    python -m tests.chaos.fuzz [--frames 100000] [--rounds 10] [--seed 1] [--only kafka direct http datanode broker audit]

One broker, one node, three datanodes and the audit, as ``up --secure`` starts them, with ``auth = signed``. A vault has keys in the
row and in blocks. The attacker is mallory: the brokers and the nodes know the user, a certificate of the role ``client``
is there, and there are no rights. For each kind of port a process of its own sends so many frames: as a stranger in
clear, as one in TLS, with the certificate alone, and as mallory. Another client writes and reads beside it. Each round has a seed of its own, on the same stack.

A JSON line for each round of each kind: ``sent``, ``answered``, ``refused``, ``closed`` (connections that the other side ended), ``told``
(by reason), ``memory_mib`` of each process before and at most, ``processor_s`` that each used, the other client's times.
What must hold, or the exit status is 1:

- ``allowed`` is 0: no answer is an OK, a page or a byte that a stranger, or mallory, has no right to.
- ``leaked`` is 0: nothing that the attacker hears has the word that is in every byte of the vault.
- ``failed`` is 0: no answer says that a process has a defect.
- ``changed`` is empty: volumes, buckets, keys, rights, users and block files are what they were.
- ``wrong`` is empty: all processes run, the leader is the same in the same term, no log has a traceback.
- Memory stays within ``MOST_GROWN_MIB``, and the other client had no failure, beside it and afterwards.

``broker`` is all that a broker listens on, ``audit`` all ports of the audit's processes but those that live for a task.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.fuzz import audit_port, broker_port, datanode_port, direct_door, http_port, kafka_door
from tests.chaos.fuzz.arms import Arms, Told
from tests.chaos.fuzz.world import LARGE_BYTES, SMALL_BYTES, FuzzedStack, Honest

ATTACKS: dict[str, Callable[[Arms, int, int, Told], None]] = {
    "kafka": kafka_door.attack, "direct": direct_door.attack, "http": http_port.attack, "datanode": datanode_port.attack,
    "broker": broker_port.attack, "audit": audit_port.attack,
}  # fmt: skip
COUNTS = ("sent", "answered", "refused", "closed", "allowed", "leaked", "failed")
MOST_REASONS = 40
ZERO = ("allowed", "leaked", "failed")


def attack(port: str, frames: int, seed: int, arms: Path) -> int:
    """Attack, in a process of its own; prints what was counted as JSON."""
    told: Told = Counter()
    ATTACKS[port](Arms.read(arms), frames, seed, told)
    print(json.dumps(told), flush=True)
    return 0


def run_one(fuzzed: FuzzedStack, port: str, frames: int, seed: int, folder: Path) -> dict[str, Any]:
    """Attack one kind of port; return the line of figures."""
    arms = folder / "arms.json"
    fuzzed.arms.write(arms)
    command = [
        sys.executable, "-m", "tests.chaos.fuzz", "--attack", port, "--frames", str(frames), "--seed", str(seed),
        "--arms", str(arms),
    ]  # fmt: skip
    begun_s = time.monotonic()
    honest = Honest(fuzzed)
    with fuzzed.watched() as held, fuzzed.working() as worked, honest.at_work():
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    told: dict[str, int] = json.loads(done.stdout or "{}")
    for number, size in enumerate((SMALL_BYTES, LARGE_BYTES)):
        honest.once(number, size)
    times = sorted(honest.times_ms)
    return {
        "port": port, "seconds": round(time.monotonic() - begun_s, 1), **{what: told.pop(what, 0) for what in COUNTS},
        "told": dict(sorted(told.items(), key=lambda one: -one[1])[:MOST_REASONS]), "changed": fuzzed.changes(),
        "wrong": fuzzed.troubles() + fuzzed.not_attacked() + fuzzed.too_large(held) + (["the attacker ended"] if done.returncode else []),
        "memory_mib": held, "processor_s": worked, "stood_still_s": round(fuzzed.stood_still_s, 1), "log_mib": fuzzed.log_mib(), "other_client": {
            "calls": len(times), "failed": honest.failed[:5], "p50_ms": round(times[len(times) // 2], 1),
            "most_ms": round(times[-1], 1),
        },
        "blocks_are_guarded": fuzzed.arms.blocks_are_guarded,
    }  # fmt: skip


def is_sound(line: dict[str, Any]) -> bool:
    """Say whether all holds that must."""
    return not (any(line[what] for what in ZERO) or line["changed"] or line["wrong"] or line["other_client"]["failed"])


def campaign(ports: list[str], frames: int, seed: int, folder: Path, rounds: int = 1) -> list[dict[str, Any]]:
    """Attack one kind of port after the other, round by round; return the lines, and print each as it is there."""
    lines = []
    with FuzzedStack.start(folder) as fuzzed:
        for own in range(seed, seed + rounds):
            for port in ports:
                lines.append({"seed": own, **run_one(fuzzed, port, frames, own, folder)})
                print(json.dumps(lines[-1]), flush=True)
    return lines


def main() -> int:
    """Attack a stack of its own, or be an attacker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000, help="for each round of each kind of port")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS))
    parser.add_argument("--attack", choices=list(ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--arms", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        return attack(options.attack, options.frames, options.seed, options.arms)
    with tempfile.TemporaryDirectory(prefix="stratolog-fuzz-") as folder:
        lines = campaign(options.only or list(ATTACKS), options.frames, options.seed, Path(folder), options.rounds)
    return int(not all(map(is_sound, lines)))


if __name__ == "__main__":
    sys.exit(main())
