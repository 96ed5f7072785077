"""Hostile and slow clients at the direct door of a real node, and what victims see beside them.

    python -m tests.chaos.hostile [--seconds 4] [--rounds 3] [--only NAME …] [--connections 10000]
    python -m tests.chaos.hostile --list

One broker, one node. For each attack a process of its own attacks in some rounds; before each round is a quiet phase. In both
three victims put small keys and look them up, one request at a time: a direct client that was connected before (``early``), one
that connects during the phase (``late``), and one whose requests go through Kafka and whose look-ups go over HTTP (``kafka``).

A JSON line for each attack on standard output: what the attackers were told (by reason, digits left out) and how often, the node's
memory before and at most, the victims' requests, failures and times. A table at the end. Exit status 1 if a victim had a failure,
or was slower beside an attack than ``hostile_judging`` allows, or if the node ended.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from om_processors.doors.direct_door import MAX_DOOR_CONNECTIONS
from producers import Client
from producers.errors import StratologError
from schemas.codecs.codec import decode_as, encode
from schemas.door.frames import HEADER_BYTES, MAX_READ_KEYS, DoorKind, door_frame
from schemas.records.datanode import StreamError
from schemas.records.door import DoorRead
from schemas.records.messages import CreateVolume, Requests
from tests.chaos.hostile_judging import ACTS, FACTOR, FACTORS, HEADER, Seen, faults, rows
from tests.support.local.at_work import at_work
from tests.support.local.stack import TestStack
from tests.support.om.om_world import request_of
from tests.support.om.raw_door import HELLO, UPGRADING, DoorClosed, RawDoor

PLACE = ("hostile", "bucket")
KEYS = 50
KEY_BYTES = 4_000
TIMEOUT_S = 20.0
HALF_FRAMES, HALF_HANDSHAKES, SLOW_READERS, FLOODS = 200, 500, 20, 4
HALF_FRAME_BYTES = 1_900_000
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: the connection ends by a reset."""
POLL_S = 0.05
BEGUN = "begun"
PAUSE_S = 1.0
"""How long a node may take to be done with an attack that has ended, before the next quiet phase."""
CONNECT_TIMEOUT_MS = 60_000

Told = Counter[str]
GoesOn = Callable[[], bool]
"""Says whether an attack, or the work of a victim, goes on. An attack has begun once it asks."""

# ----------------------------------------------------------------------------------------------------------- attacks


def _reason(error: BaseException | str) -> str:
    """Return what was said, without what differs each time."""
    text = str(error).partition("\r\n")[0]
    return "".join("#" if letter.isdigit() else letter for letter in text)[:100]


def _hear_out(door: RawDoor, told: Told) -> None:
    try:
        told[_reason(decode_as(StreamError, door.hear(DoorKind.ERROR).payload).message)] += 1
    except (DoorClosed, OSError) as error:
        told[_reason(error)] += 1


def slow_reader(address: str, goes_on: GoesOn, told: Told) -> None:
    """Asks for large rows, and reads no answer."""
    volume, bucket = PLACE
    keys = [f"k{number % KEYS}" for number in range(MAX_READ_KEYS)]
    read = DoorRead(consistency="stale", index=0, volume=volume, bucket=bucket, keys=keys, with_bytes=True)
    frame = door_frame(DoorKind.READ, encode(read))
    few = door_frame(DoorKind.READ, encode(DoorRead(
        consistency="linearizable", index=0, volume=volume, bucket=bucket, keys=keys[:KEYS], with_bytes=True,
    )))  # fmt: skip
    doors = [RawDoor(address, timeout_s=0.05) for _ in range(SLOW_READERS)]
    while goes_on():
        for door in doors:
            with suppress(OSError):
                door.sock.send(few * 20 + frame)
    told["connections that read nothing"] += len(doors)


def half_frame(address: str, goes_on: GoesOn, told: Told) -> None:
    """Sends nearly all of a large frame, and stops."""
    half = door_frame(DoorKind.REQUESTS, bytes(HALF_FRAME_BYTES))[:-1]
    doors = []
    for _ in range(HALF_FRAMES):
        door = RawDoor(address, timeout_s=TIMEOUT_S)
        with suppress(OSError):
            door.send(half)
        doors.append(door)
    while goes_on():
        time.sleep(POLL_S)
    for door in doors:
        door.sock.settimeout(0.01)
        _hear_out(door, told)


def half_handshake(address: str, goes_on: GoesOn, told: Told) -> None:
    """Sends half of the HTTP request, and stops."""
    host, _, port = address.rpartition(":")
    socks = [socket.create_connection((host, int(port)), TIMEOUT_S) for _ in range(HALF_HANDSHAKES)]
    for number, sock in enumerate(socks):
        sock.sendall(UPGRADING[: number % len(UPGRADING)])
    while goes_on():
        time.sleep(POLL_S)
    for sock in socks:
        sock.settimeout(TIMEOUT_S)
        try:
            told[_reason(sock.recv(65536).decode() or "closed")] += 1
        except OSError as error:
            told[_reason(error)] += 1


def connections(address: str, goes_on: GoesOn, told: Told, number: int = 10_000) -> None:
    """Opens ten thousand connections, and keeps those that it gets."""
    kept = []
    goes_on()
    for _ in range(number):
        try:
            kept.append(RawDoor(address, timeout_s=TIMEOUT_S))
            told["taken"] += 1
        except (DoorClosed, OSError) as error:
            told[_reason(error)] += 1
    while goes_on():
        time.sleep(POLL_S)


def resting(address: str, goes_on: GoesOn, told: Told) -> None:
    """Takes all places with connections that say HELLO and rest."""
    kept: list[RawDoor] = []
    with suppress(DoorClosed, OSError):
        kept.extend(RawDoor(address, timeout_s=TIMEOUT_S) for _ in range(MAX_DOOR_CONNECTIONS))
    told["taken"] += len(kept)
    while goes_on():
        time.sleep(POLL_S)
    for door in kept:
        door.sock.settimeout(0.01)
        _hear_out(door, told)


def silent_connections(address: str, goes_on: GoesOn, told: Told, number: int = 10_000) -> None:
    """Opens ten thousand connections, and says nothing on any."""
    host, _, port = address.rpartition(":")
    kept = []
    goes_on()
    for _ in range(number):
        try:
            kept.append(socket.create_connection((host, int(port)), TIMEOUT_S))
        except OSError as error:
            told[_reason(error)] += 1
    while goes_on():
        time.sleep(POLL_S)
    for sock in kept:
        sock.setblocking(False)
        try:
            told["closed" if not (said := sock.recv(65536)) else _reason(said.decode())] += 1
        except BlockingIOError:
            told["kept open"] += 1
        except OSError as error:
            told[_reason(error)] += 1


def giant_frame(address: str, goes_on: GoesOn, told: Told) -> None:
    """Sends a header that claims two gigabytes."""
    header = bytearray(door_frame(DoorKind.REQUESTS, b"")[:HEADER_BYTES])
    header[12:16] = (2 * 1024**3).to_bytes(4, "big")
    while goes_on():
        with RawDoor(address, timeout_s=TIMEOUT_S) as door:
            door.send(bytes(header))
            _hear_out(door, told)


def garbage(address: str, goes_on: GoesOn, told: Told) -> None:
    """Sends anything behind the upgrade."""
    rng = random.Random(18)
    while goes_on():
        with RawDoor(address, hello=rng.randbytes(rng.randrange(2, 4_000)), timeout_s=TIMEOUT_S) as door:
            error = decode_as(StreamError, door.hear(DoorKind.ERROR).payload)
            told[" ".join(error.message.split()[:4])] += 1


def flood(address: str, goes_on: GoesOn, told: Told) -> None:
    """Sends requests as fast as it can, and reads no answer."""
    value = encode(request_of(CreateVolume(volume="hostile")))
    frame = door_frame(DoorKind.REQUESTS, encode(Requests(requests=[value] * 200)))
    doors = [RawDoor(address, timeout_s=0.05) for _ in range(FLOODS)]
    while goes_on():
        for door in doors:
            with suppress(OSError):
                told["requests that the kernel took"] += 200 * (door.sock.send(frame) // len(frame))


def cut(address: str, goes_on: GoesOn, told: Told) -> None:
    """Cuts connections in every state, by an end and by a reset."""
    host, _, port = address.rpartition(":")
    rng = random.Random(69)
    value = encode(request_of(CreateVolume(volume="hostile")))
    talk = UPGRADING + HELLO + door_frame(DoorKind.REQUESTS, value)
    while goes_on():
        with socket.create_connection((host, int(port)), TIMEOUT_S) as sock:
            sock.sendall(talk[: rng.randrange(len(talk) + 1)])
            if rng.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            told["connections that were cut"] += 1


ATTACKS: dict[str, Callable[..., None]] = {
    "slow-reader": slow_reader, "half-frame": half_frame, "half-handshake": half_handshake, "connections": connections,
    "resting": resting, "silent-connections": silent_connections, "giant-frame": giant_frame, "garbage": garbage, "flood": flood, "cut": cut,
}  # fmt: skip


def attack(name: str, address: str, number: int) -> int:
    """Attack in a process of its own until standard input ends; prints BEGUN, and at the end what was told as JSON."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    told: Told = Counter()
    more = {"number": number} if "connections" in name else {}
    begun, ended = threading.Event(), threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    def goes_on() -> bool:
        if not begun.is_set():
            begun.set()
            print(BEGUN, flush=True)
        return not ended.is_set()

    threading.Thread(target=wait, daemon=True).start()
    ATTACKS[name](address, goes_on, told, **more)
    print(json.dumps(told), flush=True)
    return 0


# ----------------------------------------------------------------------------------------------------------- victims


class Victim:
    """A client with one request at a time: a small key is put, then looked up.

    ``connect`` makes it. A ``late`` one is made anew in each phase, the others once.
    """

    def __init__(self, name: str, connect: Callable[[], Client], *, late: bool = False) -> None:
        self.name = name
        self._connect = connect
        self.late = late
        self._client: Client | None = None if late else connect()
        self._number = 0
        self.failed: list[str] = []
        """Its failures in this attack."""
        self.served_since_s: float | None = None
        """Since when it has been connected, in this phase."""

    def work(self, goes_on: GoesOn, seen: Seen) -> None:
        """Put and look up while ``goes_on``."""
        begun_s = time.monotonic()
        try:
            client = self._client or self._connect()
        except Exception as error:
            self._fail(error)
            return
        self.served_since_s = time.monotonic()
        if self.late:
            seen.connected_ms.append((self.served_since_s - begun_s) * 1000)
        try:
            while goes_on():
                self._act(client, seen)
        finally:
            if self.late:
                client.close()

    def _act(self, client: Client, seen: Seen) -> None:
        self._number += 1
        key, data = f"{self.name}-{self._number % 100}", b"%d" % self._number
        acts = (lambda: client.put_key(*PLACE, key, data), lambda: self._look_up(client, key, data))
        try:
            for what, act in zip(ACTS, acts, strict=True):
                begun_s = time.perf_counter()
                act()
                seen.times_ms[what].append((time.perf_counter() - begun_s) * 1000)
        except (StratologError, AssertionError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failed.append(f"{self.name}: {type(error).__name__}: {error}")

    @staticmethod
    def _look_up(client: Client, key: str, data: bytes) -> None:
        (found,) = client.key_infos(*PLACE, [key])
        assert found is not None
        assert found.info.size == len(data)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _at_work(victims: Sequence[Victim], seen: Mapping[str, Seen]) -> AbstractContextManager[None]:
    """Have all victims work during a block, each on a thread of its own."""
    for one in victims:
        one.served_since_s = None

    def work(victim: Victim, ended: threading.Event) -> None:
        victim.work(lambda: not ended.is_set(), seen[victim.name])

    return at_work(*(partial(work, one) for one in victims))


def _wait_measured(victims: Sequence[Victim], seconds: float) -> None:
    """Wait until each victim has been connected for so long, or has failed."""
    began_s = time.monotonic()

    def is_measured(victim: Victim) -> bool:
        since_s = victim.served_since_s
        return bool(victim.failed) or (since_s is not None and time.monotonic() - since_s >= seconds)

    while time.monotonic() - began_s < seconds or not all(map(is_measured, victims)):
        time.sleep(POLL_S)


# ------------------------------------------------------------------------------------------------------------- a run


def _memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024, 1)


@contextmanager
def _watched(pid: int) -> Iterator[list[float]]:
    """Yield a list that grows by what a process holds, until the end of the block."""
    seen: list[float] = [_memory_mib(pid)]

    def watch(ended: threading.Event) -> None:
        while not ended.wait(POLL_S):
            seen.append(_memory_mib(pid))

    with at_work(watch):
        yield seen


def run_one(stack: TestStack, victims: Sequence[Victim], name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Attack in some rounds, with a quiet phase before each; return the line of figures."""
    (node,) = stack.names
    process = stack.nodes[node]
    quiet, beside = ({one.name: Seen() for one in victims} for _ in range(2))
    told: Told = Counter()
    memory: list[float] = []
    command = [
        sys.executable, "-m", "tests.chaos.hostile", "--attack", name, "--address", stack.address(node),
        "--connections", str(options.connections),
    ]  # fmt: skip
    for _ in range(options.rounds):
        with _at_work(victims, quiet):
            _wait_measured(victims, options.seconds)
        with _watched(process.pid) as held:
            with _at_work([one for one in victims if not one.late], defaultdict(Seen)):
                attacker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                assert attacker.stdout is not None
                assert attacker.stdout.readline().strip() == BEGUN
            with _at_work(victims, beside):
                _wait_measured(victims, options.seconds)
                told.update(json.loads(attacker.communicate()[0] or "{}"))
        memory += held
        time.sleep(PAUSE_S)
    failed = [word for one in victims for word in one.failed]
    for one in victims:
        one.failed.clear()
    return {
        "attack": name, "told": told, "failed": failed, "alive": process.is_running(),
        "memory_mib": [memory[0], max(memory)],
        "quiet": {victim: seen.figures() for victim, seen in quiet.items()},
        "beside": {victim: seen.figures() for victim, seen in beside.items()},
        "slow": list(faults(quiet, beside, FACTORS.get(name, FACTOR))), "rows": list(rows(name, quiet, beside)),
    }  # fmt: skip


@contextmanager
def _victims(stack: TestStack) -> Iterator[list[Victim]]:
    nodes = [stack.address(name) for name in stack.names]

    def direct(caller: str) -> Client:
        return Client(nodes=nodes, caller=caller, connect_timeout_ms=CONNECT_TIMEOUT_MS)

    made = [
        Victim("early", lambda: direct("early")),
        Victim("late", lambda: direct("late"), late=True),
        Victim("kafka", lambda: Client(stack.settings.bootstrap_servers, read_from=nodes, caller="kafka")),
    ]
    try:
        yield made
    finally:
        for one in made:
            one.close()


def run(options: argparse.Namespace) -> int:
    """Run all attacks on one stack; return the exit status."""
    failed = False
    table: list[str] = []
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="stratolog-hostile-")))
        stack = opened.enter_context(TestStack(folder, nodes=1, shards=1, brokers=1))
        stack.wait_led()
        with Client(nodes=[stack.address(name) for name in stack.names]) as client:
            client.create_volume(PLACE[0])
            client.create_bucket(*PLACE)
            for number in range(KEYS):
                client.put_key(*PLACE, f"k{number}", bytes(KEY_BYTES))
        victims = opened.enter_context(_victims(stack))
        with _at_work(victims, defaultdict(Seen)):
            _wait_measured(victims, options.seconds)
        for name in options.only or ATTACKS:
            line = run_one(stack, victims, name, options)
            table += line.pop("rows")
            print(json.dumps(line), flush=True)
            failed |= bool(line["failed"] or line["slow"]) or not line["alive"]
    print("\n".join([HEADER, *table]))
    return int(failed)


def main() -> int:
    """Attack a node of its own, or be an attacker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each phase lasts, at least")
    parser.add_argument("--rounds", type=int, default=3, help="how often a quiet phase and the attack take turns")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--attack", choices=list(ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        for name, act in ATTACKS.items():
            print(f"{name:20} {act.__doc__}")
        return 0
    if options.attack:
        return attack(options.attack, options.address, options.connections)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
