"""Configuration of the jobs: one frozen object from a JSON file; an unknown or missing name is an error.

Example::

    {"bootstrap_servers": "127.0.0.1:9092", "jars_dir": "/path/to/jars", "work_dir": "/path/to/work"}

``kafka`` holds ``kafka.*`` settings, for brokers that want TLS or a login (``schemas.kafka.connection``).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from schemas.access.credentials import Credentials, parse_credentials
from schemas.kafka.connection import Brokers, connection
from schemas.security.sealed import CREDENTIALS, OTHERS, opened
from schemas.security.tls import ProcessTls, TlsFiles
from schemas.settings.declaring import OldSettingName, renamed, setting, with_old_names
from schemas.settings.table import AuditSettings
from schemas.settings.values import MAX_PORT, integer
from schemas.topics import OM_STATS, OM_VERDICTS
from spark_streaming.records.logs import KNOWN_LOGS, AuditedLog
from spark_streaming.records.session import LOOPBACK, SparkSettings
from spark_streaming.verdicts.core.shard_state import MatchingLimits

OLD_NAMES = {
    "report_timeout_ms": "audit_report_timeout_ms",
    "scan_timeout_ms": "audit_scan_timeout_ms",
    "trigger_ms": "audit_trigger_ms",
    "records_per_trigger": "audit_records_per_trigger",
    "reports_per_trigger": "audit_reports_per_trigger",
    "nice": "audit_nice",
    "windows": "audit_windows",
    "window_seconds": "audit_window_s",
    "windows_trigger_ms": "audit_windows_trigger_ms",
}
DRIVER_MEMORY = "driver_memory"
"""The old name of ``audit_heap_mib``, with a value in Java's notation."""


@with_old_names(OLD_NAMES)
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig(AuditSettings):
    """The configuration of an audit job: where it runs and what it reads, beside its slice of the settings.

    ``jars_dir`` holds Spark's connector jars (``*.jar``), or ``jars`` names them. Checkpoint, Parquet output, temporary
    and health files lie under ``work_dir``. ``logs``: the logs to audit, in JSON a list of objects with the fields of
    AuditedLog; all but the first are audited only if their topics exist. ``require_blocks``: for the batch job, whether
    all members of a pipeline must have reported equal stored bytes. ``semantics``: for the batch job, whether it also
    checks what the rows mean together, and that answers have results. ``stats_topic``: where windows are sent.
    ``cluster``: the cluster's name, for verdicts on a log whose Genesis has been trimmed away. ``addresses``: by the
    name of a log, ``host:port`` of the HTTP servers of its nodes; where a replica is ``diverged`` they are asked which
    keys differ. ``tls_ca_file``, ``tls_certificate_file``: PEM files by which they are asked in TLS; without the first,
    in clear. ``credentials_file``: what signs these questions, for nodes that take no others; ``up`` makes it. Others
    than its owner may not read it. ``key_encryption_file``: the file with the key under which both files are encrypted.
    ``checkpoint``: where the query keeps offsets and state, if not under ``work_dir``: executors on other machines
    write there too, so it is a folder of a file system that all share, under the same path. ``driver_host``: with a
    ``master`` of another machine, the name of this one. Under ``spark-submit`` its options replace ``master``,
    ``jars``, ``jars_dir`` and ``audit_heap_mib``. ``metrics_host`` and ``metrics_port``: where the running audit serves
    its metrics; port 0 is any free one, which the health file names.
    """

    bootstrap_servers: Brokers
    work_dir: Path
    checkpoint: Path | None = None
    jars_dir: Path | None = None
    jars: tuple[Path, ...] = ()
    logs: tuple[AuditedLog, ...] = KNOWN_LOGS
    verdicts_topic: str = OM_VERDICTS
    shuffle_partitions: int = setting(integer(1, 10_000), 2)
    master: str = "local[2]"
    driver_host: str = LOOPBACK
    metrics_host: str = LOOPBACK
    metrics_port: int = setting(integer(0, MAX_PORT), 0)
    require_blocks: bool = False
    semantics: bool = False
    stats_topic: str = OM_STATS
    cluster: str = ""
    addresses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tls_ca_file: Path | None = None
    tls_certificate_file: Path | None = None
    credentials_file: Path | None = None
    key_encryption_file: Path | None = None

    def __post_init__(self) -> None:
        """Check the settings; raises ValueError naming the one that is wrong."""
        self.check_settings()

    @property
    def driver_memory(self) -> str:
        """The Java heap, in Java's notation."""
        return f"{self.audit_heap_mib}m"

    @property
    def checkpoint_dir(self) -> Path:
        """Where the audit's query keeps its offsets and state; a new layout has a new name (``verdicts.state``).

        So has another number of tasks: state of another number is not found again.
        """
        return (self.checkpoint or self.work_dir) / f"checkpoint-7-{self._tasks}"

    @property
    def window_state(self) -> Path:
        """The windows that are open; they belong to the checkpoint."""
        return self.work_dir / f"windows-8-{self._tasks}.json"

    @property
    def output_dir(self) -> Path:
        """Where Parquet goes: ``verdicts``, ``barriers``. Files are numbered by the micro-batches of the checkpoint."""
        return self.work_dir / f"output-7-{self._tasks}"

    @property
    def _tasks(self) -> str:
        return f"tasks-{self.shuffle_partitions}"

    @property
    def health_file(self) -> Path:
        """JSON file that a parent reads while it waits for the job to be ready."""
        return self.work_dir / "health.json"

    @property
    def limits(self) -> MatchingLimits:
        """Limits of a shard's audit."""
        return MatchingLimits(
            report_timeout_ms=self.audit_report_timeout_ms, scan_timeout_ms=self.audit_scan_timeout_ms
        )

    def tls(self) -> ProcessTls | None:
        """Return how nodes are asked in TLS, None if in clear; raises TlsUnusable, a ValueError, for unusable files."""
        if self.tls_ca_file is None:
            return None
        return ProcessTls(
            TlsFiles(
                ca=self.tls_ca_file, certificate=self.tls_certificate_file, key_encryption=self.key_encryption_file
            )
        )  # fmt: skip

    def credentials(self) -> Credentials | None:
        """Return what signs the questions to nodes, None for nothing; raises ValueError for an unusable file."""
        if self.credentials_file is None:
            return None
        try:
            if self.credentials_file.stat().st_mode & OTHERS:
                raise ValueError("others than its owner may read it: chmod 600 it")
            content = self.credentials_file.read_bytes()
            return parse_credentials(opened(content, self.key_encryption_file, CREDENTIALS).decode())
        except (OSError, ValueError) as error:
            raise ValueError(f"credentials_file: {self.credentials_file}: {error}") from error

    def spark(self, *, submitted: bool = False) -> SparkSettings:
        """Return the session's settings; raises ValueError if no jar is named, but by spark-submit."""
        jars = self.jars or tuple(sorted(self.jars_dir.glob("*.jar")) if self.jars_dir else ())
        if submitted:
            jars = ()
        elif not jars:
            raise ValueError(f"no Spark jars: neither 'jars' nor a *.jar in 'jars_dir' ({self.jars_dir})")
        return SparkSettings(
            jars=jars,
            work_dir=self.work_dir / "spark",
            master=self.master,
            shuffle_partitions=self.shuffle_partitions,
            driver_memory=self.driver_memory,
            driver_host=self.driver_host,
            submitted=submitted,
        )


_MEMORY = re.compile(r"([1-9][0-9]{0,9})([kmgtKMGT])")
_MIB_OF = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
_PATHS = ("work_dir", "checkpoint", "jars_dir", "tls_ca_file", "tls_certificate_file",
          "credentials_file", "key_encryption_file")  # fmt: skip


def config_from(values: Mapping[str, Any]) -> AuditConfig:
    """Return a configuration from plain values; raises ValueError naming what is unknown, missing or wrong.

    Old names are taken, with an OldSettingName: those who write such files see it.
    """
    known = {one.name: one for one in fields(AuditConfig)}
    unknown = sorted(set(values) - {*known, *OLD_NAMES, DRIVER_MEMORY, "kafka"})
    if unknown:
        raise ValueError(f"unknown settings: {', '.join(unknown)}")
    missing = [n for n, f in known.items() if f.default is f.default_factory is MISSING and n not in values]
    if missing:
        raise ValueError(f"missing settings: {', '.join(missing)}")
    old = OLD_NAMES | {DRIVER_MEMORY: "audit_heap_mib"}
    typed = renamed(values, old, partial(warnings.warn, category=OldSettingName, stacklevel=2))
    if DRIVER_MEMORY in values:
        typed["audit_heap_mib"] = _heap_mib(values[DRIVER_MEMORY])
    typed["bootstrap_servers"] = connection(typed["bootstrap_servers"], typed.pop("kafka", None))
    for name in _PATHS:
        if typed.get(name) is not None:
            typed[name] = _path(name, typed[name])
    typed["jars"] = tuple(map(Path, typed.get("jars", ())))
    if "logs" in typed:
        typed["logs"] = tuple(map(_audited_log, typed["logs"]))
    if not typed.get("logs", KNOWN_LOGS):
        raise ValueError("logs must name at least one log")
    _check_addresses(typed.get("addresses", {}))
    return AuditConfig(**typed)


def _heap_mib(memory: Any) -> int:
    """Return a Java heap in MiB; a bare number is refused, which Java would take for bytes, and not start."""
    found = _MEMORY.fullmatch(memory) if isinstance(memory, str) else None
    if not found:
        raise ValueError(f"driver_memory must be a number with its unit, as 1g or 1536m, not {memory!r}")
    return int(int(found[1]) * _MIB_OF[found[2].lower()])


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise ValueError(f"{name} must be a path, not {value!r}")
    if "://" in str(value):
        raise ValueError(f"{name} must be a path, not the URI {value}: the audit itself reads and writes there")
    return Path(value)


def _check_addresses(values: Any) -> None:
    """Raises ValueError naming what is no map of nodes to addresses."""
    if not isinstance(values, Mapping):
        raise ValueError(f"addresses must be an object, not {values!r}")
    for log, nodes in values.items():
        if not isinstance(nodes, Mapping):
            raise ValueError(f"addresses of {log} must be an object, not {nodes!r}")
        for node, address in nodes.items():
            host, _, port = str(address).rpartition(":")
            if not (isinstance(address, str) and host and port.isdecimal()):
                raise ValueError(f"addresses: {address!r} of {node} is no host:port")


def _audited_log(values: Mapping[str, Any]) -> AuditedLog:
    try:
        return AuditedLog(**{**values, "column_families": tuple(values["column_families"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"logs: {values!r} is no log: {error}") from error


def load_config(path: Path) -> AuditConfig:
    """Read a configuration from a JSON file; raises OSError or ValueError naming the file."""
    try:
        values = json.loads(path.read_text())
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        return config_from(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
