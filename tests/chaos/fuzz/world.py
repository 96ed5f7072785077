"""The stack that is attacked: what is in it that nobody may touch, what its processes hold, whether all goes on."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil

from datanode_processors.errors import BlockError
from datanode_processors.wire.peer import Peer
from datanode_processors.wire.wire_tls import WireTls
from producers import Client
from producers.errors import StratologError
from schemas.access.credentials import operator_credentials
from schemas.records.datanode import GetBlock
from schemas.security.certificates import PeerIdentity, Role
from schemas.security.tls import ProcessTls
from stratolog.local import state
from stratolog.nodes.answers import node_status
from stratolog.security.private_files import write_private
from tests.chaos.fuzz.arms import MALLORY, Arms
from tests.support.local.at_work import at_work
from tests.support.local.secure_stack import SecureStack

VAULT, BUCKET = "vault", "bucket"
HONEST = "honest"
SMALL_BYTES, LARGE_BYTES = 300, 200_000
KEYS = 6
HONEST_PAUSE_S = 0.3
POLL_S = 0.2
MOST_GROWN_MIB = {state.NODE: 512, state.DATANODE: 512, state.BROKER: 512, state.AUDIT: 1536}
"""How much a process may hold more than before the attack, at most. The direct door may hold 256 MiB for all together; a
broker has a heap of 512 MiB and begins with a quarter of it; the audit's Java may fill its heap of 1 GiB, as Spark asks
for what a frame claims, and strangers may have 64 forks of its Python for five seconds."""
LATER_S = 60.0
SESSION_TIMEOUT_MS = 30_000
"""How long a silent leader keeps its shard: on a machine that others use, two seconds end without any attack."""
STOOD_STILL_S = SESSION_TIMEOUT_MS / 1000
"""From so long on that the watching thread was not run, a leader may have lost its shard for that."""


class FuzzedStack:
    """A secure stack of ``auth = signed`` with a vault, and an attacker who is known and has no rights."""

    def __init__(self, stack: SecureStack, folder: Path) -> None:
        self.stack = stack
        self._folder = folder
        self._canary = f"canary{os.urandom(12).hex()}"
        self.client = self._open()
        self._fill()
        self.arms = self._arm()
        self.stood_still_s = 0.0
        """The longest time for which the machine did not let this process run, in the last attack."""
        self._members = self._running()
        self._logs = {member.log: member.log.stat().st_size for member, _ in self._members.values()}
        self._read_to: dict[Path, int] = {}
        self._terms = self.terms()
        self._before = self.seen()

    @classmethod
    @contextmanager
    def start(cls, folder: Path) -> Iterator[Self]:
        stack = SecureStack.start(folder / "stack", auth="signed", audit=True, session_timeout_ms=SESSION_TIMEOUT_MS)
        try:
            found = cls(stack, folder)
            try:
                yield found
            finally:
                found.client.close()
        finally:
            stack.close()

    def _open(self) -> Client:
        settings = self.stack.settings
        return Client(
            nodes=[node.address for node in settings.nodes], credentials=operator_credentials(settings.secret()),
            tls=self.stack.tls("operator", Role.ADMIN), deadline_ms=120_000,
        )  # fmt: skip

    def _fill(self) -> None:
        """Put what nobody may read: the canary is in all bytes, and in one name."""
        client = self.client
        for volume in (VAULT, HONEST):
            client.create_volume(volume)
            client.create_bucket(volume, BUCKET)
        word = self._canary.encode()
        for number in range(KEYS):
            client.put_key(VAULT, BUCKET, f"small{number}", word * (SMALL_BYTES // len(word)))
            with client.open(f"/{VAULT}/{BUCKET}/large{number}", "wb") as file:
                file.write(word * (LARGE_BYTES // len(word)))
        client.put_key(VAULT, BUCKET, self._canary, b"a name that nobody may list")

    def _arm(self) -> Arms:
        stack, settings = self.stack, self.stack.settings
        file = self._folder / "mallory.credentials"
        for words in (
            ("admin", "kafka-user", "add", MALLORY, "--password-file", str(stack.password_file(MALLORY))), ("admin", "user", "add", MALLORY, "--file", str(file)),
        ):  # fmt: skip
            done = stack.stratolog(*words)
            assert done.returncode == 0, done.stdout + done.stderr
        files = stack.tls(MALLORY)
        own = self._folder / "mallory.pem"
        write_private(own, stack.authority.in_clear(PeerIdentity(name=MALLORY, role=Role.CLIENT)))
        locations = [
            one for number in range(KEYS) for one in self.client.key_info(VAULT, BUCKET, f"large{number}").info.blocks
        ]
        blocks = tuple((one.container_id % 256, one.container_id, one.local_id) for one in locations)
        return Arms(
            cluster=settings.cluster, brokers=stack.servers, kafka=dict(stack.user(MALLORY)), node=settings.nodes[0].address,
            datanodes={one.name: one.address for one in settings.datanodes},
            web={
                **{one.name: f"{one.host}:{one.http_port}" for one in settings.datanodes},
                **{one.name: one.address for one in settings.nodes},
            },
            broker_ports=tuple(self._ports(state.BROKER)), audit_ports=tuple(self._ports(state.AUDIT)),
            ca=str(files.ca), certificate=str(own), credentials=str(file), volume=VAULT, bucket=BUCKET,
            keys=tuple(f"{kind}{number}" for kind in ("small", "large") for number in range(KEYS)),
            blocks=blocks, blocks_are_guarded=not self._tells_blocks(blocks[0]), canary=self._canary,
        )  # fmt: skip

    def _tells_blocks(self, block: tuple[int, int, int]) -> bool:
        """Whether a datanode tells about a block to a client that can name it, and has nothing else."""
        address = self.stack.settings.datanodes[0].address
        tls = WireTls(ProcessTls(self.stack.tls(MALLORY)))
        with Peer(address, own=MALLORY, cluster=self.stack.settings.cluster, timeout_s=LATER_S, tls=tls) as peer:
            try:
                peer.request(GetBlock(partition=block[0], container_id=block[1], local_id=block[2]))
            except BlockError:
                return False
        return True

    # -- what must not change ---------------------------------------------------------------------------------------

    def seen(self) -> dict[str, Any]:
        """Return what nobody may change: rows of the vault, volumes, users, rights, and the bytes of its blocks."""
        client = self.client
        return {
            "volumes": [repr(one) for one in client.list_volumes()],
            "buckets": [repr(one) for one in client.list_buckets(VAULT)],
            "keys": [repr(one) for one in client.list_keys(VAULT, BUCKET)],
            "bytes": {f"{key}": self._read(f"{key}") for key in ("small0", "large0", f"large{KEYS - 1}")},
            "rights": [repr(client.get_acl(VAULT)), repr(client.get_acl(VAULT, BUCKET))],
            "users": client.reads.get("/v1/users", {}, "linearizable")["users"],
            "blocks": self._block_files(),
        }  # fmt: skip

    def _read(self, key: str) -> str:
        with self.client.open(f"/{VAULT}/{BUCKET}/{key}") as file:
            return hashlib.sha256(file.read()).hexdigest()

    def _block_files(self) -> dict[str, str]:
        """Return the sums of the vault's blocks on each datanode; other clients' come and go."""
        folder = self.stack.settings.data_dir / "datanodes"
        names = {f"{container}/{local}.block" for _, container, local in self.arms.blocks}
        found = [path for path in sorted(folder.rglob("*.block")) if "/".join(path.parts[-2:]) in names]
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}

    def changes(self) -> list[str]:
        """Return what is not as it was before."""
        now = self.seen()
        wrong = [what for what in now if what != "blocks" and now[what] != self._before[what]]
        return wrong + [name for name, digest in self._before["blocks"].items() if now["blocks"].get(name) != digest]

    def terms(self) -> dict[str, Any]:
        """Return who leads, and since which term."""
        status = node_status(self.stack.settings.nodes[0].address)
        assert status is not None
        return {str(one["shard"]): (one["term"], one["leader"]) for one in status["shards"]}

    def troubles(self) -> list[str]:
        """Return what has gone wrong since it was last asked: ended processes, another leader, tracebacks and defects in logs."""
        wrong = [f"{name} has ended" for name, (_, process) in self._members.items() if not process.is_running()]
        # A machine that stood still for so long changes leaders by itself, and says nothing about the attack.
        if (now := self.terms()) != self._terms and self.stood_still_s < STOOD_STILL_S:
            wrong.append(f"leaders were {self._terms}, and are {now}")
        self._terms = now
        for log in self._logs:
            with log.open("rb") as file:
                file.seek(self._read_to.get(log, self._logs[log]))
                found = [line for line in file if b"Traceback" in line or b"defect in" in line]
                self._read_to[log] = file.tell()
            wrong += [f"{log.name}: {line.decode(errors='replace').strip()[:300]}" for line in found[:3]]
        return wrong

    def not_attacked(self) -> list[str]:
        """Return the ports on which a process listens and which no attack reaches."""
        arms = self.arms
        known = {
            one.rpartition(":")[2]
            for one in (arms.node, *arms.datanodes.values(), *arms.web.values(), *arms.broker_ports, *arms.audit_ports)
        }
        found = {one for kind in state.KINDS for one in self._ports(kind)}
        return [f"nobody attacks {one}" for one in sorted(found) if one.rpartition(":")[2] not in known]

    def _ports(self, kind: str) -> list[str]:
        """Return the addresses at which processes of a kind listen, and their children."""
        found = []
        for member, process in self._running().values():
            for one in (process, *process.children(recursive=True)) if member.kind == kind else ():
                places = {each.laddr for each in one.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
                # At all addresses Spark's operator listens for its own task, and no longer.
                own = [place for place in places if kind != state.AUDIT or place.ip not in ("0.0.0.0", "::")]
                found += [f"127.0.0.1:{place.port}" for place in own]
        return sorted(set(found))

    def log_mib(self) -> dict[str, float]:
        """Return by how much each log has grown."""
        return {log.stem: round((log.stat().st_size - size) / 2**20, 2) for log, size in self._logs.items()}

    # -- processes --------------------------------------------------------------------------------------------------

    def _running(self) -> dict[str, tuple[state.StackMember, psutil.Process]]:
        found = state.read_state(self.stack.settings.data_dir)
        assert found is not None
        return {member.name: (member, psutil.Process(member.process.pid)) for member in found.members}

    @contextmanager
    def watched(self) -> Iterator[dict[str, list[float]]]:
        """Yield, by process, what it holds at first and at most, in MiB."""
        held = {name: [mib := _mib(process), mib] for name, (_, process) in self._members.items()}
        self.stood_still_s = 0.0

        def watch(ended: threading.Event) -> None:
            last_s = time.monotonic()
            while not ended.wait(POLL_S):
                now_s = time.monotonic()
                self.stood_still_s, last_s = max(self.stood_still_s, now_s - last_s - POLL_S), now_s
                for name, (_, process) in self._members.items():
                    held[name][1] = max(held[name][1], _mib(process))

        with at_work(watch):
            yield held

    @contextmanager
    def working(self) -> Iterator[dict[str, float]]:
        """Yield what becomes, by process, the processor seconds of the block; those of the attackers beside them."""

        def used() -> dict[str, float]:
            members = {name: sum(process.cpu_times()[:2]) for name, (_, process) in self._members.items()}
            return members | {"attackers": sum(psutil.Process().cpu_times()[2:4])}

        before, found = used(), dict[str, float]()
        yield found
        found |= {name: round(seconds - before[name], 1) for name, seconds in used().items()}

    def too_large(self, held: dict[str, list[float]]) -> list[str]:
        """Return which processes have grown beyond their limits."""
        return [
            f"{name} has grown from {first} to {most} MiB"
            for name, (first, most) in held.items()
            if most - first > MOST_GROWN_MIB.get(self._members[name][0].kind, float("inf"))
        ]


def _mib(process: psutil.Process) -> float:
    """Return what a process and its children hold; what they share is counted once."""
    held = 0
    with suppress(psutil.NoSuchProcess):
        held = process.memory_info().rss
        for child in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                info = child.memory_info()
                held += info.rss - info.shared if child.name().startswith("python") else info.rss
    return float(round(held / 2**20, 1))


class Honest:
    """A client that goes on beside the attack: a small key is put and read, now and then one in blocks."""

    def __init__(self, fuzzed: FuzzedStack) -> None:
        self._fuzzed = fuzzed
        self.failed: list[str] = []
        self.times_ms: list[float] = []

    @contextmanager
    def at_work(self) -> Iterator[Self]:
        """Work until the end of the block."""
        with at_work(self._work):
            yield self

    def _work(self, ended: threading.Event) -> None:
        number = 0
        while not ended.wait(HONEST_PAUSE_S):
            number += 1
            self.once(number, LARGE_BYTES if number % 10 == 0 else SMALL_BYTES)

    def once(self, number: int, size: int) -> None:
        """Write a key and read it."""
        client, place, content = self._fuzzed.client, f"/{HONEST}/{BUCKET}/k{number % 50}", os.urandom(size)
        begun_s = time.monotonic()
        try:
            with client.open(place, "wb") as file:
                file.write(content)
            with client.open(place) as file:
                assert file.read() == content, place
        except (StratologError, AssertionError, OSError) as error:
            self.failed.append(repr(error))
        self.times_ms.append((time.monotonic() - begun_s) * 1000)
