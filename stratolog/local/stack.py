"""``up`` and ``down``: brokers, topics, Object Manager nodes, datanodes and the Spark audit, in that order and back.

Starting is idempotent: what runs stays, what is missing is started. A stack's data outlives it in its data directory::

    stack.json, stack.toml, stack.lock   what runs, with which settings (stratolog.local.state)
    cluster-secret                       what members and operators prove to have (stratolog.configuration.cluster_secret)
    kafka/broker-N/                      data and log of a broker
    nodes/NAME/, logs/NAME.log           databases and log of a node
    datanodes/NAME/, logs/NAME.log       blocks, databases and log of a datanode
    audit/, logs/audit.log               checkpoint, verdicts and log of the audit
    drills/, drill.lock                  what drills have left to look at (stratolog.drills)

Ports are those of the settings where nobody listens on them, else free ones; the choice is in ``stack.toml``. If a start
fails, what it started is stopped again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from stratolog.configuration.cluster_secret import make_secret
from stratolog.configuration.settings import CONFIG_VARIABLE, Settings, load_settings, without_variables
from stratolog.configuration.settings_values import DatanodeAddress, NodeAddress
from stratolog.errors import Unavailable, UsageError
from stratolog.local import state as states
from stratolog.local.contents import remove_contents, remove_if_empty, unreadable_file
from stratolog.local.jars import kafka_jars, spark_jars
from stratolog.local.kafka import KafkaCluster, Listener, check_java
from stratolog.local.orphans import find_orphans
from stratolog.local.ports import WANTED, Moved, free_datanodes, with_free_ports
from stratolog.local.processes import free_ports, log_tail, spawn, stop_all, wait_until
from stratolog.local.state import AUDIT, BROKER, DATANODE, NODE, SETTINGS_FILE, StackMember, StackState
from stratolog.local.topics import TopicPlan, ensure_topics
from stratolog.shard_views import is_agreed, view_in

Report = Callable[[str], None]
"""Told in words what is going on."""

NODES_TIMEOUT_S = 120.0
AUDIT_TIMEOUT_S = 180.0
DATANODES_TIMEOUT_S = 120.0
STOP_NODES_TIMEOUT_S = 40.0
STOP_BROKERS_TIMEOUT_S = 30.0
HTTP_TIMEOUT_S = 2.0

FIXED = ("cluster", "shards", "brokers", "response_partitions", "durability")
"""Settings that are built into the data: a stack's data directory refuses others."""


def up(settings: Settings, *, detached: bool = True, report: Report = lambda _: None) -> Settings:
    """Start the stack (or what is missing of it) and return the settings that reach it.

    Raises UsageError for settings that the existing data refuses, Unavailable if something does not start or an address that was
    written down is taken.
    """
    check_java()
    with states.locked(settings.data_dir), states.writing(settings.data_dir):
        before = states.read_state(settings.data_dir) or StackState()
        try:
            effective, moved = _effective_settings(settings, before)
        except BaseException:
            remove_if_empty(settings.data_dir)
            raise
        for one in moved:
            report(str(one))
        started = _Start(effective, before, detached=detached, report=report, moved=moved)
        try:
            started.run()
        except BaseException:
            report("stopping what was started")
            started.undo()
            raise
    return effective


def down(settings: Settings, *, remove_data: bool = False, report: Report = lambda _: None) -> tuple[StackMember, ...]:
    """Stop the stack; return the members that ran. With ``remove_data``, delete all that it stored.

    A state file that cannot be read is no hindrance: the processes are then found by what they were started with. Makes nothing. Raises
    UserError if the directory cannot be written, or something could not be deleted.
    """
    if not settings.data_dir.is_dir():
        return ()
    with states.locked(settings.data_dir), states.writing(settings.data_dir):
        running = _to_be_stopped(settings.data_dir, report).running()
        if running:
            report(f"stopping {', '.join(member.name for member in running)}")
        _stop(running)
        if remove_data:
            remove_contents(settings.data_dir)
        states.state_file(settings.data_dir).unlink(missing_ok=True)
    return running


def _to_be_stopped(data_dir: Path, report: Report) -> StackState:
    try:
        return states.read_state(data_dir) or StackState()
    except states.Unreadable as error:
        report(str(error).partition(";")[0])
        found = find_orphans(data_dir)
        path = states.state_file(data_dir)
        path.rename(unreadable_file(data_dir))
        return found


def _stop(members: tuple[StackMember, ...]) -> None:
    """Stop readers before what they read from."""
    clients = [member.process for member in members if member.kind not in (BROKER, DATANODE)]
    datanodes = [member.process for member in members if member.kind == DATANODE]
    stop_all(clients, STOP_NODES_TIMEOUT_S)
    stop_all(datanodes, STOP_NODES_TIMEOUT_S)
    stop_all([member.process for member in members if member.kind == BROKER], STOP_BROKERS_TIMEOUT_S)


def _effective_settings(settings: Settings, before: StackState) -> tuple[Settings, tuple[Moved, ...]]:
    """Return the settings with the addresses that the stack has or gets, and which of these are not as they should be."""
    path = settings.data_dir / SETTINGS_FILE
    if not path.exists():
        return with_free_ports(settings)
    stored = load_settings(path, environment={})
    for name in FIXED:
        if getattr(settings, name) != getattr(stored, name):
            if name in settings.explicit:
                raise UsageError(
                    f"the stack in {settings.data_dir} was made with {name} = {getattr(stored, name)}, which stays: for "
                    f"{getattr(settings, name)} make another beside it (STRATOLOG_DATA_DIR=OTHER stratolog up ...), or delete this one first "
                    "('stratolog down --remove-data')"
                )
            settings = replace(settings, **{name: getattr(stored, name)})
    names = ", ".join(node.name for node in stored.nodes)
    if "nodes" in settings.explicit and [node.name for node in settings.nodes] != [node.name for node in stored.nodes]:
        raise UsageError(
            f"the stack in {settings.data_dir} has the nodes {names}: 'stratolog admin add-node' and 'remove-node' change "
            "them, or use another data_dir"
        )
    if "nodes" not in settings.explicit:
        settings = replace(settings, nodes=stored.nodes)
    moved: list[Moved] = []
    settings = _with_datanodes(settings, stored, moved, running=bool(before.running()))
    if before.running():
        return replace(settings, bootstrap_servers=stored.bootstrap_servers, nodes=stored.nodes), tuple(moved)
    return with_free_ports(settings)


def _with_datanodes(settings: Settings, stored: Settings, moved: list[Moved], *, running: bool) -> Settings:
    """Return the settings with the datanodes that the stack has, and those that are new.

    One that has data stays, with its address while the stack runs. Raises UsageError if one is to go, or if a running stack that has
    none is to get some: its nodes allocate blocks elsewhere.
    """
    if "datanodes" not in settings.explicit:
        return replace(settings, datanodes=stored.datanodes, racks=stored.racks)
    known = {node.name: node for node in stored.datanodes}
    wanted = {node.name for node in settings.datanodes}
    if gone := [name for name in known if name not in wanted]:
        raise UsageError(
            f"the stack in {settings.data_dir} has the datanodes {', '.join(known)}: {', '.join(gone)} may hold blocks; "
            "'stratolog admin datanode decommission' first, or use another data_dir"
        )
    if running and wanted and not known:
        raise UsageError(f"the stack in {settings.data_dir} runs without datanodes: 'stratolog down' first")
    if not running:
        return settings
    taken = {port for node in stored.datanodes for port in (node.port, node.http_port)}
    new = [node for node in settings.datanodes if node.name not in known]
    free = {node.name: node for node in free_datanodes(settings, new, taken, moved)}
    return replace(settings, datanodes=tuple(known.get(node.name) or free[node.name] for node in settings.datanodes))


class _Start:
    """One run of ``up``: what was there, and what has been started so far."""

    def __init__(
        self, settings: Settings, before: StackState, *, detached: bool, report: Report, moved: Iterable[Moved] = ()
    ) -> None:  # fmt: skip
        self._moved = {one.name: one for one in moved}
        self._settings = settings
        self._data_dir = settings.data_dir
        self._kept = before.running()
        self._new: list[StackMember] = []
        self._detached = detached
        self._report = report

    def undo(self) -> None:
        """Stop what this run has started, and nothing that ran before."""
        _stop(tuple(self._new))
        self._new.clear()
        states.write_state(self._data_dir, StackState(members=self._kept))

    def run(self) -> None:
        """Start what is missing, each kind once the one before serves."""
        (self._data_dir / SETTINGS_FILE).write_text(self._settings.to_toml())
        self._start_brokers()
        if make_secret(self._settings.secret_file):
            self._report(f"the cluster's secret, in {self._settings.secret_file}")
        self._report("topics")
        ensure_topics(self._settings.bootstrap_servers, topic_plan(self._settings))
        for node in self._settings.nodes:
            self._start_node(node)
        for datanode in self._settings.datanodes:
            self._start_datanode(datanode)
        if self._settings.audit and not self._has(AUDIT, AUDIT):
            self._start_audit()
        self._await_leaders()
        self._await_pipelines()
        self._await_audit()

    def _has(self, kind: str, name: str) -> bool:
        return any(member.kind == kind and member.name == name for member in self._kept)

    def _add(self, member: StackMember) -> None:
        """Remember a process at once: a crash of this command must not orphan it."""
        if member.name in self._moved:
            member = replace(member, extra={**member.extra, WANTED: self._moved[member.name].wanted})
        self._new.append(member)
        states.write_state(self._data_dir, StackState(members=(*self._kept, *self._new)))

    def _start_brokers(self) -> None:
        """Start the brokers, all or none: half a cluster is repaired by stopping and starting it."""
        count = self._settings.brokers
        running = [member for member in self._kept if member.kind == BROKER]
        if len(running) == count:
            return
        if running:
            raise Unavailable(f"only {len(running)} of {count} brokers run: 'stratolog down', then 'stratolog up'")
        self._report("jars of Kafka (fetched once)")
        jars = kafka_jars(self._settings.cache_dir)
        self._report(f"{count} Kafka broker{'s' if count > 1 else ''}")
        ports = [int(address.rpartition(":")[2]) for address in self._settings.bootstrap_servers.split(",")]
        listeners = tuple(Listener(broker=b, controller=c) for b, c in zip(ports, free_ports(count), strict=True))
        cluster = KafkaCluster(folder=self._data_dir / "kafka", jars=jars, listeners=listeners)
        processes = cluster.start(detached=self._detached)
        for number, (listener, process) in enumerate(zip(listeners, processes, strict=True), start=1):
            self._add(
                StackMember(
                    kind=BROKER,
                    name=f"broker-{number}",
                    address=listener.address,
                    log=cluster.log_file(number),
                    process=process,
                    extra={"controller_port": listener.controller},
                )
            )
        cluster.wait_ready(processes)

    def _start_node(self, node: NodeAddress) -> None:
        if self._has(NODE, node.name):
            return
        self._report(f"node {node.name}")
        self._add(spawn_node(self._settings, node.name, detached=self._detached))

    def _start_datanode(self, datanode: DatanodeAddress) -> None:
        if self._has(DATANODE, datanode.name):
            return
        self._report(f"datanode {datanode.name}")
        self._add(spawn_datanode(self._settings, datanode.name, detached=self._detached))

    def _await_pipelines(self) -> None:
        """Wait until blocks can be allocated: some pipeline is open, and followed by healthy datanodes."""
        datanodes = [member for member in self._new if member.kind == DATANODE]
        if not datanodes:
            return
        self._report("waiting for a pipeline of datanodes")

        def settled() -> bool:
            return has_usable_pipeline(self._settings) or not all(one.process.is_running() for one in datanodes)

        done = wait_until(settled, DATANODES_TIMEOUT_S)
        for member in datanodes:
            if not member.process.is_running():
                raise Unavailable(f"datanode {member.name} ended at its start:\n{log_tail(member.log)}")
        if not done:
            raise Unavailable(f"no pipeline takes blocks after {DATANODES_TIMEOUT_S:.0f} s; see {self._data_dir}/logs")

    def _environment(self) -> Mapping[str, str]:
        return node_environment(self._data_dir / SETTINGS_FILE)

    def _await_leaders(self) -> None:
        """Wait until every node answers and every shard has a leader."""
        self._report("waiting for a leader of each shard")
        nodes = [member for member in self._new if member.kind == NODE]

        def settled() -> bool:
            return is_led(self._settings) or not all(member.process.is_running() for member in nodes)

        done = wait_until(settled, NODES_TIMEOUT_S)
        for member in nodes:
            if not member.process.is_running():
                raise Unavailable(f"node {member.name} ended at its start:\n{log_tail(member.log)}")
        if not done:
            raise Unavailable(f"not every shard has a leader after {NODES_TIMEOUT_S:.0f} s; see {self._data_dir}/logs")

    def _start_audit(self) -> None:
        self._report("the Spark audit (its jars are fetched once)")
        log = self._data_dir / "logs" / "audit.log"
        command = audit_command(self._settings)
        folder = audit_folder(self._settings)
        (folder / "health.json").unlink(missing_ok=True)
        # Spark leaves things in its working directory; run from a checkout, our packages are found all the same.
        paths = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")]))
        environment = {**self._environment(), "PYTHONPATH": paths}
        process = spawn(command, log=log, detached=self._detached, env=environment, cwd=folder)
        self._add(StackMember(kind=AUDIT, name=AUDIT, address="", log=log, process=process, extra={}))

    def _await_audit(self) -> None:
        """Wait until an audit that was started has written its first micro-batch."""
        audit = next((member for member in self._new if member.kind == AUDIT), None)
        if audit is None:
            return
        self._report("waiting for the audit's first verdicts")
        running = audit.process.is_running
        done = wait_until(
            lambda: audit_health(self._settings).get("status") == "running" or not running(), AUDIT_TIMEOUT_S
        )
        if not done or not running():
            what = "ended at its start" if done else f"is not ready after {AUDIT_TIMEOUT_S:.0f} s"
            raise Unavailable(f"the Spark audit {what}:\n{log_tail(audit.log)}")


def topic_plan(settings: Settings) -> TopicPlan:
    """Return what the topics of the local stack are to be."""
    return TopicPlan(
        shards=settings.shards,
        response_partitions=settings.response_partitions,
        replication_factor=settings.brokers,
        durability=settings.durability,
        datanodes=bool(settings.datanodes),
    )


def node_command(name: str) -> list[str]:
    """Return the command of one Object Manager node's process."""
    return [sys.executable, "-m", "stratolog", "node", "run", name]


def spawn_node(settings: Settings, name: str, *, detached: bool) -> StackMember:
    """Start the process of one node, with the settings of the stack; return it at once."""
    log = settings.data_dir / "logs" / f"{name}.log"
    environment = node_environment(settings.data_dir / SETTINGS_FILE)
    process = spawn(node_command(name), log=log, detached=detached, env=environment)
    return StackMember(kind=NODE, name=name, address=settings.node(name).address, log=log, process=process, extra={})


def datanode_command(name: str) -> list[str]:
    """Return the command of one datanode's process."""
    return [sys.executable, "-m", "stratolog", "datanode", "run", name]


def spawn_datanode(settings: Settings, name: str, *, detached: bool) -> StackMember:
    """Start the process of one datanode, with the settings of the stack; return it at once."""
    log = settings.data_dir / "logs" / f"{name}.log"
    environment = node_environment(settings.data_dir / SETTINGS_FILE)
    process = spawn(datanode_command(name), log=log, detached=detached, env=environment)
    address = settings.datanode(name).address
    return StackMember(kind=DATANODE, name=name, address=address, log=log, process=process, extra={})


def node_environment(settings_file: Path) -> Mapping[str, str]:
    """Return the environment of a process that takes its settings from ``settings_file`` alone."""
    return {**without_variables(os.environ), CONFIG_VARIABLE: str(settings_file)}


def audit_folder(settings: Settings) -> Path:
    """Return where the Spark audit of the local stack keeps its checkpoint, output and health."""
    return settings.data_dir / "audit"


def audit_command(settings: Settings) -> list[str]:
    """Write the configuration of the Spark audit (``spark_streaming.config``) and return its process's command."""
    folder = audit_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "bootstrap_servers": settings.bootstrap_servers,
        "work_dir": str(folder),
        "jars": [str(jar) for jar in spark_jars(settings.cache_dir)],
    }
    path = folder / "audit.json"
    path.write_text(json.dumps(config, indent=2) + "\n")
    return [sys.executable, "-m", "spark_streaming.jobs.audit_stream", "--config", str(path)]


def audit_health(settings: Settings) -> dict[str, object]:
    """Return what the running audit says of itself (``spark_streaming.jobs.health``); empty if nothing yet."""
    try:
        found = json.loads((audit_folder(settings) / "health.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_led(settings: Settings) -> bool:
    """Say whether every node answers and every shard has exactly one leader, which all nodes know."""
    statuses = {node.name: node_status(node.address) for node in settings.nodes}
    return all(
        is_agreed({name: view_in(status, shard) for name, status in statuses.items()})
        for shard in range(settings.shards)
    )


def has_usable_pipeline(settings: Settings) -> bool:
    """Say whether every node sees a pipeline that takes blocks."""
    views = [node_answer(node.address, "/v1/pipelines?consistency=stale") for node in settings.nodes]
    return all(view is not None and any(one["usable"] for one in view["pipelines"]) for view in views)


SOURCES = Path(__file__).resolve().parents[2]
"""Where our packages are."""


@cache
def _http() -> httpx.Client:
    """Return the process's one client: making one takes longer than asking with it."""
    return httpx.Client(timeout=HTTP_TIMEOUT_S, trust_env=False)


def node_status(address: str) -> dict[str, object] | None:
    """Return a node's ``/status``, or None if it does not answer."""
    return node_answer(address, "/status")


def node_answer(address: str, path: str) -> dict[str, Any] | None:
    """Return a node's answer to a GET, or None if it does not answer, or with an error."""
    try:
        answer = _http().get(f"http://{address}{path}")
        answer.raise_for_status()
        found = answer.json()
    except (httpx.HTTPError, ValueError):
        return None
    return found if isinstance(found, dict) else None
