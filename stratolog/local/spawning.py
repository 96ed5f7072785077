"""Processes of nodes, datanodes and the Spark audit: their commands, their environment, their start."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from schemas.access.credentials import auditor_credentials
from schemas.kafka.access import KafkaPrincipal
from schemas.kafka.connection import CERTIFICATE_FILE
from schemas.security.sealed import CREDENTIALS
from schemas.settings.declaring import slice_of
from schemas.settings.table import AuditSettings
from schemas.topics import DN_LOG, OM_LOG
from stratolog.brokers.admission import admit, as_variables
from stratolog.brokers.at_rest import AUDIT_CREDENTIALS
from stratolog.configuration.loading import CONFIG_VARIABLE, without_variables
from stratolog.configuration.settings import PREFIX, Settings
from stratolog.local.jars import kafka_jars, spark_jars
from stratolog.local.kafka import KafkaCluster, Listener
from stratolog.local.processes import spawn
from stratolog.local.state import AUDIT, BROKER, DATANODE, NODE, SETTINGS_FILE, UI, StackMember
from stratolog.nodes.node_http import learn
from stratolog.security.private_files import write_private


def node_command(name: str) -> list[str]:
    """Return the command of one Object Manager node's process."""
    return [sys.executable, "-m", "stratolog", "node", "run", name]


def spawn_node(
    settings: Settings, name: str, *, detached: bool, command: Sequence[str] | None = None
) -> StackMember:  # fmt: skip
    """Start the process of one node, with the settings of the stack; return the process before it serves.

    ``command`` is another one than :func:`node_command` gives.
    """
    log = settings.data_dir / "logs" / f"{name}.log"
    options = admit(learn(settings), KafkaPrincipal.OM, name, (settings.node(name).host,))
    environment = node_environment(settings.data_dir / SETTINGS_FILE, options)
    process = spawn(command or node_command(name), log=log, detached=detached, env=environment)
    return StackMember(kind=NODE, name=name, address=settings.node(name).address, log=log, process=process, extra={})


def datanode_command(name: str) -> list[str]:
    """Return the command of one datanode's process."""
    return [sys.executable, "-m", "stratolog", "datanode", "run", name]


def spawn_datanode(settings: Settings, name: str, *, detached: bool) -> StackMember:
    """Start the process of one datanode, with the settings of the stack; return the process before it serves."""
    log = settings.data_dir / "logs" / f"{name}.log"
    options = admit(learn(settings), KafkaPrincipal.DATANODE, name, (settings.datanode(name).host,))
    environment = node_environment(settings.data_dir / SETTINGS_FILE, options)
    process = spawn(datanode_command(name), log=log, detached=detached, env=environment)
    address = settings.datanode(name).address
    return StackMember(kind=DATANODE, name=name, address=address, log=log, process=process, extra={})


def spawn_ui(settings: Settings, port: int, *, detached: bool) -> StackMember:
    """Start the dashboard, with the settings of the stack; return the process before it serves."""
    log = settings.data_dir / "logs" / "ui.log"
    command = [sys.executable, "-m", "stratolog", "ui", "--of-stack", "--port", str(port)]
    process = spawn(command, log=log, detached=detached, env=node_environment(settings.data_dir / SETTINGS_FILE))
    return StackMember(kind=UI, name=UI, address=f"127.0.0.1:{port}", log=log, process=process, extra={})


def spawn_audit(settings: Settings, *, detached: bool) -> StackMember:
    """Start the process of the audit, with the settings of the stack; return the process before it has read anything.

    What a former process has said of itself is gone then.
    """
    log = settings.data_dir / "logs" / "audit.log"
    command = audit_command(settings)
    folder = audit_folder(settings)
    (folder / "health.json").unlink(missing_ok=True)
    # Spark leaves files in its working directory, so it gets another one, and PYTHONPATH to find our packages.
    paths = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
    environment = {**node_environment(settings.data_dir / SETTINGS_FILE), "PYTHONPATH": paths}
    process = spawn(command, log=log, detached=detached, env=environment, cwd=folder)
    return StackMember(kind=AUDIT, name=AUDIT, address="", log=log, process=process, extra={})


def spawn_broker(settings: Settings, old: StackMember, *, detached: bool) -> StackMember:
    """Start a broker of the stack again that has run before, with the properties that it had, and so the ports."""
    cluster = KafkaCluster(
        folder=settings.data_dir / "kafka", jars=kafka_jars(settings.cache_dir),
        listeners=(Listener(broker=0, controller=0),) * settings.brokers, heap_mib=settings.broker_heap_mib,
    )  # fmt: skip
    return replace(old, process=cluster.start_broker(int(old.name.rpartition("-")[2]), detached=detached))


def spawn_again(settings: Settings, old: StackMember, *, detached: bool) -> StackMember:
    """Start a process of the stack again that has run before, where it was; return it before it serves.

    Raises UserError for one that the settings do not name any more; Unavailable.
    """
    match old.kind:
        case kind if kind == BROKER:
            started = spawn_broker(settings, old, detached=detached)
        case kind if kind == NODE:
            started = spawn_node(settings, old.name, detached=detached)
        case kind if kind == DATANODE:
            started = spawn_datanode(settings, old.name, detached=detached)
        case kind if kind == AUDIT:
            started = spawn_audit(settings, detached=detached)
        case _:
            started = spawn_ui(settings, int(old.address.rpartition(":")[2]), detached=detached)
    return replace(started, extra=old.stopped(on_purpose=False).extra)


def spawn_supervisor(settings: Settings) -> None:
    """Start the stack's supervisor; one that is not needed ends by itself."""
    command = [sys.executable, "-m", SUPERVISOR_MODULE, str(settings.data_dir)]
    paths = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
    environment = {**node_environment(settings.data_dir / SETTINGS_FILE), "PYTHONPATH": paths}
    spawn(command, log=settings.data_dir / "logs" / "supervisor.log", detached=True, env=environment)


def node_environment(settings_file: Path, kafka: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the environment of a process that takes its settings from ``settings_file``, and ``kafka.*`` from here.

    The certificate by which a process reaches the brokers is the one by which it proves itself to all others.
    """
    own = kafka or {}
    found = {**without_variables(os.environ), CONFIG_VARIABLE: str(settings_file), **as_variables(own)}
    if CERTIFICATE_FILE in own:
        found[f"{PREFIX}TLS_CERTIFICATE_FILE"] = own[CERTIFICATE_FILE]
    return found


def audit_folder(settings: Settings) -> Path:
    """Return where the Spark audit of the local stack keeps its checkpoint, output and health."""
    return settings.data_dir / "audit"


ONE_TASK_SHARDS = 2
"""Up to so many shards the running audit's operator is one task."""

AUDIT_TASKS = 2
"""Its tasks for more shards."""


def audit_tasks(shards: int) -> int:
    """Return the number of tasks of the running audit's operator: another task costs more than two small shards do."""
    return 1 if shards <= ONE_TASK_SHARDS else AUDIT_TASKS


def audit_command(settings: Settings) -> list[str]:
    """Write the Spark audit's configuration, and return its process's command.

    The configuration is that of ``spark_streaming.configuration.audit_config``.
    """
    folder = audit_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    options = admit(settings, KafkaPrincipal.AUDIT)
    config = {
        "bootstrap_servers": settings.connection.servers,
        "kafka": dict(options),
        **_audit_tls(settings, options),
        **_audit_credentials(settings),
        "work_dir": str(folder),
        "jars": [str(jar) for jar in spark_jars(settings.cache_dir)],
        "cluster": settings.cluster,
        "shuffle_partitions": audit_tasks(settings.shards),
        **slice_of(AuditSettings, settings),
        "addresses": {
            OM_LOG: {node.name: node.address for node in settings.nodes},
            DN_LOG: {datanode.name: datanode.http_address for datanode in settings.datanodes},
        },
    }
    path = folder / "audit.json"
    path.write_text(json.dumps(config, indent=2) + "\n")
    return [sys.executable, "-m", "spark_streaming.jobs.audit_stream", "--config", str(path)]


def _audit_tls(settings: Settings, options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the files by which the audit asks nodes which keys differ."""
    if settings.tls_ca_file is None:
        return {}
    return {"tls_ca_file": str(settings.tls_ca_file), "tls_certificate_file": options[CERTIFICATE_FILE]}


def _audit_credentials(settings: Settings) -> Mapping[str, str]:
    """Write what the audit signs its questions with; return the files' names. Only nodes that want it get it."""
    key_file = settings.key_encryption_file
    found = {} if key_file is None else {"key_encryption_file": str(key_file)}
    path = settings.data_dir / AUDIT_CREDENTIALS
    if settings.auth != "signed":
        path.unlink(missing_ok=True)
        return found
    content, keys = auditor_credentials(settings.secret()).text().encode(), settings.keys()
    write_private(path, content if keys is None else keys.seal(CREDENTIALS, content))
    return found | {"credentials_file": str(path)}


def audit_health(settings: Settings) -> dict[str, object]:
    """Return what the running audit says of itself (``spark_streaming.jobs.health``); empty if nothing yet."""
    try:
        found = json.loads((audit_folder(settings) / "health.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


SUPERVISOR_MODULE = "stratolog.supervision.supervisor"
SOURCES = Path(__file__).resolve().parents[2]
"""Where our packages are."""
