"""A user: one process, one client, as many threads as the command says. ``python -m benchmarks.user.load JSON``.

Prints one JSON object: the figures of ``commands.figures``, and the processor time of this process per operation
(``client_cpu_ms``). What was begun before the warm-up had ended is not counted. An error ends the process.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.user.bare_relay import LENGTH, PRODUCER_SETTINGS
from benchmarks.user.commands import (
    BUCKET,
    CREATE,
    GET,
    LOOKED_UP,
    LOOKUP,
    LOOKUPS,
    PRODUCE,
    PUT,
    RELAY,
    VOLUME,
    UserCommand,
    figures,
    read_key,
)
from producers import Client
from schemas.kafka.client_settings import client_settings
from schemas.records.messages import CreateKey

PRODUCED_BYTES = 256
"""About what a request has."""
FLUSH_S = 60

Act = Callable[[int, int], None]
"""What thread ``n`` does at its ``m``-th turn."""


def producing(command: UserCommand) -> Act:
    """Produce one record at a time, and wait until the brokers have acknowledged it."""
    producer = Producer(client_settings(command.brokers, {**PRODUCER_SETTINGS}))
    value = os.urandom(PRODUCED_BYTES)

    def act(_thread: int, _number: int) -> None:
        errors: list[KafkaError] = []

        def told(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                errors.append(error)

        producer.produce(command.topic, value, partition=0, on_delivery=told)
        if producer.flush(FLUSH_S) or errors:
            raise RuntimeError(f"the brokers did not take a record: {errors}")

    return act


def relaying(command: UserCommand) -> Act:
    """Ask the bare relay one thing at a time, on the thread itself."""
    host, _, port = command.nodes[0].rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=FLUSH_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = LENGTH.pack(PRODUCED_BYTES) + os.urandom(PRODUCED_BYTES)

    def act(_thread: int, _number: int) -> None:
        sock.sendall(frame)
        if sock.recv(len(frame), socket.MSG_WAITALL) != frame:  # waits in poll(2) first, since there is a timeout
            raise RuntimeError("the relay has ended")

    return act


def using(client: Client, command: UserCommand) -> Act:
    """Return what the command says, done by a client."""
    data = os.urandom(command.size)
    names = [read_key(command.size, number) for number in range(command.keys)]
    options = {"consistency": command.consistency} if command.consistency else {}

    def some(thread: int, number: int) -> int:
        # Threads begin apart, so that they do not read the same file at once.
        return (thread * 7919 + number * 31) % len(names)

    def put(thread: int, number: int) -> None:
        with client.open(f"/{VOLUME}/{BUCKET}/{command.key(thread, number)}", "wb", size=command.size) as file:
            file.write(data)

    def get(thread: int, number: int) -> None:
        with client.open(f"/{VOLUME}/{BUCKET}/{names[some(thread, number)]}") as file:
            if len(file.read()) != command.size:
                raise RuntimeError("a file has another size than was written")

    def lookup(thread: int, number: int) -> None:
        client.key_info(VOLUME, BUCKET, names[some(thread, number)], **options)  # type: ignore[arg-type]

    def lookups(thread: int, number: int) -> None:
        first = some(thread, number)
        wanted = [names[(first + step) % len(names)] for step in range(LOOKED_UP)]
        if None in client.key_infos(VOLUME, BUCKET, wanted, **options):  # type: ignore[arg-type]
            raise RuntimeError("a key is not there that was written")

    def create(thread: int, number: int) -> None:
        client.call(CreateKey(volume=VOLUME, bucket=BUCKET, key=command.key(thread, number), size=command.size))

    return {PUT: put, GET: get, LOOKUP: lookup, LOOKUPS: lookups, CREATE: create}[command.what]


def run(command: UserCommand, act: Act) -> dict[str, object]:
    """Let the threads act until the time is over."""
    begun_s = time.monotonic() + command.warm_up_seconds
    until_s = begun_s + command.seconds
    taken: list[list[float]] = [[] for _ in range(command.clients)]
    errors: list[BaseException] = []
    cpu: list[float] = []

    def thread(number: int) -> None:
        turn = 0
        try:
            while not errors and (now_s := time.monotonic()) < until_s:
                act(number, turn)
                turn += 1
                if now_s >= begun_s:
                    taken[number].append(time.monotonic() - now_s)
                if command.pause_s:
                    time.sleep(command.pause_s)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(command.clients)]
    for one in threads:
        one.start()
    time.sleep(max(begun_s - time.monotonic(), 0))
    cpu.append(time.process_time())
    for one in threads:
        one.join()
    if errors:
        raise errors[0]
    ended_s = time.monotonic()
    found = figures(command, [seconds for some in taken for seconds in some], ended_s - begun_s)
    spent_s = time.process_time() - cpu[0]
    return {**found, "client_cpu_ms": round(spent_s * 1000 / max(found["operations"], 1), 3)}


def main() -> None:
    """Do what the command says."""
    told = json.loads(sys.argv[1])
    command = UserCommand(**{**told, "nodes": tuple(told["nodes"])})
    with ExitStack() as open_:
        if command.what == PRODUCE:
            act = producing(command)
        elif command.what == RELAY:
            act = relaying(command)
        else:
            act = using(open_.enter_context(Client(command.brokers, nodes=command.nodes)), command)
        print(json.dumps(run(command, act)), flush=True)


if __name__ == "__main__":
    main()
