"""Scenarios, each of which teaches one rule of the log's contract. What comes of them, the product says."""

from __future__ import annotations

from collections.abc import Callable

from replicated_db.core.ports import DeliveryReport
from schemas.codecs.codec import decode, encode
from schemas.column_families import VOLUME_TABLE
from schemas.records.log import LATE_MODE, Batch, LeaderClaim, Tick
from schemas.records.messages import CreateBucket, CreateVolume, SetRequestMode, SetVolumeProperty
from tests.simulation.transcripts.rendering import Stage

Play = Callable[[Stage], None]

SCENARIOS: dict[str, Play] = {}
"""By name; the docstring of each says what it shows and which section of docs/design.md holds."""

VOLUME = CreateVolume(volume="vol")


def scenario(play: Play) -> Play:
    """Register a scenario under its function's name."""
    SCENARIOS[play.__name__] = play
    return play


def bucket(name: str) -> CreateBucket:
    return CreateBucket(volume="vol", bucket=name)


def begin(stage: Stage) -> None:
    """Most scenarios begin so."""
    stage.step("n1 is told that the shard is its own. It claims, and leads.")
    stage.lead("n1")


def begin_with_volume(stage: Stage) -> None:
    begin(stage)
    stage.step("Client 1 asks for a volume.")
    stage.call(VOLUME)
    stage.settle("n1")


def two_batches_in_flight(stage: Stage) -> None:
    """The first holds one request, the second, sealed when it was full, three."""
    stage.step("Client 1 asks for a bucket; n1 executes and appends at once, being idle. Three more requests follow.")
    stage.call(bucket("one"))
    stage.run("n1")
    for name in ("two", "three", "four"):
        stage.call(bucket(name))
    stage.run("n1")
    stage.show_in_flight("n1")


@scenario
def one_write(stage: Stage) -> None:
    """A request becomes one record. The leader executes it first, against its own rows. The record carries the rows
    that come out and the answer. The answer leaves only when the record is effective (it counts, and so does all
    before it) and applied at the leader. The followers execute nothing: they compare what each row replaces, and
    write it. docs/design.md, sections 3 and 4."""
    stage.step(
        "n1 is told that the shard is its own. It reads to the end of the log, then appends a claim of the next term."
    )
    stage.nodes["n1"].lead()
    stage.run("n1")
    stage.show_in_flight("n1")
    stage.step(
        "The claim lands. Only as n1 reads it as valid does it lead; its first records fix the shard and publish "
        "digests."
    )
    stage.settle("n1")
    stage.step("Client 1 asks for a volume. n1 executes that and appends a batch. Nothing leaves yet.")
    stage.call(VOLUME)
    stage.run("n1")
    stage.show_in_flight("n1")
    stage.step(
        "The batch lands, right behind n1's last record, and the report says so. n1 applies it, and the answer leaves."
    )
    stage.in_flight("n1").deliver()
    stage.run("n1")
    stage.step("n2 and n3 read the record, now or much later. The chain says that they have read the same log.")
    stage.run("n2", "n3")


@scenario
def a_linearizable_read(stage: Stage) -> None:
    """Any replica can answer a linearizable read. It asks the leader for a read index: a record of the leader's own
    that was appended after the question came, and took effect. That record proves that the leader still led. The
    replica answers when it has read that far. docs/design.md, section 5."""
    begin_with_volume(stage)
    stage.step("A reader asks n2. n2 asks n1 for a read index, and n1, having nothing else to append, appends a Tick.")
    stage.read("n2")
    stage.run_together()
    stage.show_in_flight("n1")
    stage.step("The Tick lands and is effective, so n1 names it as the read index. n2 reads up to it, and answers.")
    stage.in_flight("n1").deliver()
    stage.run_together()


@scenario
def the_leader_dies_in_mid_batch(stage: Stage) -> None:
    """What has landed counts, whoever had appended it. What has not is executed again by the next leader, from the
    same requests. No client can tell which of its calls was which: each has one effect and one answer.
    docs/design.md, sections 3 and 4."""
    begin_with_volume(stage)
    two_batches_in_flight(stage)
    stage.step("The first batch lands, and the second one is still under way. n1 dies before it hears of either.")
    stage.in_flight("n1").land()
    stage.nodes["n1"].crash()
    stage.step(
        "n2 claims. It reads the first batch before its claim: that counts. It resumes behind the requests of "
        "that batch."
    )
    stage.lead("n2")
    stage.step("The second batch of n1 arrives after all. Its term is over.")
    stage.world.log.append(stage.world.log.orphans.pop())
    stage.run()
    stage.step("The client of the first batch, which has no answer, sends the same bytes again.")
    stage.world.send(stage.world.past_requests[1])
    stage.settle("n2")


@scenario
def a_zombie_wakes(stage: Stage) -> None:
    """A leader that stood still does not know that another one leads. It may append what it likes: the log's order
    decides, and a record of an earlier term is void for every reader. It answers nothing, for none of its records
    is effective. docs/design.md, section 3."""
    begin_with_volume(stage)
    stage.step(
        "Client 1 asks for a bucket. n1 executes that, appends a batch, and stands still, as a paused machine does."
    )
    stage.call(bucket("one"))
    stage.run("n1")
    stage.nodes["n1"].running = False
    stage.show_in_flight("n1")
    stage.step("The shard goes to n2. It finds the request in om.requests, executes it, and answers.")
    stage.lead("n2")
    stage.step("n1's batch lands.")
    stage.in_flight("n1").deliver()
    stage.run()
    stage.step(
        "n1 wakes, and hears that its batch has landed, but not right behind its last record. It reads what lies "
        "between."
    )
    stage.nodes["n1"].running = True
    stage.run("n1")


@scenario
def a_retry_across_leaders(stage: Stage) -> None:
    """The batch that executes a request also writes its retry row, with the answer. The row is replicated like every
    other. So whoever leads when the same bytes come again gives the first answer, and executes nothing.
    docs/design.md, section 4."""
    begin_with_volume(stage)
    stage.step("The answer is lost on its way. n1 dies, and n2 leads.")
    stage.world.responses.clear()
    stage.nodes["n1"].crash()
    stage.lead("n2")
    stage.step("Client 1 sends the same bytes again. n2 finds the retry row.")
    stage.world.send(stage.world.past_requests[0])
    stage.settle("n2")
    stage.step("Another client asks for the same volume: that is another call, and is executed.")
    stage.call(VOLUME, client=2)
    stage.settle("n2")


@scenario
def a_replica_diverges(stage: Stage) -> None:
    """Each operation names the hash of the row that it replaces. A replica that holds another row finds that out when
    the first operation touches it. It flags itself and says so, goes on applying, and serves no linearizable reads.
    docs/design.md, section 3."""
    begin_with_volume(stage)
    stage.step("A row of n3 changes on its disk, and nothing in the log says so.")
    node, key = stage.nodes["n3"], b"/vol"
    row = node.store.get(VOLUME_TABLE, key)
    assert row is not None
    node.store.damage(VOLUME_TABLE, key, row + b"!")
    stage.world.invariants.tainted["n3"] = (VOLUME_TABLE, key)
    stage.step("A request that touches other rows: n3 finds nothing yet.")
    stage.call(bucket("one"))
    stage.settle("n1")
    stage.step("A request that changes that very row.")
    stage.call(SetVolumeProperty(volume="vol", owner="somebody", quota_in_namespace=None))
    stage.settle("n1")
    stage.step("A linearizable read at n3.")
    stage.read("n3")
    stage.run_together()


@scenario
def a_lost_claim(stage: Stage) -> None:
    """Two nodes claim the same term, because both believe that the shard is theirs. The first claim in the log is
    valid, the other one void. Nobody has to agree on anything: each candidate reads its own claim from the log.
    docs/design.md, section 3."""
    stage.step("n1 and n2 are both told that the shard is theirs.")
    for name in ("n1", "n2"):
        stage.nodes[name].lead()
    stage.run("n1", "n2")
    stage.show_in_flight("n1")
    stage.show_in_flight("n2")
    stage.step("n2's claim lands first, then n1's. Both have error-free reports.")
    stage.in_flight("n2").deliver()
    stage.in_flight("n1").deliver()
    stage.run()
    stage.step("n2 leads.")
    stage.settle("n2")


@scenario
def a_batch_that_is_a_twin(stage: Stage) -> None:
    """A candidate that did not wait to read its own claim appends under a term that another one has. The random nonce
    tells them apart: a record counts only with the valid claim's. docs/design.md, section 3."""
    begin(stage)
    stage.step("A record of the same term, the right seq and the right chain lands, but with another nonce.")
    truth = stage.world.truth
    twin = Tick(term=truth.term, nonce=bytes(15) + b"\x09", seq=truth.seq + 1, prev_chain=truth.chain)
    stage.world.log.append(encode(twin))
    stage.run()
    stage.step(
        "Client 1 asks for a volume. n1's batch has the seq that the twin had. It lies one further than n1 "
        "expects, so n1 reads."
    )
    stage.call(VOLUME)
    stage.settle("n1")


@scenario
def a_gap_and_a_duplicate(stage: Stage) -> None:
    """Records count in the order of their seq. If one never lands, what lies behind it under that nonce is void. The
    leader appends nothing more under it: it drops what it had executed, claims anew and executes the requests
    again. docs/design.md, section 3."""
    begin_with_volume(stage)
    two_batches_in_flight(stage)
    stage.step("The first batch never arrives; the second one lands. n1 is told of both.")
    appender = stage.in_flight("n1")
    token, _ = appender.in_flight.pop(0)
    appender.arrived.append(DeliveryReport(token=token, offset=-1, timestamp_ms=0, error="timed out"))
    appender.deliver()
    stage.run()
    stage.step("n1 claims again, finds the requests in om.requests, and executes them.")
    stage.lead("n1")
    stage.step(
        "The last batch lands a second time. n1's follower leaves records of n1's own claim to its leader, which reads "
        "them when it must."
    )
    values = [entry.value for entry in stage.world.log.entries]
    stage.world.log.append(next(value for value in reversed(values) if isinstance(decode(value), Batch)))
    stage.run()


@scenario
def late_validation(stage: Stage) -> None:
    """For request types that an operator has switched, the log holds the requests, and every replica executes them, at
    the same index and the same time. All come to the same rows, and the leader's answer is what its own replica
    came to. docs/design.md, section 6."""
    begin_with_volume(stage)
    stage.step(
        "An operator switches CreateBucket. The mode is a record of the log, so it begins at one place for everybody."
    )
    stage.call(SetRequestMode(shard=0, request_type="CreateBucket", mode=LATE_MODE), client=2)
    stage.settle("n1")
    stage.step("Client 1 asks for a bucket twice, in two calls: the second is refused, by each replica for itself.")
    stage.call(bucket("one"))
    stage.call(bucket("one"))
    stage.settle("n1")


@scenario
def a_lost_tail(stage: Stage) -> None:
    """The brokers lose records that nodes have read, and others land in their place. A node that has read past that
    place is on another log than everybody else. A claim commits to nothing before it, so a candidate reads again
    from its last counting record to its claim. If another chain comes out, it stops before it appends anything.
    docs/design.md, sections 3 and 11; decision 0016."""
    begin(stage)
    world = stage.world
    stage.step("A void record lands, and all read it.")
    end = len(world.log.entries)
    twin = Tick(term=world.truth.term, nonce=bytes(15) + b"\x09", seq=world.truth.seq + 1, prev_chain=world.truth.chain)
    world.log.append(encode(twin))
    stage.run()
    stage.step(
        "The brokers lose it. A batch of n1 lands in its place: it counts, but all nodes have read past its offset."
    )
    world.log.cut(end)
    world.invariants.diverged |= dict.fromkeys(stage.nodes, "has read what was lost")
    stage.call(VOLUME)
    stage.settle("n1")
    stage.step("n2 is told to lead. Its claim is valid. Reading once more, it finds the batch, and ends itself.")
    stage.nodes["n2"].lead()
    stage.settle("n2")


@scenario
def a_missed_claim(stage: Stage) -> None:
    """Some records cannot be read past. A claim that skips a term proves that another claim is missing from this log.
    Every replica stops there, and stays stopped: a person must find out which log is the right one. docs/design.md,
    section 3."""
    begin_with_volume(stage)
    stage.step("A claim of term 3 lands, while term 1 is the current one.")
    stage.world.invariants.may_halt += ("halt: claim missed",)
    claim = LeaderClaim(term=3, nonce=bytes(15) + b"\x09", node="n2", address="n2", claimed_at_ms=0)
    stage.world.log.append(encode(claim))
    stage.run()
