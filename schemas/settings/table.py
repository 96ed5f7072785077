"""The settings: each is declared here, once.

Groups stand in the order in which the reference lists them. The configuration of a process inherits the groups that say
what the process does. The others say where things are and who is who, and ``stratolog.configuration.node_configs``
makes of them what a configuration says of that. Times are milliseconds unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from schemas.settings import values
from schemas.settings.declaring import Audience, SettingsGroup, setting
from schemas.settings.values import DEFAULT_RACK, DatanodeAddress, NodeAddress
from schemas.sharding import MAX_SHARDS
from schemas.small_objects import DEFAULT_INLINE_BYTES, MAX_INLINE_BYTES

MIB = 1024 * 1024
DAY_MS = 86_400_000
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS = ("auto", "json", "plain")
AUTH_NONE, AUTH_SIGNED = "none", "signed"
FSYNC_CLOSE, FSYNC_NEVER, FSYNC_PACKET = "close", "never", "packet"
DEFAULT_NODES = tuple(NodeAddress(name=f"om{n}", host="127.0.0.1", port=9870 + n) for n in (1, 2, 3))
Shape = Literal["star", "chain", "tree"]
SHAPES: tuple[Shape, ...] = ("star", "chain", "tree")

EVERY_PROCESS = (
    Audience.NODE, Audience.DATANODE, Audience.AUDIT, Audience.COMMAND, Audience.DASHBOARD, Audience.STACK,
)  # fmt: skip

OLD_NAMES = {"watchdog_ms": "leader_watchdog_ms"}
"""Names that settings had in files and variables until this release."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PlaceSettings(SettingsGroup, for_whom=EVERY_PROCESS):
    """Where the cluster is, and how its processes know each other."""

    bootstrap_servers: str = setting(values.addresses, "127.0.0.1:9092")
    """Kafka's ``bootstrap.servers``: ``host:port``, separated by commas."""
    node_bootstrap_servers: str | None = setting(values.addresses, None, is_new=True)
    """Where nodes, datanodes, the audit and operators' commands reach the brokers, if elsewhere than users do.

    Brokers that know users by passwords and nodes by certificates have two listeners. Unset: ``bootstrap_servers``.
    """
    kafka: tuple[tuple[str, str], ...] = setting(values.kafka, (), is_new=True)
    """How brokers are reached that want TLS or a login: a table of ``kafka.*`` settings (below)."""
    cluster: str = setting(values.name, "stratolog")
    """Name of the cluster, recorded in the log."""
    nodes: tuple[NodeAddress, ...] = setting(values.nodes, DEFAULT_NODES)
    """Object Manager nodes and where their HTTP servers are."""
    datanodes: tuple[DatanodeAddress, ...] = setting(values.datanodes, ())
    """Datanodes: where their stream servers are, and the ports of their HTTP servers.

    ``stratolog up`` makes three where none are given.
    """
    data_dir: Path = setting(values.path, Path(".stratolog"))
    """Where the local stack and the nodes keep their data.

    Unset, it is the ``.stratolog`` of the working directory, or the nearest one above it that has a stack.
    """
    cluster_secret_file: Path | None = setting(values.path, None, is_new=True)
    """File with the cluster's secret, which members and operators prove to have.

    Unset, it is ``cluster-secret`` in ``data_dir``.
    """
    tls_ca_file: Path | None = setting(values.path, None, is_new=True)
    """PEM file with the certificates of the authorities that nodes, datanodes and commands trust.

    Set, they speak TLS with each other, and in clear with nobody. Unset: all of them speak in clear.
    """
    tls_certificate_file: Path | None = setting(values.path, None, is_new=True)
    """PEM file with this process's certificate, by which it proves who it is, and its key.

    Nodes and datanodes need one. Renewed files are read for the next connection.
    """
    tls_key_file: Path | None = setting(values.path, None, is_new=True)
    """PEM file with the certificate's key, if that is not in ``tls_certificate_file``."""
    key_encryption_file: Path | None = setting(values.path, None, is_new=True)
    """File with the key under which private keys and secrets are encrypted in their files.

    Keep it where copies of the data directory do not go. Unset: they are in clear. ``stratolog up --secure`` makes one.
    """


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StackSettings(SettingsGroup, for_whom=(Audience.COMMAND, Audience.STACK)):
    """What the local stack, and the topics of a cluster, are made of."""

    brokers: int = setting(values.one_of_integers(1, 3), 1)
    """Kafka brokers of the local stack; three means replication factor 3 and min.insync 2."""
    broker_heap_mib: int | None = setting(values.integer(128, 65_536), None, is_new=True)
    """Most MiB of the Java heap of each broker of the local stack; unset = 512 for one, 400 for each of three."""
    durability: str = setting(values.one_of("replicated", "fsync"), "replicated")
    """Where an acknowledged log record is: in the page caches of min.insync brokers (replicated), or on their disks."""
    response_partitions: int = setting(values.integer(1, 1024), 4)
    """Partitions of the responses' topic."""
    cache_dir: Path = setting(values.path, Path("~/.cache/stratolog"))
    """Where fetched jars are kept."""
    secure: bool | None = setting(values.boolean, None, is_new=True)
    """Whether the local stack's brokers know who asks: TLS, passwords, certificates, ACLs. Unset: they do not."""
    audit: bool = setting(values.boolean, True)
    """Whether the local stack runs the Spark audit."""
    ui: bool = setting(values.boolean, True, is_new=True)
    """Whether the local stack runs the dashboard."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ServerSettings(SettingsGroup, for_whom=(Audience.NODE, Audience.DATANODE)):
    """Whom the servers of members answer."""

    http_hosts: tuple[str, ...] = setting(values.hosts, (), is_new=True)
    """Names by which nodes' HTTP servers are asked, beside addresses, localhost and nodes' own hosts; ``*`` = any.

    A call may be signed for them, and for addresses named here, at the server's own port.
    """
    block_tokens: bool | None = setting(values.boolean, None, is_new=True)
    """Whether nodes give, and datanodes demand, a token for each block that a client writes or reads; TLS is needed.

    Unset: they do in a secure local stack, and where TLS is spoken and ``auth`` is ``signed``.
    """


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class NodePlaceSettings(SettingsGroup, for_whom=(Audience.NODE,)):
    """How a node knows the other nodes, and strangers."""

    bootstrap_peers: tuple[str, ...] = setting(values.peers, (), is_new=True)
    """Nodes to take checkpoints from, as ``name=host:port``. Unset: all other ``nodes``."""
    auth_none_anywhere: bool = setting(values.boolean, False, is_new=True)
    """Whether nodes run with ``auth = none`` also where other machines reach them; else they do not start there."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ClusterSettings(SettingsGroup, for_whom=(Audience.NODE, Audience.COMMAND, Audience.STACK)):
    """What nodes and commands must know alike."""

    shards: int = setting(values.integer(1, MAX_SHARDS), 2)
    """Partitions of the request and log topics; fixed when the cluster is created."""
    auth: str = setting(values.one_of(AUTH_NONE, AUTH_SIGNED), AUTH_NONE, is_new=True)
    """Whom nodes believe. ``none``: anybody may do everything, under any name. ``signed``: users sign what they ask.

    All nodes of a cluster need the same.
    """


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class NodeSettings(SettingsGroup, for_whom=(Audience.NODE,)):
    """What an Object Manager node does alone."""

    pipelines: tuple[str, ...] = setting(values.pipelines, ("pipeline-1", "pipeline-2"))
    """Pipelines that blocks are allocated on while there are no ``datanodes``: mere names, nothing stores bytes."""
    datanode_timeout_ms: int = setting(values.integer(1_000, DAY_MS), 15_000)
    """How long a datanode may be silent before it counts as dead and its containers are copied."""
    open_key_expire_threshold_ms: int = setting(values.integer(1_000, 3650 * DAY_MS), 7 * DAY_MS)
    """How long a key may stay open after it was created or was last given a block or committed.

    After that its session ends, and its blocks are deleted.
    """
    deleted_block_grace_ms: int = setting(values.integer(0, DAY_MS // 2), 60_000, is_new=True)
    """How long the blocks of a replaced or deleted key, or of a deleted snapshot, can still be read.

    0 = their deletion begins at once.
    """
    session_timeout_ms: int = setting(values.integer(500, 300_000), 2_000)
    """How long a silent leader keeps its shards."""
    max_queued_requests: int = setting(values.integer(100, 100_000_000), 50_000)
    """Requests that may wait for a shard's leader; it refuses more with OVERLOADED, and clients try again later."""
    leader_watchdog_ms: int = setting(values.integer(500, 300_000), 10_000, is_new=True)
    """How long a node's leader or event loop may stand still before the node gives up all leadership."""
    scrub_interval_ms: int = setting(values.integer(0, 30 * DAY_MS), 600_000)
    """Interval at which nodes check their digests by a full scan; 0 = only at start."""
    late_flush_interval_ms: int = setting(values.integer(0, 3_600_000), 10)
    """How long late validation gathers rows in a replica's table cache before it writes them; 0 = at once."""
    write_audit: bool = setting(values.boolean, False)
    """Whether leaders write a line for each request: who, what, result (``nodes/NAME/write-audit.log``)."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReplicaSettings(SettingsGroup, for_whom=(Audience.NODE, Audience.DATANODE)):
    """What every replica of a log does, a shard's or a pipeline's."""

    barrier_interval_ms: int = setting(values.integer(10, 3_600_000), 1_000, in_programs=values.integer(0, 3_600_000))
    """Interval at which replicas publish digests while there are writes."""
    scrub_within_ms: int = setting(values.integer(0, 30 * DAY_MS), 300_000)
    """Within how long a rolling scrub finds a row that changed on its disk; 0 = only scans at the interval."""
    bootstrap_records: int = setting(values.integer(1, 2**53), 100_000, is_new=True)
    """How long a log must be before an empty replica takes a peer's checkpoint instead of reading the log."""
    bootstrap_bytes_per_s: int = setting(values.integer(MIB, 2**40, or_zero=True), 0, is_new=True)
    """How many bytes of checkpoints a process sends to its peers in a second at most; 0 = no bound."""
    trim_log_after_ms: int = setting(values.integer(0, 3650 * DAY_MS), 0, is_new=True)
    """For how long leaders keep the records of their logs before they trim them; 0 = until an operator trims."""
    container_bytes: int = setting(values.integer(MIB, 2**50), 5 * 1024 * MIB, in_programs=values.integer(1, 2**50))
    """Size at which a container is closed."""
    log_level: str = setting(values.one_of(*LOG_LEVELS), "INFO")
    """The lowest level that the nodes log."""
    log_format: str = setting(values.one_of(*LOG_FORMATS), "auto")
    """How the nodes log: JSON lines or plain text; ``auto`` is plain on a terminal and JSON elsewhere."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DatanodePlaceSettings(SettingsGroup, for_whom=(Audience.DATANODE,)):
    """Where datanodes stand."""

    racks: tuple[tuple[str, str], ...] = setting(values.racks, ())
    """Racks of datanodes, as paths; the others stand in /default-rack."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DatanodeSettings(SettingsGroup, for_whom=(Audience.DATANODE,)):
    """What a datanode does alone."""

    datanode_fsync: str = setting(values.one_of(FSYNC_CLOSE, FSYNC_NEVER, FSYNC_PACKET), FSYNC_CLOSE)
    """When a datanode fsyncs a block's file: before its bytes count as stored, never (page cache), with each packet."""
    datanode_reserve_bytes: int = setting(values.integer(0, 2**60), 1024 * MIB)
    """Free space that a datanode leaves alone; below it, it takes no blocks."""
    datanode_scrub_interval_ms: int = setting(values.integer(0, 30 * DAY_MS), 43_200_000)
    """Interval at which a pipeline's datanodes read all its blocks at one point of its log, and report them to the
    audit; 0 = only when a leadership begins.
    """
    block_scrub_interval_ms: int = setting(values.integer(0, 30 * DAY_MS), DAY_MS, is_new=True)
    """How often a datanode reads each of its block files again and compares it with its checksums; 0 = never."""
    pipeline_watchdog_ms: int = setting(values.integer(200, 300_000), 3_000, is_new=True)
    """How long a pipeline's log may be silent before the member next in the list claims its leadership.

    All datanodes of a cluster need the same: a leader shows in each quarter of its own that it is there.
    """
    datanode_heartbeat_interval_ms: int = setting(
        values.integer(100, 60_000), 1_000, in_programs=values.integer(1, 60_000), is_new=True
    )  # fmt: skip
    """How often a datanode sends a heartbeat; a change is sent at once. No more than ``datanode_timeout_ms``."""
    datanode_max_streams: int = setting(values.integer(1, 1024), 256, is_new=True)
    """Streams of blocks that a datanode takes at once; one more is refused with OVERLOADED."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class BlockSettings(SettingsGroup, for_whom=(Audience.NODE, Audience.COMMAND, Audience.CLIENT)):
    """Where bytes of keys go: for nodes, and for those who write."""

    block_bytes: int = setting(values.integer(64 * 1024, 2**40), 256 * MIB)
    """Size of an allocated block."""
    inline_bytes: int = setting(values.integer(0, MAX_INLINE_BYTES), DEFAULT_INLINE_BYTES, is_new=True)
    """Most bytes of a key whose bytes are kept in the nodes' tables instead of on datanodes; 0 = none are."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StreamSettings(SettingsGroup, for_whom=(Audience.COMMAND, Audience.CLIENT)):
    """How bytes are written. Programs give them as ``StreamOptions``, whose defaults these are."""

    commit_way: int = setting(values.integer(0, 3), 1)
    """How clients commit blocks: 1 to the leader after the stream, 2 with the stream's end, 3 by an early close.

    0 sends chunks through the log.
    """
    flush_bytes: int = setting(values.integer(64 * 1024, 2**40), 64 * MIB)
    """A client commits what it has written each time it has written so many bytes."""
    client_buffer_bytes: int = setting(values.integer(64 * 1024, 2**40), 256 * MIB)
    """Bytes that a client keeps until every replica has them; at the limit, writing waits."""
    packet_bytes: int = setting(values.integer(4 * 1024, 4 * MIB), 64 * 1024)
    """Size of a stream's packets."""
    topology: Shape = setting(values.one_of(*SHAPES), "chain")
    """How a stream is forwarded among the datanodes of its pipeline."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CommandSettings(SettingsGroup, for_whom=(Audience.COMMAND,)):
    """Who asks, and for how long. Programs give ``Client`` arguments; its deadline has this default."""

    client_rack: str = setting(values.rack, DEFAULT_RACK)
    """Rack of a client, which tries the nearest datanode first."""
    caller: str = setting(values.user, "")
    """Who asks: the owner of what is created without one. The process's user, by number if the system knows no name."""
    request_timeout_ms: int = setting(values.integer(1, 280_000), 60_000)
    """How long a client tries one request; below the 5 minutes after which it would expire."""
    max_in_flight: int = setting(values.integer(1, 100_000), 4_000)
    """Requests that a command has on the way at most."""
    credentials_file: Path | None = setting(values.path, None, is_new=True)
    """File with a user's credentials, which the command signs with.

    Unset, with ``auth = signed``: whoever can read the cluster's secret is the user ``operator``.
    """
    trace_one_in: int = setting(values.integer(1, 1_000_000), 1, is_new=True)
    """One in how many calls, and keys that are written, the command traces; 1 = each one."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TraceSettings(SettingsGroup, for_whom=(Audience.NODE, Audience.COMMAND)):
    """Where spans go."""

    trace_endpoint: str | None = setting(values.web_address, None, is_new=True)
    """Where spans are sent: a collector that takes OTLP over HTTP, as in ``http://127.0.0.1:4318``. Unset: nowhere."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AuditSettings(SettingsGroup, for_whom=(Audience.AUDIT,)):
    """What the running audit does, and ``audit --once``."""

    audit_report_timeout_ms: int = setting(values.integer(1, DAY_MS), 10_000, is_new=True)
    """How long a barrier waits for a replica's report until the verdict is ``unknown``."""
    audit_scan_timeout_ms: int = setting(values.integer(1, 30 * DAY_MS), 600_000, is_new=True)
    """How long a scan of stored bytes waits for the other members."""
    audit_trigger_ms: int = setting(values.integer(1, DAY_MS), 2_500, is_new=True)
    """Pause between the audit's micro-batches."""
    audit_records_per_trigger: int = setting(values.integer(1, 10_000_000), 2_500, is_new=True)
    """Most log records in a micro-batch, of all shards and logs together: bounds the memory of a shard's operator."""
    audit_reports_per_trigger: int = setting(values.integer(1, 10_000_000), 10_000, is_new=True)
    """Most reports in a micro-batch, of all shards together; four times as many as log records at least.

    A barrier has a report of each member, and a batch at least beside it: two records, and seven reports at most. On a
    backlog the log must not run ahead of its reports, because few barriers are kept. Reports that are ahead are held
    back.
    """
    audit_heap_mib: int = setting(values.integer(512, 65_536), 1_024, is_new=True)
    """Most MiB of the Java heap of the local stack's audit, and of ``audit --once``."""
    audit_nice: int = setting(values.integer(0, 19), 10, is_new=True)
    """Niceness of the running audit's processes. Where processors are short, requests go first."""
    audit_windows: bool = setting(values.boolean, True, is_new=True)
    """Whether the running audit also counts windows of throughput, latency and lag."""
    audit_window_s: int = setting(values.integer(1, 86_400), 10, is_new=True)
    """Length of such a window, in seconds."""
    audit_windows_trigger_ms: int = setting(values.integer(1, DAY_MS), 10_000, is_new=True)
    """How often windows are sent."""


class AllSettings(
    PlaceSettings, StackSettings, ServerSettings, NodePlaceSettings, ClusterSettings, NodeSettings, ReplicaSettings,
    DatanodePlaceSettings, DatanodeSettings, BlockSettings, StreamSettings, CommandSettings, TraceSettings,
    AuditSettings,
):  # fmt: skip
    """The whole table (``stratolog.configuration.settings.Settings``)."""


GROUPS: tuple[type[SettingsGroup], ...] = AllSettings.__bases__
