"""The ports of a broker: users', nodes' and the controller's; in clear, in TLS, and with a certificate without rights."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Sequence

from tests.chaos.fuzz.arms import Arms, Line, Told, by_many, context_of

TOGETHER = 100
"""Frames that are sent together, at most."""
IN_CLEAR = 0.2
ALONE_S = 0.3
"""How long answers are waited for."""
KEYS = 92
"""Kafka's kinds of requests, and some more."""
SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
BEFORE_LOGIN = (SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE)
LIES = (0, 1, 3, 511, 16_385, 524_288, 16_777_217, 104_857_600, 2**31 - 1, 2**31, 2**32 - 1)
"""Lengths that frames announce and do not have."""
GS2 = (
    b"n,,n=alice,r=fyko",
    b"n,,n=mallory,r=",
    b"y,,n=,r=x",
    b"n,a=operator,n=mallory,r=x",
    b"c=biws,r=x,p=AAAA",
    b"\x01auth\x01",
)


def attack(arms: Arms, frames: int, seed: int, told: Told) -> None:
    """Send so many frames to the ports of the brokers."""
    attack_ports(arms, arms.broker_ports, wild_frame, frames, f"broker {seed}", told, IN_CLEAR)


def attack_ports(
    arms: Arms, ports: Sequence[str], frame: Callable[[random.Random], bytes], frames: int, seed: str, told: Told,
    in_clear: float,
) -> None:  # fmt: skip
    """Send so many frames to ports that answer strangers with nothing that is an OK; ``in_clear``: so often in clear."""
    contexts = (context_of(arms, known=False), context_of(arms, known=True))

    def one(number: int, share: int, own: Told) -> None:
        rng = random.Random(f"{seed} {number}")
        while own["sent"] < share:
            sent = [frame(rng) for _ in range(rng.randrange(1, TOGETHER))]
            own["sent"] += len(sent)
            context = None if rng.random() < in_clear else rng.choice(contexts)
            try:
                _talk(arms, rng.choice(ports), context, b"".join(sent), own)
                # No frame has had an effect: who is not known, or has no right, is refused whatever it says.
                own["refused"] += len(sent)
            except OSError as error:
                own["closed"] += 1
                own["refused"] += len(sent)
                own[f"connection: {type(error).__name__}"] += 1

    by_many(one, frames, told)


def _talk(arms: Arms, port: str, context: ssl.SSLContext | None, data: bytes, told: Told) -> None:
    with Line(port, context, told, arms.canary) as line:
        line.say(data)
        heard, _ = line.hear_until(lambda _: False, ALONE_S)
    told["answered"] += bool(heard)
    told["allowed"] += any(word in heard for word in (b"HTTP/1.1 200", b"!ys", b"!yo", b"!yr"))


def wild_frame(rng: random.Random) -> bytes:
    """Return a request of Kafka: mostly one that may come before a login, with a body that is mostly none."""
    kind = rng.choice(BEFORE_LOGIN) if rng.random() < 0.6 else rng.randrange(-1, KEYS)
    client = rng.choice((b"", b"rdkafka", b"x" * 300, rng.randbytes(9)))
    head = (kind % 65_536).to_bytes(2, "big") + rng.randrange(16).to_bytes(2, "big") + rng.randbytes(4)
    head += len(client).to_bytes(2, "big") + client + rng.choice((b"", b"\0"))
    body = head + _body(kind, rng)
    length = rng.choice(LIES) if rng.random() < 0.2 else len(body)
    return length.to_bytes(4, "big") + body


def _body(kind: int, rng: random.Random) -> bytes:
    if kind == SASL_HANDSHAKE:
        name = rng.choice((b"SCRAM-SHA-512", b"PLAIN", b"GSSAPI", b"OAUTHBEARER", b"", b"x" * 3_000))
        return len(name).to_bytes(2, "big") + name
    if kind == SASL_AUTHENTICATE:
        said = rng.choice((*GS2, rng.randbytes(rng.randrange(200)), b"n,,n=" + b"a" * 12_000))
        return len(said).to_bytes(4, "big") + said
    return rng.randbytes(rng.choice((0, 1, 8, 40, 400, 4_000)))
