"""A check that somebody listens at the brokers' addresses, before a Kafka client is made.

A Kafka client would try for long and say little. Only what is certain counts as a failure: a refused connection, or an
unknown name. A slow address, or a network that loses a packet, is left to the Kafka client and its time limit.

What belongs here: plain connections, and addresses in librdkafka's form (``host:port``, port 9092 by default, with or
without a protocol in front).
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

from producers.errors import NOT_CONNECTED, NotConnected
from transport.waiting.deadline import Deadline

PROBE_TIMEOUT_S = 1.0
GRACE_S = 1.0
"""How long the check is repeated, for brokers that are being started at the same moment."""
PAUSE_S = 0.1
DEFAULT_PORT = 9092
LAST_PORT = 65_535
MAX_PROBES = 16
"""Addresses that are tried at the same time."""


def check_listening(bootstrap_servers: str, deadline: Deadline) -> None:
    """Return as soon as one of the addresses may have a listener.

    Raises NotConnected if none has for GRACE_S, or until the deadline if that is sooner.
    """
    addresses = [_host_and_port(part) for part in bootstrap_servers.split(",") if part.strip()]
    until = deadline.sooner(GRACE_S)
    with ThreadPoolExecutor(max_workers=min(len(addresses), MAX_PROBES), thread_name_prefix="stratolog-probe") as pool:
        while not any(pool.map(_may_listen, addresses)):
            if not until.has_room_for(PAUSE_S):
                raise NotConnected(NOT_CONNECTED, f"nobody listens at {bootstrap_servers}: is the stack running?")
            time.sleep(PAUSE_S)


def _host_and_port(address: str) -> tuple[str, str]:
    """Return the host and the port of an address.

    >>> _host_and_port("PLAINTEXT://broker:9093"), _host_and_port("broker"), _host_and_port("[::1]:9093")
    (('broker', '9093'), ('broker', '9092'), ('::1', '9093'))
    """
    place = address.strip().rpartition("://")[2]
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(DEFAULT_PORT)
    return host.strip("[]"), port


def _may_listen(address: tuple[str, str]) -> bool:
    """Return whether the address does not refuse a connection; a name may stand for several places."""
    host, port = address
    try:
        if int(port) > LAST_PORT:
            return False  # the C library would take it modulo 65,536
        with socket.create_connection((host, int(port)), PROBE_TIMEOUT_S, all_errors=True):
            return True
    except (socket.gaierror, ValueError, OverflowError):
        return False
    except ExceptionGroup as tried:
        # Without IPv6, localhost is refused at one place and unreachable at the other: nobody listens there.
        kinds = [type(error) for error in tried.exceptions]
        return TimeoutError in kinds or ConnectionRefusedError not in kinds
