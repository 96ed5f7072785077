"""Real Kafka brokers on this machine: one, or three with replication, in KRaft mode (broker and controller in one).

One :class:`KafkaCluster` is one directory: ``broker-N/`` holds a broker's properties, data and log. It is formatted at
its first start and keeps its data over later ones. The settings here are those of the log contract (design, section 3)
and of small, quick local brokers; the settings of topics are in ``stratolog.local.topics``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from xxhash import xxh3_64_hexdigest

from schemas.kafka.client_settings import client_settings
from schemas.kafka.connection import KafkaConnection, connection
from schemas.topics import MAX_MESSAGE_BYTES
from stratolog.brokers.secure_listeners import BrokerIdentity, listener_properties
from stratolog.errors import Unavailable, UsageError
from stratolog.local.ports import free_ports
from stratolog.local.processes import Process, log_tail, spawn, stop_all, wait_until

BROKER_COUNTS = (1, 3)
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
ARCHIVE_TIMEOUT_S = 60.0
METADATA_TIMEOUT_S = 2.0
RECONNECT_MS = 200
"""Longest wait between two attempts to connect to a starting broker; by default it would soon be ten seconds."""

FORMAT_TIMEOUT_S = 120
MIN_SESSION_TIMEOUT_MS = 500
"""Consumers may ask for session time-outs as short as this, for quick failover."""

LONG_RUN_JVM = ("-XX:+UseG1GC",)
QUICK_START_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Less processor time to start, less speed later: for brokers that live for a test."""

HEAP_MIB = {1: 512, 3: 400}
"""Most MiB of a broker's heap, by the number of brokers. A broker needs about 150 MiB beside it."""

REQUEST_BYTES = 2 * MAX_MESSAGE_BYTES
"""A larger request is not read: a broker allocates what a request announces, and Kafka's default is 100 MiB."""

JAVA_VERSION = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Where one broker listens: its ports, on the loopback unless said otherwise.

    ``launcher`` is put before the broker's command, as in ``ip netns exec NAME``.
    """

    broker: int
    controller: int
    nodes: int = 0
    """Port for those who prove themselves by certificates, of brokers that know who asks."""
    host: str = "127.0.0.1"
    launcher: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The address that clients use."""
        return f"{self.host}:{self.broker}"

    @property
    def node_address(self) -> str:
        """The address that nodes use, where it is another one."""
        return f"{self.host}:{self.nodes}"


def allocate_listeners(count: int, preferred: Sequence[int] = ()) -> tuple[Listener, ...]:
    """Return ports for ``count`` brokers: the ``preferred`` client ports as far as given, free ones else."""
    ports = free_ports(3 * count)
    clients = [*preferred[:count], *ports[len(preferred[:count]) : count]]
    return tuple(
        Listener(broker=b, controller=c, nodes=n)
        for b, c, n in zip(clients, ports[count : 2 * count], ports[2 * count :], strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCluster:
    """Brokers in ``folder``, on ``listeners``, run from the jars in ``jars``."""

    folder: Path
    jars: Path
    listeners: tuple[Listener, ...]
    jvm: tuple[str, ...] = LONG_RUN_JVM
    identities: tuple[BrokerIdentity, ...] = ()
    """What each broker proves itself by; if there are any, the brokers know who asks."""
    operator: tuple[tuple[str, str], ...] = ()
    """With ``identities``: the ``kafka.*`` settings of who asks whether the brokers are ready."""
    heap_mib: int | None = None
    """Most MiB of each broker's heap; None: HEAP_MIB."""
    cluster_id: str | None = None
    """Kafka's name of the cluster; None: made at the first start, and kept in ``folder``."""

    def __post_init__(self) -> None:
        """Refuse a number of brokers for which there are no durability rules."""
        if len(self.listeners) not in BROKER_COUNTS:
            raise UsageError(f"brokers must be 1 or 3, not {len(self.listeners)}")

    @property
    def bootstrap_servers(self) -> str:
        """Addresses for clients."""
        return ",".join(listener.address for listener in self.listeners)

    @property
    def connection(self) -> KafkaConnection:
        """How the operator reaches the brokers."""
        if not self.identities:
            return connection(self.bootstrap_servers)
        return connection(",".join(one.node_address for one in self.listeners), dict(self.operator))

    @property
    def replication_factor(self) -> int:
        """Copies of each partition."""
        return len(self.listeners)

    def log_file(self, number: int) -> Path:
        """Return the log of broker ``number`` (from 1)."""
        return self._home(number) / "broker.log"

    def start(self, *, detached: bool) -> list[Process]:
        """Start all brokers, formatted at the first start; return at once (see :meth:`wait_ready`).

        Raises Unavailable if Java is missing or a directory cannot be formatted.
        """
        numbers = range(1, len(self.listeners) + 1)
        self.format(numbers)
        return [self.start_broker(number, detached=detached) for number in numbers]

    def start_broker(self, number: int, *, detached: bool) -> Process:
        """Start broker ``number`` (from 1) of a formatted cluster."""
        return spawn(self.broker_command(number), log=self.log_file(number), detached=detached)

    def broker_command(self, number: int) -> list[str]:
        """Return the command of broker ``number`` (from 1) of a formatted cluster."""
        heap = self._heap_mib
        return [
            *self.listeners[number - 1].launcher, _java(), f"-Xmx{heap}m", f"-Xms{heap // 4}m",
            *self._shared_classes(), *self.jvm, "-XX:-UsePerfData", "-Djava.awt.headless=true", *_LOGGING, "-cp", str(self.jars / "*"),
            "kafka.Kafka", str(self._properties_file(number)),
        ]  # fmt: skip

    def wait_ready(self, processes: Sequence[Process], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every broker is registered and serves; raises Unavailable with the log's end if not."""
        admin = AdminClient(
            client_settings(self.connection, {"reconnect.backoff.max.ms": RECONNECT_MS, "log_level": 0})
        )

        def is_settled() -> bool:
            return self._serves(admin) or not all(process.is_running() for process in processes)

        done = wait_until(is_settled, timeout_s)
        for number, process in enumerate(processes, start=1):
            if not process.is_running():
                raise Unavailable(f"Kafka broker {number} ended at its start:\n{log_tail(self.log_file(number))}")
        if not done:
            raise Unavailable(f"Kafka is not ready after {timeout_s:.0f} s:\n{log_tail(self.log_file(1))}")

    def _serves(self, admin: AdminClient) -> bool:
        """Say whether these very brokers, not others on the same ports, are registered under a controller."""
        try:
            found = admin.describe_cluster(request_timeout=METADATA_TIMEOUT_S).result()
        except KafkaException:
            return False
        complete = len(found.nodes) == len(self.listeners) and found.controller is not None
        return complete and found.cluster_id == self._cluster_id()

    @property
    def _heap_mib(self) -> int:
        return self.heap_mib or HEAP_MIB[len(self.listeners)]

    def _shared_classes(self) -> tuple[str, ...]:
        archive = class_archive(self.jars)
        return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()

    def _home(self, number: int) -> Path:
        return self.folder / f"broker-{number}"

    def _properties_file(self, number: int) -> Path:
        return self._home(number) / "server.properties"

    def format(self, numbers: Iterable[int]) -> None:
        """Write the properties of brokers, and format their data directories that are new; raises Unavailable."""
        cluster_id = self._cluster_id()
        running: list[tuple[Path, subprocess.Popen[str]]] = []
        for number in numbers:
            self._home(number).mkdir(parents=True, exist_ok=True)
            self._properties_file(number).write_text(_as_text(self._properties(number)))
            if not (self._home(number) / "data" / "meta.properties").exists():
                running.append((self._home(number), self._start_format(number, cluster_id)))
        for home, process in running:
            try:
                output, _ = process.communicate(timeout=FORMAT_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                for _, started in running:
                    started.kill()
                    started.communicate()
                raise Unavailable(f"Kafka did not format {home / 'data'} in {FORMAT_TIMEOUT_S} s") from error
            if process.returncode != 0:
                raise Unavailable(f"Kafka could not format {home / 'data'}:\n{output.strip()}")

    def _start_format(self, number: int, cluster_id: str) -> subprocess.Popen[str]:
        command = [
            _java(), "-Xmx128m", *self._shared_classes(), *QUICK_START_JVM, "-XX:-UsePerfData", *_LOGGING,
            "-cp", str(self.jars / "*"), "kafka.tools.StorageTool", "format", "-t", cluster_id,
            "-c", str(self._properties_file(number)),
        ]  # fmt: skip
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def _cluster_id(self) -> str:
        """Return the cluster's id (22 characters of base64, as Kafka demands); the first call makes one if need be."""
        if self.cluster_id is not None:
            return self.cluster_id
        path = self.folder / "cluster.id"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            # As Kafka's own tool does: an id that begins with a hyphen would be read as an option.
            while (identity := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
                pass
            path.write_text(identity)
        return path.read_text()

    def _properties(self, number: int) -> Mapping[str, str]:
        voters = ",".join(f"{n}@{one.host}:{one.controller}" for n, one in enumerate(self.listeners, start=1))
        copies = str(self.replication_factor)
        in_sync = str(min_in_sync(self.replication_factor))
        return {
            **_COMMON,
            "node.id": str(number),
            "controller.quorum.voters": voters,
            **self._listeners(number),
            "log.dirs": str(self._home(number) / "data"),
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
        }

    def _listeners(self, number: int) -> Mapping[str, str]:
        own = self.listeners[number - 1]
        controller = f"{own.host}:{own.controller}"
        if self.identities:
            names = tuple(one.name for one in self.identities)
            return listener_properties(
                self.identities[number - 1], names, users=own.address, nodes=own.node_address, controller=controller,
                heap_mib=self._heap_mib,
            )  # fmt: skip
        return {
            "listeners": f"PLAINTEXT://{own.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{own.address}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }


def min_in_sync(replication_factor: int) -> int:
    """Return ``min.insync.replicas``: two of three, else one."""
    return 2 if replication_factor >= 3 else 1


def class_archive(jars: Path) -> Path:
    """Return the file with the broker's classes, read and verified, for this very Java; brokers use it if it exists."""
    java = Path(_java()).resolve()
    return jars.with_name(f"{jars.name}-java-{xxh3_64_hexdigest(f'{java} {java.stat().st_mtime_ns}'.encode())}.jsa")


def make_class_archive(jars: Path) -> Path:
    """Make the class archive (JEP 350) unless it exists: it halves the processor time that a broker needs to start.

    A broker writes the archive when it stops. This function runs one for that, in a directory of its own.
    """
    archive = class_archive(jars)
    if not archive.exists():
        with tempfile.TemporaryDirectory(prefix=f".{archive.name}-", dir=archive.parent) as scratch:
            made = Path(scratch) / archive.name
            jvm = (*QUICK_START_JVM, "-Xlog:cds=error", f"-XX:ArchiveClassesAtExit={made}")
            cluster = KafkaCluster(folder=Path(scratch), jars=jars, listeners=allocate_listeners(1), jvm=jvm)
            started: list[Process] = []
            whole = False
            # Brokers also start without the archive, so a Java that makes none, or is too slow, is no error.
            try:
                with suppress(Unavailable):
                    started += cluster.start(detached=False)
                    cluster.wait_ready(started)
                    stop_all(started, ARCHIVE_TIMEOUT_S)
                    whole = not any(process.is_running() for process in started)
            finally:
                stop_brokers(started, gracefully=False)
            if whole and made.exists():
                made.rename(archive)
    return archive


_COMMON: Mapping[str, str] = {
    "process.roles": "broker,controller",
    # The log contract: no typing error makes a topic, and no replica that lacks records is elected.
    "auto.create.topics.enable": "false",
    "unclean.leader.election.enable": "false",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
    "socket.request.max.bytes": str(REQUEST_BYTES),
    "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES + 1024 * 1024),
    "replica.fetch.response.max.bytes": str(2 * MAX_MESSAGE_BYTES),
    # Interval at which an idle controller appends a record. The default, twice a second, takes a third of an idle
    # broker's processor time.
    "metadata.max.idle.interval.ms": "5000",
    # After this time a killed broker is given up, and may register again.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    # Quick first assignment and failover of consumer groups (both protocols).
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": str(MIN_SESSION_TIMEOUT_MS),
    "group.consumer.min.session.timeout.ms": str(MIN_SESSION_TIMEOUT_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    # Small numbers: the defaults are for machines with hundreds of partitions.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "1",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
    "log.cleaner.io.buffer.size": str(256 * 1024),
    "controlled.shutdown.enable": "true",
}

_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


def _as_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in sorted(properties.items()))


def _java() -> str:
    """Return the java program; raises Unavailable if it is missing or older than Java 17."""
    java = shutil.which("java")
    if java is None:
        raise Unavailable(f"'java' not found: install Java {JAVA_VERSION} or newer")
    return java


def check_java() -> None:
    """Raise Unavailable if Java is missing or too old."""
    done = subprocess.run([_java(), "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', done.stderr)
    if match is None or int(match.group(1)) < JAVA_VERSION:
        found = (done.stderr.splitlines() or ["no version"])[0]
        raise Unavailable(f"Java {JAVA_VERSION} or newer is needed, found: {found}")


def stop_brokers(processes: Sequence[Process], *, gracefully: bool = True) -> None:
    """Stop brokers and return once they are gone; not ``gracefully``, kill them (their data is thrown away)."""
    if gracefully:
        stop_all(processes, STOP_TIMEOUT_S)
    for process in processes:
        process.kill()
