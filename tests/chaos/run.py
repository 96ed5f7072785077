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
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

from tests.chaos import drill_campaign
from tests.chaos.campaign import DOORS, Plan, run
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
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: _stop_soon(stop))
    if options.fault in DRILLS:
        return _run_drill(options.fault, options.times, stop)
    plan = _plan(options)
    if reason := plan.fault.why_not():
        print(json.dumps({"fault": plan.fault.name, "skipped": reason}), flush=True)
        return 0
    folder = Path(tempfile.mkdtemp(prefix=f"stratolog-chaos-{plan.fault.name}-"))
    try:
        rounds, findings, seconds = run(plan, folder, _note, stop)
    except BaseException:
        _note(f"journals and logs are in {folder}")
        raise
    words = findings.words
    figures = {name: value for name, value in asdict(findings).items() if name != "words"}
    line = {"fault": plan.fault.name, "times": rounds, **figures, "seconds": round(seconds), "command": _command()}
    for word in words:
        _note(word)
    print(json.dumps(line), flush=True)
    if not findings.sound:
        _note(f"journals and logs are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _run_drill(name: str, times: int, stop: threading.Event) -> int:
    """Run a drill beside the stack so many times, print its line, and return the exit status."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"stratolog-chaos-{name}-") as folder:
        figures = drill_campaign.run(name, times, Path(folder), _note, stop)
    line = {"fault": name, **figures, "seconds": round(time.monotonic() - begun_s), "command": _command()}
    print(json.dumps(line), flush=True)
    return 1 if figures["wrong"] else 0


def _stop_soon(stop: threading.Event) -> None:
    if stop.is_set():
        raise KeyboardInterrupt
    _note("this round is the last one")
    stop.set()


def _plan(options: argparse.Namespace) -> Plan:
    fault = FAULTS[options.fault]
    given = {name: getattr(options, name) for name in ("clients", "in_flight", "rate", "doors")}
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
        "--doors", type=_doors,
        help=f"the client processes' ways to the leader, in turn: some of {', '.join(DOORS)}; by default all",
    )  # fmt: skip
    parser.add_argument("--rate", type=float, help="keys a second in each; 0 = as fast as they are answered")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def _doors(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if not set(found) <= set(DOORS):
        raise argparse.ArgumentTypeError(f"{text!r}: some of {', '.join(DOORS)}, with commas between")
    return found


def _command() -> str:
    return "python -m tests.chaos.run " + shlex.join(sys.argv[1:])


def _note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
