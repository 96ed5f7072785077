"""The ports of the audit: metrics, Spark's RPC and blocks, Py4J's gateway and callbacks, the daemon of Python's workers."""

from __future__ import annotations

import random

from tests.chaos.fuzz.arms import Arms, Told
from tests.chaos.fuzz.broker_port import attack_ports

IN_CLEAR = 0.99
"""The metrics alone speak TLS; at the others a handshake waits for its time-out."""
COMMANDS = (b"c", b"A", b"i", b"f", b"a", b"s", b"m", b"g", b"r", b"p", b"e", b"", b"\0")
TARGETS = (b"p0", b"p1", b"t", b"j", b"o0", b"GATEWAY_SERVER", b"java.lang.Runtime", b"z:java.lang.System")
CALLS = (b"call", b"toString", b"getRuntime", b"exec", b"shutdown", b"resetCallbackClient", b"equals")
SERIALIZED = (b"\xac\xed\x00\x05t\x00\x04EVIL", b"\xac\xed\x00\x05sr\x00\x11java.util.HashMap", b"\xac\xed\x00\x05")
LENGTHS = (0, 7, 8, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1)
PAGES = (b"/metrics", b"/", b"/json", b"/metrics/../x", b"*")


def attack(arms: Arms, frames: int, seed: int, told: Told) -> None:
    """Send so many frames to the ports of the audit."""
    attack_ports(arms, arms.audit_ports, wild_frame, frames, f"audit {seed}", told, IN_CLEAR)


def wild_frame(rng: random.Random) -> bytes:
    """Return what one of the ports might take, or nearly."""
    return rng.choice((_py4j, _spark, _worker, _page, _noise))(rng)


def _py4j(rng: random.Random) -> bytes:
    words = [rng.choice(COMMANDS), rng.choice(TARGETS), rng.choice(CALLS), b"s" + rng.randbytes(4).hex().encode()]
    if rng.random() < 0.3:
        words = [b"A", rng.choice((b"", b"0" * 64, rng.randbytes(32).hex().encode(), b"x" * 5_000))]
    return b"\n".join(words[: rng.randrange(1, 5)]) + rng.choice((b"\ne\n", b"\n", b""))


def _spark(rng: random.Random) -> bytes:
    body = rng.choice((*SERIALIZED, rng.randbytes(rng.randrange(300))))
    if rng.random() < 0.7:
        name = rng.choice((b"endpoint-verifier", b"HeartbeatReceiver", b"BlockManagerMaster", b"x"))
        body = b"\0\0" + len(name).to_bytes(1, "big") + name + body
    message = bytes([rng.randrange(14)]) + rng.randbytes(8) + len(body).to_bytes(4, "big") + body
    length = rng.choice(LENGTHS) if rng.random() < 0.2 else len(message) + 8
    return length.to_bytes(8, "big") + message


def _worker(rng: random.Random) -> bytes:
    said = rng.choice((b"", rng.randbytes(32).hex().encode(), b"x" * 900))
    length = rng.choice((len(said), 0, 2**31 - 1, 2**32 - 1))
    return length.to_bytes(4, "big") + said


def _page(rng: random.Random) -> bytes:
    return b"GET " + rng.choice(PAGES) + b" HTTP/1.1\r\nHost: " + rng.choice((b"x", b"127.0.0.1")) + b"\r\n\r\n"


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 10, 100, 1_000)))
