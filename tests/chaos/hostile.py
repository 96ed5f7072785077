"""Hostile and slow clients at the direct door of a real node, and what another client sees beside them.

    python -m tests.chaos.hostile [--seconds 6] [--only NAME …] [--connections 10000]
    python -m tests.chaos.hostile --list

One broker, one node. For each attack a process of its own attacks for so many seconds. Before it and during it another client
puts small keys and looks one up, one request at a time, by the direct door. A JSON line for each attack on standard output: what
the attackers were told (by reason, digits left out) and how often, the node's memory before and at most, the other client's
requests, failures and times. Exit status 1 if the other client had a failure or the node ended.
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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from producers import Client
from producers.errors import StratologError
from schemas.codecs.codec import decode_as, encode
from schemas.door.frames import HEADER_BYTES, MAX_READ_KEYS, DoorKind, door_frame
from schemas.records.datanode import StreamError
from schemas.records.door import DoorRead
from schemas.records.messages import CreateVolume, Requests
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

Told = Counter[str]

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


def slow_reader(address: str, until_s: float, told: Told) -> None:
    """Asks for large rows, and reads no answer."""
    volume, bucket = PLACE
    keys = [f"k{number % KEYS}" for number in range(MAX_READ_KEYS)]
    read = DoorRead(consistency="stale", index=0, volume=volume, bucket=bucket, keys=keys, with_bytes=True)
    frame = door_frame(DoorKind.READ, encode(read))
    few = door_frame(DoorKind.READ, encode(DoorRead(
        consistency="linearizable", index=0, volume=volume, bucket=bucket, keys=keys[:KEYS], with_bytes=True,
    )))  # fmt: skip
    doors = [RawDoor(address, timeout_s=0.05) for _ in range(SLOW_READERS)]
    while time.monotonic() < until_s:
        for door in doors:
            with suppress(OSError):
                door.sock.send(few * 20 + frame)
    told["connections that read nothing"] += len(doors)


def half_frame(address: str, until_s: float, told: Told) -> None:
    """Sends nearly all of a large frame, and stops."""
    half = door_frame(DoorKind.REQUESTS, bytes(HALF_FRAME_BYTES))[:-1]
    doors = []
    for _ in range(HALF_FRAMES):
        door = RawDoor(address, timeout_s=TIMEOUT_S)
        with suppress(OSError):
            door.send(half)
        doors.append(door)
    while time.monotonic() < until_s:
        time.sleep(POLL_S)
    for door in doors:
        door.sock.settimeout(0.01)
        _hear_out(door, told)


def half_handshake(address: str, until_s: float, told: Told) -> None:
    """Sends half of the HTTP request, and stops."""
    host, _, port = address.rpartition(":")
    socks = [socket.create_connection((host, int(port)), TIMEOUT_S) for _ in range(HALF_HANDSHAKES)]
    for number, sock in enumerate(socks):
        sock.sendall(UPGRADING[: number % len(UPGRADING)])
    while time.monotonic() < until_s:
        time.sleep(POLL_S)
    for sock in socks:
        sock.settimeout(TIMEOUT_S)
        try:
            told[_reason(sock.recv(65536).decode() or "closed")] += 1
        except OSError as error:
            told[_reason(error)] += 1


def connections(address: str, until_s: float, told: Told, number: int = 10_000) -> None:
    """Opens ten thousand connections, and keeps those that it gets."""
    kept = []
    for _ in range(number):
        try:
            kept.append(RawDoor(address, timeout_s=TIMEOUT_S))
            told["taken"] += 1
        except (DoorClosed, OSError) as error:
            told[_reason(error)] += 1
    while time.monotonic() < until_s:
        time.sleep(POLL_S)


def silent_connections(address: str, until_s: float, told: Told, number: int = 10_000) -> None:
    """Opens ten thousand connections, and says nothing on any."""
    host, _, port = address.rpartition(":")
    kept = []
    for _ in range(number):
        try:
            kept.append(socket.create_connection((host, int(port)), TIMEOUT_S))
        except OSError as error:
            told[_reason(error)] += 1
    while time.monotonic() < until_s:
        time.sleep(POLL_S)
    for sock in kept:
        sock.setblocking(False)
        try:
            told["closed" if not (said := sock.recv(65536)) else _reason(said.decode())] += 1
        except BlockingIOError:
            told["kept open"] += 1
        except OSError as error:
            told[_reason(error)] += 1


def giant_frame(address: str, until_s: float, told: Told) -> None:
    """Sends a header that claims two gigabytes."""
    header = bytearray(door_frame(DoorKind.REQUESTS, b"")[:HEADER_BYTES])
    header[12:16] = (2 * 1024**3).to_bytes(4, "big")
    while time.monotonic() < until_s:
        with RawDoor(address, timeout_s=TIMEOUT_S) as door:
            door.send(bytes(header))
            _hear_out(door, told)


def garbage(address: str, until_s: float, told: Told) -> None:
    """Sends anything behind the upgrade."""
    rng = random.Random(18)
    while time.monotonic() < until_s:
        with RawDoor(address, hello=rng.randbytes(rng.randrange(2, 4_000)), timeout_s=TIMEOUT_S) as door:
            error = decode_as(StreamError, door.hear(DoorKind.ERROR).payload)
            told[" ".join(error.message.split()[:4])] += 1


def flood(address: str, until_s: float, told: Told) -> None:
    """Sends requests as fast as it can, and reads no answer."""
    value = encode(request_of(CreateVolume(volume="hostile")))
    frame = door_frame(DoorKind.REQUESTS, encode(Requests(requests=[value] * 200)))
    doors = [RawDoor(address, timeout_s=0.05) for _ in range(FLOODS)]
    while time.monotonic() < until_s:
        for door in doors:
            with suppress(OSError):
                told["requests that the kernel took"] += 200 * (door.sock.send(frame) // len(frame))


def cut(address: str, until_s: float, told: Told) -> None:
    """Cuts connections in every state, by an end and by a reset."""
    host, _, port = address.rpartition(":")
    rng = random.Random(69)
    value = encode(request_of(CreateVolume(volume="hostile")))
    talk = UPGRADING + HELLO + door_frame(DoorKind.REQUESTS, value)
    while time.monotonic() < until_s:
        with socket.create_connection((host, int(port)), TIMEOUT_S) as sock:
            sock.sendall(talk[: rng.randrange(len(talk) + 1)])
            if rng.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            told["connections that were cut"] += 1


ATTACKS: dict[str, Callable[..., None]] = {
    "slow-reader": slow_reader, "half-frame": half_frame, "half-handshake": half_handshake, "connections": connections,
    "silent-connections": silent_connections, "giant-frame": giant_frame, "garbage": garbage, "flood": flood, "cut": cut,
}  # fmt: skip


def attack(name: str, address: str, seconds: float, number: int) -> int:
    """Attack, in a process of its own; prints what was told as JSON."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    told: Told = Counter()
    more = {"number": number} if "connections" in name else {}
    ATTACKS[name](address, time.monotonic() + seconds, told, **more)
    print(json.dumps(told), flush=True)
    return 0


# -------------------------------------------------------------------------------------------------- the other client


class Other:
    """A client with one request at a time: a small key is put, then looked up."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._number = 0
        self.failed: list[str] = []

    def work(self, goes_on: Callable[[], bool]) -> dict[str, Any]:
        """Put and look up while ``goes_on``; return the figures."""
        times: dict[str, list[float]] = {"put": [], "look_up": []}
        while goes_on():
            self._number += 1
            key, data = f"other{self._number % 100}", b"%d" % self._number
            try:
                for what, act in (("put", self._put), ("look_up", self._look_up)):
                    begun_s = time.perf_counter()
                    act(key, data)
                    times[what].append((time.perf_counter() - begun_s) * 1000)
            except StratologError as error:
                self.failed.append(str(error))
        return {what: _figures(found) for what, found in times.items()}

    def _put(self, key: str, data: bytes) -> None:
        self._client.put_key(*PLACE, key, data)

    def _look_up(self, key: str, data: bytes) -> None:
        (found,) = self._client.key_infos(*PLACE, [key])
        assert found is not None
        assert found.info.size == len(data)


def _figures(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms) or [0.0]

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)

    return {"requests": len(times_ms), "p50_ms": at(0.5), "p99_ms": at(0.99), "most_ms": round(ordered[-1], 1)}


# ------------------------------------------------------------------------------------------------------------- a run


def _memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024, 1)


@contextmanager
def _watched(pid: int) -> Iterator[list[float]]:
    """Yield a list that grows by what a process holds, until the end of the block."""
    seen: list[float] = [_memory_mib(pid)]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_S):
            seen.append(_memory_mib(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _for_seconds(seconds: float) -> Callable[[], bool]:
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() < until_s


def run_one(stack: TestStack, other: Other, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Attack once; return the line of figures."""
    (node,) = stack.names
    process = stack.nodes[node]
    quiet = other.work(_for_seconds(options.seconds))
    command = [
        sys.executable, "-m", "tests.chaos.hostile", "--attack", name, "--address", stack.address(node),
        "--seconds", str(options.seconds), "--connections", str(options.connections),
    ]  # fmt: skip
    with _watched(process.pid) as memory:
        attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        beside = other.work(lambda: attacker.poll() is None)
        told = json.loads(attacker.communicate()[0] or "{}")
    return {
        "attack": name, "told": told, "failed": len(other.failed), "alive": process.is_running(),
        "memory_mib": [memory[0], max(memory)], "quiet": quiet, "beside": beside,
    }  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run all attacks on one stack; return the exit status."""
    failed = False
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="stratolog-hostile-")))
        stack = opened.enter_context(TestStack(folder, nodes=1, shards=1, brokers=1))
        stack.wait_led()
        client = opened.enter_context(Client(nodes=[stack.address(name) for name in stack.names], caller="other"))
        client.create_volume(PLACE[0])
        client.create_bucket(*PLACE)
        for number in range(KEYS):
            client.put_key(*PLACE, f"k{number}", bytes(KEY_BYTES))
        other = Other(client)
        other.work(_for_seconds(options.seconds / 2))
        for name in options.only or ATTACKS:
            line = run_one(stack, other, name, options)
            print(json.dumps(line), flush=True)
            failed |= bool(line["failed"]) or not line["alive"]
        for word in other.failed[:9]:
            print(f"the other client: {word}", file=sys.stderr)
    return int(failed)


def main() -> int:
    """Attack a node of its own, or be an attacker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each attack lasts, at least")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--attack", choices=list(ATTACKS), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        for name, act in ATTACKS.items():
            print(f"{name:20} {act.__doc__}")
        return 0
    if options.attack:
        return attack(options.attack, options.address, options.seconds, options.connections)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
