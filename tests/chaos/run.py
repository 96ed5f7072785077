"""Run one kind of fault again and again on a real stack under load, and compare everything at the end.

    python -m tests.chaos.run --fault leader-kill --times 100 [--brokers 3] [--acknowledged 1000000] [--seed 1] …
    python -m tests.chaos.run --list

Three client processes write, by default one by each door: through the brokers (``kafka``), straight to the leader (``direct``), and ``both``.
Prints what happens on standard error and at the end one JSON line on standard output: ``fault, times, acknowledged, unknown, lost,
duplicated, divergent, longest_gap_ms, seconds, command`` (``tests.chaos.judge`` says what each is). Exit status 1 if anything
that must hold does not; then the folder with journals and logs is kept and named. Control-C ends a campaign after its round: what was
done until then is compared and printed, ``times`` being the rounds that were done. A second one ends it at once.

A drill beside the running stack (``stratolog drill``: ``expired-log``, say) is a fault, too: it runs so many times, each time on a stack of
its own, and its line has ``verdicts`` and ``wrong``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from tests.chaos import drill_campaign
from tests.chaos.campaign import DOORS, Plan, run
from tests.chaos.command import note, run_campaign, stopped_by_interrupts
from tests.chaos.registry import DRILLS, FAULTS


def main() -> int:
    """Run a campaign from the command line."""
    parser = _parser()
    options = parser.parse_args()
    if options.list:
        for name, fault in FAULTS.items():
            print(f"{name:18} {(sys.modules[fault.inject.__module__].__doc__ or '').splitlines()[0]}")
        for name, drill in DRILLS.items():
            print(f"{name:18} {drill.does}")
        return 0
    if options.fault not in {*FAULTS, *DRILLS}:
        parser.error(f"--fault {options.fault}: there is {', '.join([*FAULTS, *DRILLS])}")
    stop = stopped_by_interrupts()
    if options.fault in DRILLS:
        body = partial(drill_campaign.run, options.fault, options.times, note=note, stop=stop)
    else:
        plan = _plan(options)
        if reason := plan.fault.why_not():
            print(json.dumps({"fault": plan.fault.name, "skipped": reason}), flush=True)
            return 0
        body = partial(_run, plan, stop=stop)
    return 0 if run_campaign("tests.chaos.run", {"fault": options.fault}, body, options.fault) else 1


def _run(plan: Plan, folder: Path, *, stop: Event) -> tuple[dict[str, Any], bool]:
    rounds, found, seconds = run(plan, folder, note, stop)
    for word in found.words:
        note(word)
    return {"times": rounds, **found.figures(), "seconds": round(seconds)}, found.sound


def _plan(options: argparse.Namespace) -> Plan:
    fault = FAULTS[options.fault]
    given = {name: getattr(options, name) for name in ("clients", "in_flight", "rate", "doors", "forks_s")}
    load = replace(fault.load, **{name: value for name, value in given.items() if value is not None})
    return Plan(
        fault=fault, times=options.times, acknowledged=options.acknowledged, brokers=options.brokers or fault.brokers,
        shards=options.shards, session_timeout_ms=options.session_timeout_ms, load=load, seed=options.seed,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the faults and end")
    parser.add_argument("--fault", default="leader-kill")
    parser.add_argument("--times", type=int, default=1, help="rounds")
    parser.add_argument("--acknowledged", type=int, default=0, help="go on until so many requests are acknowledged")
    parser.add_argument("--brokers", type=int, choices=(1, 3), help="default: what the fault needs")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--session-timeout-ms", type=int, default=2_000)
    parser.add_argument("--clients", type=int, help="client processes; by default one by each door")
    parser.add_argument("--in-flight", type=int, help="chains of requests in each")
    parser.add_argument(
        "--doors", type=doors,
        help=f"the client processes' ways to the leader, in turn: some of {', '.join(DOORS)}; by default all",
    )  # fmt: skip
    parser.add_argument("--rate", type=float, help="keys a second in each; 0 = as fast as they are answered")
    parser.add_argument(
        "--forks", dest="forks_s", type=float, metavar="S",
        help="each client process forks every so many seconds, and both go on with the one client",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    return parser


def doors(text: str) -> tuple[str, ...]:
    """Read the value of ``--doors``."""
    found = tuple(text.split(","))
    if not set(found) <= set(DOORS):
        raise argparse.ArgumentTypeError(f"{text!r}: some of {', '.join(DOORS)}, with commas between")
    return found


if __name__ == "__main__":
    sys.exit(main())
