"""The way out of a flag without a leader: real databases of stopped nodes, flagged by a forced digest base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from om_processors.execution.service import OM_FAMILIES, OMService
from om_processors.namespace.context import Contexts
from replicated_db.core.applying.replica import Identity, Replica
from replicated_db.core.leading.leader import Leader, LeaderLimits, Proposal, claim_for
from replicated_db.core.log.position import FLAG_KEY, UNFLAGGED_KEY
from replicated_db.core.tables.column_families import TRANSACTION_INFO
from replicated_db.core.tables.memory import ManualClock, MemoryLog, SequenceIds
from replicated_db.shell.rocks import RocksReader, RocksStore
from schemas.codecs.codec import encode
from schemas.column_families import VOLUME_TABLE
from schemas.records.log import FORCED
from schemas.records.messages import CreateVolume, LogDigestBase, RequestBody
from schemas.settings.values import NodeAddress
from stratolog.cli import build_app
from stratolog.commands.admin.unflag import unflag_replica
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.local.ports import free_ports
from tests.support.om.late_world import PIPELINES
from tests.support.om.om_world import request_of

NAMES = ("om1", "om2", "om3")
START_MS = 1_750_000_000_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ports = free_ports(3)
    nodes = tuple(NodeAddress(name=name, host="127.0.0.1", port=port) for name, port in zip(NAMES, ports, strict=True))
    return Settings(data_dir=tmp_path, shards=1, nodes=nodes, caller="an operator")


class Shard:
    """Three replicas of shard 0, the first of which leads."""

    def __init__(self, settings: Settings) -> None:
        self.clock = ManualClock(now_ms=START_MS)
        self.log = MemoryLog(self.clock)
        self.replicas = {name: self._replica(settings, name) for name in NAMES}
        first = self.replicas["om1"]
        offset = self.log.append(encode(claim_for(first, SequenceIds(seed=1).nonce(), "a:1", START_MS)))
        self._catch_up("om1")
        self.leader = Leader(
            first, OMService(Contexts(shard=0, shards=1, pipelines=PIPELINES)), LeaderLimits(), claim_offset=offset,
            claim_time_ms=START_MS, elapsed_ms=self.clock.elapsed_ms(),
        )  # fmt: skip
        self.appender = self.log.appender()
        self._append(self.leader.genesis(settings.cluster, NAMES))

    def _replica(self, settings: Settings, name: str) -> Replica:
        identity = Identity(cluster=settings.cluster, shard=0, shards=1, node=name)
        found = Replica(identity, OM_FAMILIES, RocksStore(settings.node_folder(name) / "shard-0", OM_FAMILIES.names))
        found.adopt_topic(self.log.topic_id(), None)
        return found

    def do(self, body: RequestBody) -> None:
        proposal = Proposal(
            client_id=b"", call_id=b"", request_hash=b"", first_sent_at_ms=START_MS, request_type="any",
            body=request_of(body), reply_to=0, begins_batch=isinstance(body, LogDigestBase),
        )  # fmt: skip
        assert self.leader.take(proposal, self.clock.elapsed_ms()) is None
        self._append(*self.leader.seal())

    def _append(self, *appends: Any) -> None:
        for append in appends:
            self.appender.append(append.token, append.value)
        for report in self.appender.poll(0):
            self.leader.on_report(report)

    def flag_all(self) -> None:
        """What an operator may do who forces a wrong digest base."""
        body = LogDigestBase(shard=0, index=self.leader.index, slots=[1], sums=[1], basis=f"{FORCED}oracle")
        self.do(body)
        for name in NAMES:
            self._catch_up(name)

    def _catch_up(self, name: str) -> None:
        replica = self.replicas[name]
        for entry in self.log.read(replica.read_offset + 1, 1000, 0):
            replica.offer(entry.offset, entry.value)

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.store.close()


@pytest.fixture
def flagged(settings: Settings) -> Settings:
    shard = Shard(settings)
    shard.do(CreateVolume(volume="vol1"))
    shard.flag_all()
    assert all(replica.evidence is not None for replica in shard.replicas.values())
    shard.close()
    return settings


def row(settings: Settings, node: str, key: bytes) -> bytes | None:
    reader = RocksReader(settings.node_folder(node) / "shard-0", OM_FAMILIES.names)
    try:
        return reader.get(TRANSACTION_INFO, key)
    finally:
        reader.close()


def test_flags_go_one_by_one_and_what_was_done_is_kept(flagged: Settings):
    for node in NAMES:
        done = unflag_replica(flagged, node, 0)
        assert (done["node"], done["index"]) == (node, 2)
        assert sorted(done["agreeing"]) == sorted(set(NAMES) - {node})
        assert "base" in done["evidence"]
        assert row(flagged, node, FLAG_KEY) is None
        kept = json.loads(row(flagged, node, UNFLAGGED_KEY) or b"")
        assert (kept["by"], kept["forced"], kept["digest"]) == ("an operator", False, done["digest"])
        assert kept["evidence"] == done["evidence"]
    assert unflag_replica(flagged, "om1", 0)["evidence"] is None, "given again, it does nothing"


def test_without_a_majority_it_takes_force(flagged: Settings):
    for node in ("om2", "om3"):
        shutil.rmtree(flagged.node_folder(node))
    with pytest.raises(UserError) as error:
        unflag_replica(flagged, "om1", 0)
    assert "no majority of the 3 members holds what om1 does at index 2 (om2: unknown, om3: unknown)" in str(
        error.value
    )
    assert row(flagged, "om1", FLAG_KEY) is not None
    assert unflag_replica(flagged, "om1", 0, force=True)["agreeing"] == []
    assert json.loads(row(flagged, "om1", UNFLAGGED_KEY) or b"")["forced"] is True


def damage(settings: Settings, node: str) -> None:
    store = RocksStore(settings.node_folder(node) / "shard-0", OM_FAMILIES.names)
    store.write([(VOLUME_TABLE, b"/vol1", b"damaged")])
    store.close()


@pytest.mark.parametrize("force", [False, True])
def test_a_damaged_replica_keeps_its_flag_whatever_is_asked(flagged: Settings, force: bool):
    damage(flagged, "om1")
    with pytest.raises(UserError, match="it is damaged. 'stratolog admin rebuild om1 0'"):
        unflag_replica(flagged, "om1", 0, force=force)
    assert row(flagged, "om1", FLAG_KEY) is not None


def test_a_database_that_is_open_or_of_another_cluster_is_refused(flagged: Settings, tmp_path: Path):
    store = RocksStore(flagged.node_folder("om1") / "shard-0", OM_FAMILIES.names)
    try:
        with pytest.raises(UserError, match="om1's database of shard 0 cannot be used: .*does not open"):
            unflag_replica(flagged, "om1", 0)
    finally:
        store.close()
    other = Settings(data_dir=tmp_path, shards=1, nodes=flagged.nodes, cluster="other")
    with pytest.raises(UserError, match="cluster is 'stratolog' in the log but 'other'"):
        unflag_replica(other, "om1", 0)
    with pytest.raises(UserError, match="om1 has no database of shard 7"):
        unflag_replica(flagged, "om1", 7)


def test_the_command(flagged: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STRATOLOG_DATA_DIR", str(flagged.data_dir))
    monkeypatch.setenv("STRATOLOG_SHARDS", "1")
    monkeypatch.setenv("STRATOLOG_NODES", ",".join(f"{node.name}={node.address}" for node in flagged.nodes))
    first, second = (CliRunner().invoke(build_app(), ["admin", "unflag", "om1", "0"]) for _ in range(2))
    assert first.exit_code == second.exit_code == 0, first.output
    assert first.output.startswith("om1 is not flagged on shard 0 any more: index 2, digest ")
    assert second.output == "om1 is not flagged on shard 0\n"
