"""One bit flipped in what a serving node sends: on the wire (where it stands, listings, pieces of files), or in an SST on its disk before.

What must hold: each is noticed by the installing node, and told; what was damaged is asked for again, or another peer is asked. A node whose
disk damaged a file may notice by itself, and end. In the end the installed replica's rows are those of the other replicas.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xxhash import xxh3_128_hexdigest

from stratolog.drills.kit.rebuild import database_of
from tests.chaos.campaign import Fault
from tests.chaos.damage import LogMark
from tests.chaos.installs.flipping_proxy import FlippingProxy
from tests.chaos.installs.world import SHARD, InstallWorld
from tests.support.local.stack import TestStack

PIECE, LISTING, VIEW, DISK = "pieces", "listings", "views", "files on disk"
DUE = (PIECE, PIECE, LISTING, VIEW, DISK, DISK)
"""What is flipped, by weight."""

MOST = {PIECE: 6, LISTING: 4, VIEW: 1}
"""Flips in one install. Where both peers' views come damaged, nobody is asked, and the node reads the log."""

FLIP_SHARE = 0.5
DAMAGED = {PIECE: "came wrong", LISTING: "came damaged", VIEW: "came damaged"}


@dataclass
class Flips:
    """What the proxies flip now, and what has passed through them."""

    random: random.Random
    kind: str = ""
    left: int = 0
    done: int = 0
    sent: set[str] = field(default_factory=set)
    """Digests of files of which pieces were sent."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def twist(self, method: str, path: str, status: int, body: bytes) -> bytes:
        """Flip one bit of an answer's body, if one is due."""
        with self._lock:
            kind, digest = _kind_of(method, path), path.partition("?")[0].rpartition("/")[2]
            comes_again = kind == PIECE and digest in self.sent  # a content that is always wrong is another fault
            if kind == PIECE and status == 200:
                self.sent.add(digest)
            if status != 200 or not body or kind != self.kind or not self.left or comes_again:
                return body
            if self.random.random() > FLIP_SHARE:
                return body
            self.left -= 1
            self.done += 1
            damaged = bytearray(body)
            damaged[self.random.randrange(len(body))] ^= 1 << self.random.randrange(8)
            return bytes(damaged)

    def begin(self, kind: str) -> None:
        """Flip bits of one kind of answer from now on, and forget what was sent."""
        with self._lock:
            self.kind, self.left, self.done = kind, MOST.get(kind, 0), 0
            self.sent.clear()


def fault(flips: Flips) -> Fault:
    """Return what the stack needs: a proxy before each node, through which checkpoints come."""

    @contextmanager
    def proxies(stack: TestStack) -> Iterator[None]:
        with ExitStack() as started:
            peers = [
                f"{name}={started.enter_context(FlippingProxy(stack.address(name), flips.twist)).address}"
                for name in stack.names
            ]
            stack.settings = replace(stack.settings, bootstrap_peers=tuple(peers))
            yield

    return Fault(name="install-bit-flip", inject=lambda _chaos, _round: None, brokers=1, surroundings=proxies)


@dataclass
class Count:
    """Flips by kind: how many there were, and how many the installing node has noticed, or the damaged one."""

    flips: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)


def run(world: InstallWorld, flips: Flips, wanted: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Flip so many bits; return the figures."""
    world.keep_a_snapshot()
    count = Count()
    while world.goes_on() and count.flips.total() < wanted:
        kind = world.random.choice(DUE)
        world.need_install()
        (_on_disk if kind == DISK else _on_the_wire)(world, flips, kind, count)
        note(f"{count.flips.total()} flips: {dict(count.flips)}, noticed {dict(count.noticed)}")
    missed = count.flips.total() - count.noticed.total()
    world.wrong += [f"{missed} flips were not noticed: {count}"] if missed else []
    return {"flips": count.flips.total(), "where": dict(count.flips), "noticed": dict(count.noticed)}


def _on_the_wire(world: InstallWorld, flips: Flips, kind: str, count: Count) -> None:
    mark = LogMark(world.chaos, world.victim)
    flips.begin(kind)
    world.stack.start_node(world.victim)
    world.have_back()
    flipped = flips.done
    flips.begin("")
    count.flips[kind] += flipped
    count.noticed[kind] += min(flipped, _lines(mark, DAMAGED[kind]))
    world.compare(mark)


def _on_disk(world: InstallWorld, flips: Flips, kind: str, count: Count) -> None:
    """Flip a bit of a file of the leader, which is asked first; then the leader loses its disk, too."""
    leader = world.chaos.wait_leader(SHARD)
    mark = LogMark(world.chaos, world.victim)
    flips.begin("")
    contents = _flip_file(world, leader)
    world.stack.start_node(world.victim)
    world.stack.wait("the victim answers", lambda: world.stack.shard(world.victim, SHARD))
    installed = world.stack.shard(world.victim, SHARD).get("installed") or {}
    ended = not world.stack.nodes[leader].is_running()
    if contents & flips.sent:
        count.flips[kind] += 1
        told = _lines(mark, "is refused") + _lines(mark, DAMAGED[PIECE])
        count.noticed[kind] += ended or (told > 0 and installed.get("peer") != leader)
    world.stack.kill_node(leader)
    shutil.rmtree(world.stack.settings.node_folder(leader))
    world.compare(mark)


def _flip_file(world: InstallWorld, node: str) -> set[str]:
    """Flip a bit anywhere in one of a node's files; return the digests before and after.

    Half of the times the file keeps its time, as on a disk that rots: the node then has a digest of the right bytes.
    """
    folder: Path = database_of(world.stack.settings, node, SHARD)
    path = world.random.choice(sorted(folder.glob("*.sst")))
    status = path.stat()
    body = bytearray(path.read_bytes())
    before = xxh3_128_hexdigest(bytes(body))
    place = world.random.randrange(len(body))
    body[place] ^= 1 << world.random.randrange(8)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(body[place : place + 1])
    if world.random.random() < 0.5:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return {before, xxh3_128_hexdigest(bytes(body))}


def _lines(mark: LogMark, words: str) -> int:
    """Count the lines of a node's log with some words; the progress that repeats a line is another one."""
    return sum(words in str(line.get("message")) for line in mark.lines())


def _kind_of(method: str, path: str) -> str:
    if path.startswith("/v1/transfers/"):
        return PIECE if method == "GET" else ""
    return LISTING if method == "POST" else VIEW
