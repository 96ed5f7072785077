"""All settings, as one frozen object; ``stratolog.configuration.loading`` makes it from a file and the environment.

An unknown name is an error, in the file and in the environment. So is a value of the wrong type or out of range. The
message names the setting, the value and where it was found.

In the file ``nodes``, ``datanodes``, ``racks`` and ``kafka`` are tables (``om1 = "127.0.0.1:9871"``), ``pipelines`` an
array; in the environment all but ``kafka`` are separated by commas (``om1=127.0.0.1:9871,om2=...``), and an empty table
is ``none``. ``stratolog.configuration.settings_values`` reads single values; ``stratolog.configuration.node_configs``
makes configurations of nodes from them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.kafka.connection import BadKafkaSetting, KafkaConnection, connection
from schemas.sharding import MAX_SHARDS
from schemas.small_objects import MAX_INLINE_BYTES
from stratolog.configuration import settings_values as values
from stratolog.configuration.places import (
    user_name,
)
from stratolog.configuration.settings_values import DEFAULT_RACK, DatanodeAddress, NodeAddress
from stratolog.errors import UsageError

if TYPE_CHECKING:
    from schemas.access.credentials import Credentials
    from schemas.privilege import ClusterSecret
    from schemas.security.tls import ProcessTls, TlsFiles
    from stratolog.security.key_encryption import KeyEncryption


PREFIX = "STRATOLOG_"
DEFAULT_NODES = tuple(NodeAddress(name=f"om{n}", host="127.0.0.1", port=9870 + n) for n in (1, 2, 3))
TABLES = ("nodes", "datanodes", "racks", "kafka")
"""Settings that are tables in the file."""
KAFKA_PREFIX = "kafka_"
"""Variables of single ``kafka.*`` settings: STRATOLOG_KAFKA_SASL_USERNAME is ``sasl.username`` of ``[kafka]``."""
SECRET_FILE = "cluster-secret"  # noqa: S105 - where it is, not what it is
MIB = 1024 * 1024
DAY_MS = 86_400_000


def default_datanodes(count: int) -> tuple[DatanodeAddress, ...]:
    """Return ``count`` datanodes of this machine, dn1 to dnN."""
    numbers = range(1, count + 1)
    return tuple(DatanodeAddress(name=f"dn{n}", host="127.0.0.1", port=9900 + n, http_port=10_000 + n) for n in numbers)


def _setting(read: Callable[[Any], Any], **default: Any) -> Any:
    """Declare a setting: how a value from the file or the environment is read, and its default."""
    return field(metadata={"read": read}, **default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting of the command, the local stack, the nodes and the clients. Times in milliseconds."""

    bootstrap_servers: str = _setting(values.addresses, default="127.0.0.1:9092")
    """Kafka's ``bootstrap.servers``: ``host:port``, separated by commas."""
    node_bootstrap_servers: str | None = _setting(values.addresses, default=None)
    """Where nodes, datanodes, the audit and operators' commands reach the brokers, if elsewhere than users do.

    Brokers that know users by passwords and nodes by certificates have two listeners. Unset: ``bootstrap_servers``.
    """
    kafka: tuple[tuple[str, str], ...] = _setting(values.kafka, default=())
    """How brokers are reached that want TLS or a login: a table of ``kafka.*`` settings (below)."""
    cluster: str = _setting(values.name, default="stratolog")
    """Name of the cluster, recorded in the log."""
    shards: int = _setting(values.integer(1, MAX_SHARDS), default=2)
    """Partitions of the request and log topics; fixed when the cluster is created."""
    nodes: tuple[NodeAddress, ...] = _setting(values.nodes, default=DEFAULT_NODES)
    """Object Manager nodes and where their HTTP servers are."""
    data_dir: Path = _setting(values.path, default=Path(".stratolog"))
    """Where the local stack and the nodes keep their data.

    Unset, it is the ``.stratolog`` of the working directory, or the nearest one above it that has a stack.
    """
    cache_dir: Path = _setting(values.path, default=Path("~/.cache/stratolog"))
    """Where fetched jars are kept."""
    brokers: int = _setting(values.one_of_integers(1, 3), default=1)
    """Kafka brokers of the local stack; three means replication factor 3 and min.insync 2."""
    broker_heap_mib: int | None = _setting(values.integer(128, 65_536), default=None)
    """Most MiB of the Java heap of each broker of the local stack; unset = 512 for one, 400 for each of three."""
    durability: str = _setting(values.one_of("replicated", "fsync"), default="replicated")
    """Where an acknowledged log record is: in the page caches of min.insync brokers (replicated), or on their disks."""
    response_partitions: int = _setting(values.integer(1, 1024), default=4)
    """Partitions of the responses' topic."""
    pipelines: tuple[str, ...] = _setting(values.names, default=("pipeline-1", "pipeline-2"))
    """Pipelines that blocks are allocated on while there are no ``datanodes``: mere names, nothing stores bytes."""
    datanodes: tuple[DatanodeAddress, ...] = _setting(values.datanodes, default=())
    """Datanodes: where their stream servers are, and the ports of their HTTP servers.

    ``stratolog up`` makes three where none are given.
    """
    racks: tuple[tuple[str, str], ...] = _setting(values.racks, default=())
    """Racks of datanodes, as paths; the others stand in /default-rack."""
    datanode_fsync: str = _setting(values.one_of("close", "never", "packet"), default="close")
    """When a datanode fsyncs a block's file: before its bytes count as stored, never (page cache), with each packet."""
    datanode_reserve_bytes: int = _setting(values.integer(0, 2**60), default=1024 * MIB)
    """Free space that a datanode leaves alone; below it, it takes no blocks."""
    container_bytes: int = _setting(values.integer(MIB, 2**50), default=5 * 1024 * MIB)
    """Size at which a container is closed."""
    block_bytes: int = _setting(values.integer(64 * 1024, 2**40), default=256 * MIB)
    """Size of an allocated block."""
    inline_bytes: int | None = _setting(values.integer(0, MAX_INLINE_BYTES), default=None)
    """Most bytes of a key whose bytes are kept in the nodes' tables instead of on datanodes; 0 = none are.

    For nodes and clients. Unset: 16 KiB.
    """
    datanode_timeout_ms: int = _setting(values.integer(1_000, 86_400_000), default=15_000)
    """How long a datanode may be silent before it counts as dead and its containers are copied."""
    open_key_expire_threshold_ms: int = _setting(values.integer(1_000, 3650 * DAY_MS), default=7 * DAY_MS)
    """How long a key may stay open after it was created or was last given a block or committed.

    After that its session ends, and its blocks are deleted.
    """
    commit_way: int = _setting(values.integer(0, 3), default=1)
    """How clients commit blocks: 1 to the leader after the stream, 2 with the stream's end, 3 by an early close.

    0 sends chunks through the log.
    """
    flush_bytes: int = _setting(values.integer(64 * 1024, 2**40), default=64 * MIB)
    """A client commits what it has written each time it has written so many bytes."""
    client_buffer_bytes: int = _setting(values.integer(64 * 1024, 2**40), default=256 * MIB)
    """Bytes that a client keeps until every replica has them; at the limit, writing waits."""
    packet_bytes: int = _setting(values.integer(4 * 1024, 4 * MIB), default=64 * 1024)
    """Size of a stream's packets."""
    topology: str = _setting(values.one_of("star", "chain", "tree"), default="chain")
    """How a stream is forwarded among the datanodes of its pipeline."""
    client_rack: str = _setting(values.rack, default=DEFAULT_RACK)
    """Rack of a client, which tries the nearest datanode first."""
    caller: str = _setting(values.user, default_factory=user_name)
    """Who asks: the owner of what is created without one. The process's user, by number if the system knows no name."""
    session_timeout_ms: int = _setting(values.integer(500, 300_000), default=2_000)
    """How long a silent leader keeps its shards."""
    max_queued_requests: int = _setting(values.integer(100, 100_000_000), default=50_000)
    """Requests that may wait for a shard's leader; it refuses more with OVERLOADED, and clients try again later."""
    watchdog_ms: int = _setting(values.integer(500, 300_000), default=10_000)
    """How long a node's leader or event loop may stand still before the node gives up all leadership."""
    barrier_interval_ms: int = _setting(values.integer(10, 3_600_000), default=1_000)
    """Interval at which replicas publish digests while there are writes."""
    scrub_interval_ms: int = _setting(values.integer(0, 30 * 86_400_000), default=600_000)
    """Interval at which nodes check their digests by a full scan; 0 = only at start."""
    scrub_within_ms: int = _setting(values.integer(0, 30 * 86_400_000), default=300_000)
    """Within how long a rolling scrub finds a row that changed on its disk; 0 = only scans at the interval."""
    datanode_scrub_interval_ms: int = _setting(values.integer(0, 30 * 86_400_000), default=43_200_000)
    """Interval at which a pipeline's datanodes read all its blocks at one point of its log, and report them to the
    audit; 0 = only when a leadership begins.
    """
    late_flush_interval_ms: int = _setting(values.integer(0, 3_600_000), default=10)
    """How long late validation gathers rows in a replica's table cache before it writes them; 0 = at once."""
    bootstrap_records: int | None = _setting(values.integer(1, 2**53), default=None)
    """How long a log must be before an empty replica takes a peer's checkpoint instead of reading the log.

    Unset: 100,000 records.
    """
    bootstrap_bytes_per_s: int | None = _setting(values.integer(MIB, 2**40), default=None)
    """How many bytes of checkpoints a node sends to its peers in a second at most. Unset: no bound."""
    bootstrap_peers: tuple[str, ...] = _setting(values.peers, default=())
    """Nodes to take checkpoints from, as ``name=host:port``. Unset: all other ``nodes``."""
    trim_log_after_ms: int | None = _setting(values.integer(0, 3650 * DAY_MS), default=None)
    """For how long leaders keep the records of om.log before they trim them; 0 = until an operator trims.

    Unset: 0.
    """
    request_timeout_ms: int = _setting(values.integer(1, 280_000), default=60_000)
    """How long a client tries one request; below the 5 minutes after which it would expire."""
    max_in_flight: int = _setting(values.integer(1, 100_000), default=4_000)
    """Requests that a client has on the way at most."""
    secure: bool | None = _setting(values.boolean, default=None)
    """Whether the local stack's brokers know who asks: TLS, passwords, certificates, ACLs. Unset: they do not."""
    audit: bool = _setting(values.boolean, default=True)
    """Whether the local stack runs the Spark audit."""
    audit_heap_mib: int | None = _setting(values.integer(512, 65_536), default=None)
    """Most MiB of the Java heap of the local stack's audit, and of ``audit --once``; unset = 1,024."""
    ui: bool | None = _setting(values.boolean, default=None)
    """Whether the local stack runs the dashboard. Unset: it does."""
    log_level: str = _setting(values.one_of("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO")
    """The lowest level that the nodes log."""
    log_format: str = _setting(values.one_of("auto", "json", "plain"), default="auto")
    """How the nodes log: JSON lines or plain text; ``auto`` is plain on a terminal and JSON elsewhere."""
    cluster_secret_file: Path | None = _setting(values.path, default=None)
    """File with the cluster's secret, which members and operators prove to have.

    Unset, it is ``cluster-secret`` in ``data_dir``.
    """
    tls_ca_file: Path | None = _setting(values.path, default=None)
    """PEM file with the certificates of the authorities that nodes, datanodes and commands trust.

    Set, they speak TLS with each other, and in clear with nobody. Unset: all of them speak in clear.
    """
    tls_certificate_file: Path | None = _setting(values.path, default=None)
    """PEM file with this process's certificate, by which it proves who it is, and its key.

    Nodes and datanodes need one. Renewed files are read for the next connection.
    """
    tls_key_file: Path | None = _setting(values.path, default=None)
    """PEM file with the certificate's key, if that is not in ``tls_certificate_file``."""
    key_encryption_file: Path | None = _setting(values.path, default=None)
    """File with the key under which private keys and secrets are encrypted in their files.

    Keep it where copies of the data directory do not go. Unset: they are in clear. ``stratolog up --secure`` makes one.
    """
    auth: str | None = _setting(values.one_of("none", "signed"), default=None)
    """Whom nodes believe. ``none``: anybody may do everything, under any name. ``signed``: users sign what they ask.

    All nodes of a cluster need the same. Unset: ``none``.
    """
    auth_none_anywhere: bool | None = _setting(values.boolean, default=None)
    """Whether nodes run with ``auth = none`` also where other machines reach them. Unset: they do not start there."""
    block_tokens: bool | None = _setting(values.boolean, default=None)
    """Whether nodes give, and datanodes demand, a token for each block that a client writes or reads; TLS is needed.

    Unset: they do in a secure local stack, and where TLS is spoken and ``auth`` is ``signed``.
    """
    credentials_file: Path | None = _setting(values.path, default=None)
    """File with a user's credentials, which the command signs with.

    Unset, with ``auth = signed``: whoever can read the cluster's secret is the user ``operator``.
    """
    http_hosts: tuple[str, ...] = _setting(values.hosts, default=())
    """Names by which nodes' HTTP servers are asked, beside addresses, localhost and nodes' own hosts; ``*`` = any."""
    write_audit: bool = _setting(values.boolean, default=False)
    """Whether leaders write a line for each request: who, what, result (``nodes/NAME/write-audit.log``)."""
    trace_endpoint: str | None = _setting(values.web_address, default=None)
    """Where spans are sent: a collector that takes OTLP over HTTP, as in ``http://127.0.0.1:4318``. Unset: nowhere."""
    trace_one_in: int | None = _setting(values.integer(1, 1_000_000), default=None)
    """One in how many calls, and keys that are written, the command traces. Unset: 1, each one."""

    explicit: frozenset[str] = field(default=frozenset(), compare=False)
    """Names of the settings that the file or the environment gave; the others are defaults."""

    @property
    def connection(self) -> KafkaConnection:
        """How this process reaches the brokers; raises UsageError for settings or files that cannot be used."""
        try:
            found = connection(self.node_bootstrap_servers or self.bootstrap_servers, dict(self.kafka))
            found.check_files()
        except BadKafkaSetting as error:
            raise UsageError(f"setting {error}") from error
        return found

    @property
    def secret_file(self) -> Path:
        """Where the cluster's secret is."""
        return self.cluster_secret_file or self.data_dir / SECRET_FILE

    def secret(self) -> ClusterSecret:
        """Return the cluster's secret; raises UsageError, with the remedy, if there is none."""
        from stratolog.configuration.cluster_secret import read_secret

        return read_secret(self.secret_file, self.key_encryption_file)

    def keys(self) -> KeyEncryption | None:
        """Return the key-encryption key, None if secrets are in clear."""
        from stratolog.security.key_encryption import KeyEncryption

        return None if self.key_encryption_file is None else KeyEncryption(self.key_encryption_file)

    def tls_files(self) -> TlsFiles | None:
        """Return the files of this process's TLS, None if it speaks in clear; raises UsageError."""
        from stratolog.configuration.tls import tls_files_of

        return tls_files_of(
            self.tls_ca_file, self.tls_certificate_file, self.tls_key_file, self.key_encryption_file
        )  # fmt: skip

    def tls(self) -> ProcessTls | None:
        """Return how this process speaks TLS, None if it speaks in clear; raises UsageError for unusable files."""
        from stratolog.configuration.tls import process_tls

        return process_tls(self.tls_files())

    def credentials(self) -> Credentials | None:
        """Return what the command signs with, None for nothing; raises UsageError if the file cannot be used."""
        from stratolog.configuration.credentials import read_credentials

        if self.credentials_file is not None:
            return read_credentials(self.credentials_file, self.key_encryption_file)
        if self.auth != "signed":
            return None
        from schemas.access.credentials import operator_credentials

        return operator_credentials(self.secret())

    def own_hosts(self) -> frozenset[str]:
        """Return the names by which the HTTP servers of nodes and datanodes may be asked."""
        own = [node.host for node in self.nodes] + [node.host for node in self.datanodes]
        return frozenset((*self.http_hosts, *map(str.lower, own)))

    def node(self, name: str) -> NodeAddress:
        """Return a node's address; raises UsageError for a name that is not in ``nodes``."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise UsageError(f"no node {name!r} in the setting 'nodes'; there is: {known}")

    def node_folder(self, name: str) -> Path:
        """Return where the node ``name`` keeps its databases; raises UsageError for an unknown name."""
        return self.data_dir / "nodes" / self.node(name).name

    def datanode(self, name: str) -> DatanodeAddress:
        """Return a datanode's addresses; raises UsageError for a name that is not in ``datanodes``."""
        for node in self.datanodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.datanodes) or "none"
        raise UsageError(f"no datanode {name!r} in the setting 'datanodes'; there is: {known}")

    def rack_of(self, datanode: str) -> str:
        """Return the rack that a datanode stands in."""
        return dict(self.racks).get(datanode, DEFAULT_RACK)

    def with_values(self, **changes: Any) -> Settings:
        """Return these settings with some replaced, as a command line option does; None leaves one as it is."""
        given = {name: value for name, value in changes.items() if value is not None}
        checked = {name: read_setting(name, value, "the command line") for name, value in given.items()}
        return replace(self, **checked, explicit=self.explicit | set(given))

    def to_toml(self) -> str:
        """Return all settings as a file that :func:`loading.load_settings` reads back."""
        # Unset settings are left out: older software, to which a user may go back, refuses names that it does not know.
        found = {name: getattr(self, name) for name in NAMES if name not in TABLES}
        plain = {name: value for name, value in found.items() if value not in (None, ())}
        lines = [f"{name} = {_toml(value)}" for name, value in plain.items()]
        lines += ["", "[nodes]", *(f"{_toml(node.name)} = {_toml(node.address)}" for node in self.nodes)]
        lines += ["", "[datanodes]"]
        lines += [f"{_toml(node.name)} = {_toml(f'{node.address}:{node.http_port}')}" for node in self.datanodes]
        lines += ["", "[racks]", *(f"{_toml(node)} = {_toml(where)}" for node, where in self.racks)]
        if self.kafka:
            lines += ["", "[kafka]", *(f"{name} = {_toml(value)}" for name, value in self.kafka)]
        return "\n".join(lines) + "\n"


_READERS: Mapping[str, Callable[[Any], Any]] = {f.name: f.metadata["read"] for f in fields(Settings) if f.metadata}
NAMES = tuple(_READERS)


def read_setting(given_name: str, value: Any, source: str) -> Any:
    """Read one value, or raise UsageError; ``given_name`` is the setting as written, with capitals and prefix."""
    in_environment = given_name.startswith(PREFIX)
    name = given_name.removeprefix(PREFIX).lower() if in_environment else given_name
    if in_environment and name.startswith(KAFKA_PREFIX):
        name, value = "kafka", {name.removeprefix(KAFKA_PREFIX).replace("_", "."): value}
    if name not in _READERS:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"; did you mean '{PREFIX + near[0].upper() if in_environment else near[0]}'?" if near else ""
        raise UsageError(f"unknown setting '{given_name}' in {source}{hint}")
    try:
        return _READERS[name](value)
    except ValueError as error:
        raise UsageError(f"setting '{given_name}' in {source}: {error}") from error


def _toml(value: Any) -> str:
    """Return a value in TOML; strings and arrays of strings are written as JSON writes them."""
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
