"""How a shard is run: Genesis and control records, on the leader (ahead of the log), on replicas, and after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from replicated_db.core.errors import Refused, UpgradeNeeded
from replicated_db.core.execution.retry import REQUEST_LIFETIME_MS
from replicated_db.core.execution.shard_state import ShardState, state_after
from replicated_db.core.execution.transaction import Transaction
from replicated_db.core.leading.leader import Wait
from schemas.codecs.codec import decode
from schemas.features import INITIAL, LATEST
from schemas.records.log import Batch, Checkpoint, FeatureLevel, Genesis, Members, Mode, Prepared
from tests.support.replicated.kit import (
    CLUSTER,
    NODES,
    START_MS,
    Shard,
    assert_sound,
    effective_records,
    genesis,
    propose,
    put,
    responses,
)

HEADER: dict[str, Any] = {"term": 1, "nonce": bytes(16), "seq": 2, "prev_chain": bytes(32), "index": 0}


def members(*names: str) -> Members:
    return Members(**HEADER, replicas=list(names))


def control(record: type, **fields: Any) -> Any:
    """A command that asks for a control record."""

    def run(transaction: Transaction) -> bytes:
        transaction.control(record, **fields)
        return b"done"

    return run


def command(shard: Shard, body: Any, **more: Any) -> Any:
    proposal = propose(body=body, sent_ms=shard.leader.timestamp_ms(shard.clock.elapsed_ms()), **more)
    proposal.begins_batch = proposal.when_prepared = True
    return proposal


def prepare(shard: Shard) -> None:
    shard.batch(command(shard, prepare_body))
    shard.deliver()


def prepare_body(transaction: Transaction) -> bytes:
    transaction.checkpoint("v2")
    transaction.control(Prepared, prepared=True, checkpoint="v2")
    return b"prepared"


def cancel_body(transaction: Transaction) -> bytes:
    transaction.control(Prepared, prepared=False, checkpoint="")
    return b"cancelled"


def test_the_state_follows_the_records():
    state = state_after(ShardState(), genesis(feature_level=INITIAL))
    assert state == ShardState(replicas=tuple(NODES), feature_level=INITIAL)
    state = state_after(state, members("n1", "n4"))
    assert state.replicas == ("n1", "n4")
    state = state_after(state, FeatureLevel(**HEADER, level=LATEST))
    assert state.feature_level == LATEST
    state = state_after(state, Prepared(**HEADER, prepared=True, checkpoint="c"))
    assert state.prepared == "c"
    state = state_after(state, Mode(**HEADER, request_type="CreateKey", mode="late"))
    assert state.late == {"CreateKey"}
    state = state_after(state, Mode(**HEADER, request_type="CreateKey", mode="leader"))
    assert state.late == frozenset()
    assert state_after(state, Prepared(**HEADER, prepared=False, checkpoint="")).prepared is None


@pytest.mark.parametrize(
    "record", [FeatureLevel(**HEADER, level=LATEST + 1), genesis(feature_level=LATEST + 1)], ids=["level", "genesis"]
)
def test_a_level_that_is_not_known_stops(record: Any):
    with pytest.raises(UpgradeNeeded, match=f"level {LATEST + 1}.*knows up to {LATEST}: upgrade this node"):
        state_after(ShardState(), record)


def test_a_new_shard_is_at_the_level_of_its_first_leader():
    shard = Shard()
    record = decode(shard.log.entries[1].value)
    assert isinstance(record, Genesis)
    assert record.feature_level == shard.replica.state.feature_level == shard.leader.state.feature_level == LATEST


def test_a_control_record_lies_right_before_its_batch_and_all_replicas_follow():
    shard = Shard()
    shard.batch(command(shard, control(Members, replicas=[*NODES, "n4"])), propose(put(b"a", b"1")))
    record, batch = [one.record for one in shard.deliver()]
    assert isinstance(record, Members)
    assert isinstance(batch, Batch)
    assert (record.index, batch.first_index, batch.last_index) == (0, 1, 2)
    shard.catch_up()
    for node in shard.nodes.values():
        assert node.replica.state.replicas == (*NODES, "n4")
        assert node.restart().replica.state == node.replica.state
        assert_sound(node.replica)


def test_the_next_command_sees_what_is_still_in_flight():
    shard = Shard()
    seen: list[tuple[str, ...]] = []

    def add(name: str) -> Any:
        def run(transaction: Transaction) -> bytes:
            seen.append(transaction.state.replicas)
            transaction.control(Members, replicas=[*transaction.state.replicas, name])
            return b"added"

        return run

    for name in ("n4", "n5"):  # not declared to begin a batch: the leader would have the second wait for the first
        shard.batch(propose(body=add(name), sent_ms=START_MS))
    assert seen == [tuple(NODES), (*NODES, "n4")]
    shard.deliver()
    assert shard.replica.state.replicas == (*NODES, "n4", "n5")


def test_a_new_leader_starts_from_what_the_log_says():
    shard = Shard()
    shard.batch(command(shard, control(Members, replicas=["n1", "n2"])))
    shard.deliver()
    shard.batch(command(shard, control(Members, replicas=["n1"])))  # never delivered
    leader = shard.lead("n2", genesis=False)
    assert leader.state.replicas == ("n1", "n2")


def test_only_one_control_record_in_a_transaction():
    def run(transaction: Transaction) -> bytes:
        transaction.control(Prepared, prepared=False, checkpoint="")
        transaction.control(Members, replicas=["n1"])
        return b""

    shard = Shard()
    shard.batch(command(shard, run))
    [answer] = responses(shard.deliver())
    assert answer.startswith(b"failed|" + Refused.__name__.encode() + b": a second control record, Members")
    assert shard.replica.state.replicas == tuple(NODES)


def test_a_command_that_is_refused_logs_nothing():
    shard = Shard()

    def run(transaction: Transaction) -> bytes:
        transaction.control(Members, replicas=["n1"])
        raise ValueError("no")

    shard.batch(command(shard, run))
    shard.deliver()
    assert shard.leader.state.replicas == shard.replica.state.replicas == tuple(NODES)
    assert not [one for one in effective_records(shard.node) if isinstance(one.record, Members)]


# Prepared.


def test_a_prepared_shard_refuses_writes_at_once_and_changes_nothing():
    shard = Shard()
    shard.do(put(b"a", b"1"))
    prepare(shard)
    before, end = shard.leader.index, len(shard.log.entries)
    at_once = shard.batch(propose(put(b"b", b"1"), sent_ms=START_MS))[0]
    assert at_once is not None
    assert at_once.response.startswith(b"prepared|the shard is prepared for an upgrade (checkpoint v2)")
    assert (shard.leader.index, len(shard.log.entries)) == (before, end)
    assert shard.node.store.get("things", b"b") is None


def test_what_was_executed_before_is_answered_and_what_comes_behind_is_refused():
    shard = Shard()
    shard.execute(propose(put(b"a", b"1")))
    prepare_command = command(shard, prepare_body)
    assert shard.leader.take(prepare_command, shard.clock.elapsed_ms()) is Wait.SEAL
    shard.append(*shard.leader.seal())
    assert shard.leader.take(prepare_command, shard.clock.elapsed_ms()) is Wait.SETTLE
    assert responses(shard.deliver()) == [b"done 1"]
    at_once = shard.batch(prepare_command, propose(put(b"b", b"1")))
    assert [one is not None for one in at_once] == [False, True]
    assert responses(shard.deliver()) == [b"prepared"]
    shard.catch_up()
    for node in shard.nodes.values():
        checkpoint = node.store.checkpoints["v2"]
        assert dict(checkpoint.iterate("things", b"")) == {b"a": b"1"}
        assert node.replica.state.prepared == "v2"
        assert_sound(node.replica)


def test_a_prepared_shard_refuses_what_is_expired_by_the_clock_but_not_by_its_batch():
    shard = Shard()
    prepare(shard)
    shard.execute(command(shard, lambda _: b"opens a batch"))
    sent_ms = shard.leader.timestamp_ms(shard.clock.elapsed_ms())
    shard.clock.advance(REQUEST_LIFETIME_MS)
    at_once = shard.execute(propose(put(b"b", b"1"), sent_ms=sent_ms))
    assert at_once is not None
    assert at_once.response.startswith(b"prepared|")


def test_a_prepared_shard_refuses_what_was_sent_ahead_of_its_batch_but_not_of_the_clock():
    """Its client tries again, and may be heard once the shard takes writes; "expired" would be the last word."""
    shard = Shard()
    prepare(shard)
    shard.execute(command(shard, lambda _: b"opens a batch"))
    opened_ms = shard.leader.timestamp_ms(shard.clock.elapsed_ms())
    shard.clock.advance(1)
    at_once = shard.execute(propose(put(b"b", b"1"), sent_ms=opened_ms + REQUEST_LIFETIME_MS))
    assert at_once is not None
    assert at_once.response.startswith(b"prepared|")


def test_a_repeated_request_gets_its_recorded_answer_from_a_prepared_shard():
    shard = Shard()
    assert shard.do(put(b"a", b"1"), call=7) == b"done 1"
    prepare(shard)
    again = shard.execute(propose(put(b"a", b"1"), call=7))
    assert again is not None
    assert again.response == b"done 1"


def test_an_expired_request_is_told_so_by_a_prepared_shard():
    shard = Shard()
    prepare(shard)
    shard.clock.advance(6 * 60_000)
    assert shard.batch(propose(put(b"b", b"1"), sent_ms=START_MS)) == [None]
    assert responses(shard.deliver())[0].startswith(b"expired")


def test_prepared_survives_a_change_of_leader_and_is_cancelled():
    shard = Shard()
    prepare(shard)
    shard.lead("n2", genesis=False)
    assert shard.execute(propose(put(b"b", b"1"))) is not None
    shard.batch(command(shard, cancel_body))
    shard.deliver()
    assert shard.do(put(b"b", b"1")) == b"done 3"


def test_the_checkpoint_of_a_prepare_holds_that_it_is_prepared():
    shard = Shard()
    prepare(shard)
    batch = decode(shard.log.entries[-1].value)
    assert isinstance(batch, Batch)
    assert batch.operations == [Checkpoint(name="v2")]
    assert shard.node.store.checkpoints["v2"].get("transactionInfoTable", b"#PREPARED") is not None


# Levels.


def test_a_leader_below_the_latest_level_writes_the_earlier_schemas():
    shard = Shard(genesis=False)
    first = shard.leader.genesis(CLUSTER, NODES)
    assert first is not None
    shard = Shard(genesis=False)
    shard.append(
        shard.leader._append(
            Genesis(
                **shard.leader._records.header(), cluster=CLUSTER, shard=0, shards=1, replicas=NODES,
                column_families=list(shard.replica.families.names), feature_level=INITIAL,
            )
        )
    )  # fmt: skip
    shard.deliver()
    older = shard.log.entries[-1].value
    assert older[2:10] != first.value[2:10], "another version of the schema"
    assert shard.replica.state.feature_level == INITIAL
    shard.lead("n2", genesis=False)
    shard.batch(command(shard, control(FeatureLevel, level=LATEST)))
    shard.deliver()
    assert shard.leader.state.feature_level == shard.replica.state.feature_level == LATEST
