"""``up`` and ``down``: brokers, topics, nodes, datanodes, the Spark audit and the dashboard, in that order and back.

``up`` is idempotent: running processes stay, missing ones are started. A stack's data outlives it in its data
directory::

    stack.json, stack.toml, stack.lock   what runs, with which settings (stratolog.local.state)
    cluster-secret                       the cluster's secret (stratolog.configuration.cluster_secret)
    kafka/broker-N/                      data and log of a broker
    ../DATA_DIR-keys/                    the key-encryption key of a secure stack (stratolog.security.key_encryption)
    authority/, kafka-users/             certificates, and users' passwords, of a secure stack (stratolog.brokers)
    nodes/NAME/, logs/NAME.log           databases and log of a node
    datanodes/NAME/, logs/NAME.log       blocks, databases and log of a datanode
    audit/, logs/audit.log               checkpoint, verdicts and log of the audit
    logs/ui.log                          log of the dashboard
    supervisor.json, restarts.json       what starts again what has died (stratolog.supervision)
    drills/, drill.lock                  what drills have left to look at (stratolog.drills)
    restore/                             of a restore at work (stratolog.backups.restoring)

Ports are those of the settings where nobody listens on them, else free ones; the choice is in ``stack.toml``. If a
start fails, the processes that it started are stopped again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from schemas.security.tls import scheme_of
from schemas.settings.table import AUTH_NONE
from schemas.settings.values import DatanodeAddress, NodeAddress
from stratolog.brokers.identities import authority_of, broker_identities
from stratolog.configuration.cluster_secret import make_secret
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable
from stratolog.local import state as states
from stratolog.local.contents import remove_contents, remove_if_empty, unreadable_file
from stratolog.local.effective_settings import effective_settings
from stratolog.local.jars import kafka_jars
from stratolog.local.kafka import KafkaCluster, Listener, check_java
from stratolog.local.orphans import find_orphans
from stratolog.local.ports import UI_PORT, WANTED, Moved, free_ports, is_port_free
from stratolog.local.processes import log_tail, stop_all, wait_until
from stratolog.local.spawning import (
    audit_health,
    spawn_audit,
    spawn_datanode,
    spawn_node,
    spawn_supervisor,
    spawn_ui,
)
from stratolog.local.state import AUDIT, BROKER, DATANODE, NODE, SETTINGS_FILE, UI, StackMember, StackState
from stratolog.local.topics import TopicPlan, ensure_topics
from stratolog.nodes.node_http import learn
from stratolog.nodes.readiness import has_usable_pipeline, is_led
from stratolog.security.private_files import private_umask, tighten

Report = Callable[[str], None]
"""Called with what is going on, in words."""

UNSIGNED = (
    "auth is none: nodes believe whatever name a request has, so users are not safe from each other; 'up --auth signed', "
    "after 'down', has them sign"
)
NODES_TIMEOUT_S = 120.0
AUDIT_TIMEOUT_S = 180.0
DATANODES_TIMEOUT_S = 120.0
STOP_NODES_TIMEOUT_S = 40.0
STOP_BROKERS_TIMEOUT_S = 30.0
STOP_SUPERVISOR_TIMEOUT_S = 10.0


def up(
    settings: Settings, *, detached: bool = True, report: Report = lambda _: None,
    before_nodes: Callable[[Settings], None] = lambda _: None, supervised: bool = True,
) -> Settings:  # fmt: skip
    """Start the stack (or what is missing of it) and return the settings that reach it.

    ``before_nodes`` is called when the brokers run and the topics exist. What is ``detached`` is ``supervised``, unless
    the caller looks after its processes itself: what dies is started again.

    Raises UsageError for settings that the existing data refuses; Unavailable if something does not start, or if an
    address that a person wrote down is taken.
    """
    check_java()
    with private_umask(), states.locked(settings.data_dir), states.writing(settings.data_dir):
        before = states.read_state(settings.data_dir) or StackState()
        try:
            effective, moved = effective_settings(settings, before)
        except BaseException:
            remove_if_empty(settings.data_dir)
            raise
        learn(effective)
        if effective.secure and (count := tighten(settings.data_dir, again=not before.running())):
            report(f"{count} files and folders are for this account alone now")
        for one in moved:
            report(str(one))
        started = _Start(effective, before, detached=detached, report=report, moved=moved, before_nodes=before_nodes)
        try:
            started.run()
        except BaseException:
            report("stopping what was started")
            started.undo()
            raise
        if detached and supervised:
            spawn_supervisor(effective)
    return effective


def down(settings: Settings, *, remove_data: bool = False, report: Report = lambda _: None) -> tuple[StackMember, ...]:
    """Stop the stack; return the members that ran. With ``remove_data``, delete all that it stored.

    If the state file cannot be read, the processes are found by what they were started with (``orphans``). Creates no
    files. Raises UserError if the directory cannot be written, or something could not be deleted.
    """
    if not settings.data_dir.is_dir():
        return ()
    with private_umask(), states.locked(settings.data_dir), states.writing(settings.data_dir):
        running = _to_be_stopped(settings.data_dir, report).running()
        if running:
            report(f"stopping {', '.join(member.name for member in running)}")
        if (supervisor := states.supervisor_of(settings.data_dir)) is not None:
            supervisor.stop(STOP_SUPERVISOR_TIMEOUT_S)
        _stop(running)
        for name in (states.SUPERVISOR_FILE, states.RESTARTS_FILE):
            (settings.data_dir / name).unlink(missing_ok=True)
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
    """Stop processes, each kind before the kind that it reads from."""
    clients = [member.process for member in members if member.kind not in (BROKER, DATANODE)]
    datanodes = [member.process for member in members if member.kind == DATANODE]
    stop_all(clients, STOP_NODES_TIMEOUT_S)
    stop_all(datanodes, STOP_NODES_TIMEOUT_S)
    stop_all([member.process for member in members if member.kind == BROKER], STOP_BROKERS_TIMEOUT_S)


class _Start:
    """One run of ``up``: what was there, and what has been started so far."""

    def __init__(
        self, settings: Settings, before: StackState, *, detached: bool, report: Report, moved: Iterable[Moved] = (),
        before_nodes: Callable[[Settings], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._moved = {one.name: one for one in moved}
        self._settings = settings
        self._data_dir = settings.data_dir
        self._kept = tuple(member.stopped(on_purpose=False) for member in before.running())
        self._new: list[StackMember] = []
        self._detached = detached
        self._report = report
        self._before_nodes = before_nodes

    def undo(self) -> None:
        """Stop what this run has started, and nothing that ran before."""
        _stop(tuple(self._new))
        self._new.clear()
        states.write_state(self._data_dir, StackState(members=self._kept))

    def run(self) -> None:
        """Start what is missing, each kind once the kind before it serves."""
        (self._data_dir / SETTINGS_FILE).write_text(self._settings.to_toml())
        for words in weaknesses(self._settings):
            self._report(words)
        self._start_brokers()
        if make_secret(self._settings.secret_file, self._settings.keys()):
            self._report(f"the cluster's secret, in {self._settings.secret_file}")
        self._report("topics")
        ensure_topics(self._settings.connection, topic_plan(self._settings))
        self._before_nodes(self._settings)
        for node in self._settings.nodes:
            self._start_node(node)
        for datanode in self._settings.datanodes:
            self._start_datanode(datanode)
        if self._settings.audit and not self._has(AUDIT, AUDIT):
            self._start_audit()
        if self._settings.ui and not self._has(UI, UI):
            self._start_ui()
        self._await_leaders()
        self._await_pipelines()
        self._await_audit()

    def _has(self, kind: str, name: str) -> bool:
        return any(member.kind == kind and member.name == name for member in self._kept)

    def _add(self, member: StackMember) -> None:
        """Write a process to the state at once: a crash of this command must not orphan it."""
        if member.name in self._moved:
            member = replace(member, extra={**member.extra, WANTED: self._moved[member.name].wanted})
        self._new.append(member)
        states.write_state(self._data_dir, StackState(members=(*self._kept, *self._new)))

    def _start_brokers(self) -> None:
        """Start all brokers or none: to repair half a cluster, a user stops and starts it."""
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
        cluster = self._cluster(jars, ports)
        listeners = cluster.listeners
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

    def _cluster(self, jars: Path, ports: Sequence[int]) -> KafkaCluster:
        settings, folder = self._settings, self._data_dir / "kafka"
        controllers = free_ports(len(ports))
        if not settings.secure or settings.node_bootstrap_servers is None:
            listeners = tuple(Listener(broker=b, controller=c) for b, c in zip(ports, controllers, strict=True))
            return KafkaCluster(folder=folder, jars=jars, listeners=listeners, heap_mib=settings.broker_heap_mib)
        nodes = [int(address.rpartition(":")[2]) for address in settings.node_bootstrap_servers.split(",")]
        secure_listeners = tuple(
            Listener(broker=b, controller=c, nodes=n) for b, c, n in zip(ports, controllers, nodes, strict=True)
        )
        authority = authority_of(self._data_dir, settings.cluster, settings.key_encryption_file)
        identities = broker_identities(authority, len(ports))
        return KafkaCluster(
            folder=folder, jars=jars, listeners=secure_listeners, identities=identities, operator=settings.kafka,
            heap_mib=settings.broker_heap_mib,
        )  # fmt: skip

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

        def is_settled() -> bool:
            return has_usable_pipeline(self._settings) or not all(one.process.is_running() for one in datanodes)

        done = wait_until(is_settled, DATANODES_TIMEOUT_S)
        for member in datanodes:
            if not member.process.is_running():
                raise Unavailable(f"datanode {member.name} ended at its start:\n{log_tail(member.log)}")
        if not done:
            raise Unavailable(f"no pipeline takes blocks after {DATANODES_TIMEOUT_S:.0f} s; see {self._data_dir}/logs")

    def _await_leaders(self) -> None:
        """Wait until every node answers and every shard has a leader."""
        self._report("waiting for a leader of each shard")
        nodes = [member for member in self._new if member.kind == NODE]

        def is_settled() -> bool:
            return is_led(self._settings) or not all(member.process.is_running() for member in nodes)

        done = wait_until(is_settled, NODES_TIMEOUT_S)
        for member in nodes:
            if not member.process.is_running():
                raise Unavailable(f"node {member.name} ended at its start:\n{log_tail(member.log)}")
        if not done:
            raise Unavailable(f"not every shard has a leader after {NODES_TIMEOUT_S:.0f} s; see {self._data_dir}/logs")

    def _start_audit(self) -> None:
        self._report("the Spark audit (its jars are fetched once)")
        self._add(spawn_audit(self._settings, detached=self._detached))

    def _start_ui(self) -> None:
        """Start the dashboard at its port, or at a free one. Nobody waits for it: nothing depends on it."""
        port = UI_PORT if is_port_free(UI_PORT) else free_ports(1)[0]
        self._report(f"the dashboard, {scheme_of(self._settings.tls())}://127.0.0.1:{port}/")
        self._add(spawn_ui(self._settings, port, detached=self._detached))

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


def weaknesses(settings: Settings) -> list[str]:
    """Return what a secure stack leaves open, with what ends it."""
    found = {
        "keys and secrets are in clear: 'stratolog admin keys encrypt', after 'down', encrypts them": (
            settings.key_encryption_file is None
        ),
        UNSIGNED: settings.auth == AUTH_NONE,
    }
    return [words for words, is_so in found.items() if settings.secure and is_so]


def topic_plan(settings: Settings) -> TopicPlan:
    """Return the plan of the local stack's topics."""
    return TopicPlan(
        shards=settings.shards,
        response_partitions=settings.response_partitions,
        replication_factor=settings.brokers,
        durability=settings.durability,
        datanodes=bool(settings.datanodes),
    )
