"""What a block's writer believes of errors; streams and failures of all kinds are in ``test_key_files``."""

import pytest

from producers.blocks.background_commits import BlockFailed
from producers.blocks.block_writer import BlockWriter
from producers.blocks.core import stream_recovery
from producers.blocks.core.stream_recovery import MAX_FUTILE_RESUMES
from producers.blocks.datanode_directory import PipelineView
from producers.blocks.datanodes import Datanodes
from producers.blocks.stream_options import StreamOptions
from producers.errors import DatanodeError
from schemas import stream_errors
from schemas.records.datanode import Member
from schemas.records.packets import CELL_BYTES
from schemas.records.rows import BlockLocation


@pytest.mark.parametrize(
    "status",
    [stream_errors.OUT_OF_ORDER, stream_errors.OVERLOADED, stream_errors.FAILED, stream_errors.DOWNSTREAM_FAILED],
)
def test_only_an_error_of_the_tree_says_what_all_replicas_have(status):
    """A datanode of an earlier version gives its own length with errors of its store."""
    members = tuple(
        Member(datanode=f"dn{number}", address="", http_address="", rack="/r") for number in range(3)
    )  # fmt: skip
    location = BlockLocation(container_id=1, local_id=1, offset=0, length=100 * CELL_BYTES, pipeline="pipeline-1")
    view = PipelineView(pipeline="pipeline-1", partition=1, state="OPEN", members=members)
    writer = BlockWriter(location, view, Datanodes(), StreamOptions())
    writer.put(memoryview(bytes(4 * CELL_BYTES)), keep=True)
    for packet in writer.window.next_packets():
        writer.window.on_sent(packet)
    sent = writer.window.sent
    writer._recover(DatanodeError(status, "as if", datanode="dn1", offset=sent))
    all_have = sent if status == stream_errors.DOWNSTREAM_FAILED else 0
    assert sent > 0
    assert (writer.window.acknowledged, writer.window.sent) == (all_have, all_have)


def test_a_stream_that_breaks_again_and_again_goes_on_as_long_as_bytes_get_through(monkeypatch):
    monkeypatch.setattr(stream_recovery, "PAUSE_MS", 0)
    writer = writer_that_asks([])
    error = DatanodeError(stream_errors.NOT_LEADER, "as if", datanode="dn1")
    cell = memoryview(bytes(CELL_BYTES))
    for _ in range(2 * MAX_FUTILE_RESUMES):
        writer.put(cell, keep=True)
        for packet in writer.window.next_packets():
            writer.window.on_sent(packet)
        writer.window.on_acknowledged(writer.window.sent)
        writer._recover(error)
    for _ in range(MAX_FUTILE_RESUMES):
        writer._recover(error)
    with pytest.raises(BlockFailed):
        writer._recover(error)
    assert writer.resumed == 3 * MAX_FUTILE_RESUMES + 1


# -- members that are silent


def test_a_block_leaves_out_who_is_silent_while_a_majority_is_left():
    failing: set[str] = set()
    writer = writer_that_asks([], failing)
    silent = writer._datanodes.silent
    silent.on_silent(writer.pipeline.members[0])
    writer._leave_out_silent()
    assert failing == {"dn1"}
    silent.on_silent(writer.pipeline.members[1])
    writer._leave_out_silent()
    assert failing == {"dn1"}, "recovery finds out what is wrong"


# -- members that moved


def view_of(addresses: dict[str, str]) -> PipelineView:
    members = tuple(
        Member(datanode=name, address=address, http_address="", rack="/r") for name, address in addresses.items()
    )
    return PipelineView(pipeline="pipeline-1", partition=1, state="OPEN", members=members)


OLD = {"dn1": "h1:1", "dn2": "h2:1", "dn3": "h3:1"}
ERROR = DatanodeError(stream_errors.FAILED, "as if", datanode="dn2")


def writer_that_asks(answers: list[PipelineView], failing: set[str] | None = None) -> BlockWriter:
    """Make the writer of a block of 100 cells; without ``answers`` it hears nothing new."""
    location = BlockLocation(container_id=1, local_id=1, offset=0, length=100 * CELL_BYTES, pipeline="pipeline-1")
    return BlockWriter(
        location, view_of(OLD), Datanodes(), StreamOptions(), failing=failing,
        look_again=lambda: answers.pop(0) if answers else view_of(OLD),
    )  # fmt: skip


def addresses_of(writer: BlockWriter) -> dict[str, str]:
    return {member.datanode: member.address for member in writer._members}


def test_a_block_whose_members_moved_goes_on_with_those_and_blames_nobody():
    now = view_of({**OLD, "dn2": "h2:2"})
    failing = {"dn2", "dn3"}
    writer = writer_that_asks([now], failing)
    order = [member.datanode for member in writer._members]
    writer._recover(ERROR)
    assert addresses_of(writer) == {**OLD, "dn2": "h2:2"}
    assert [member.datanode for member in writer._members] == order
    assert writer.pipeline is now
    assert failing == {"dn3"}
    assert writer._committer._members is writer._members, "commits go there too"
    assert writer.resumed == 1


@pytest.mark.parametrize("answer", [OLD, {}, {"dn1": "h1:1"}, {**OLD, "dn9": "h9:1"}])
def test_a_block_of_which_nobody_moved_stays_as_it_is_and_the_datanode_is_blamed(answer):
    failing: set[str] = set()
    writer = writer_that_asks([view_of(answer)], failing)
    before = writer.pipeline
    writer._recover(ERROR)
    assert (addresses_of(writer), writer.pipeline) == (OLD, before)
    assert failing == {"dn2"}


def test_a_member_that_is_not_known_any_more_keeps_its_address():
    writer = writer_that_asks([view_of({"dn1": "h1:2", "dn2": "h2:1", "dn9": "h9:1"})])
    writer._recover(ERROR)
    assert addresses_of(writer) == {"dn1": "h1:2", "dn2": "h2:1", "dn3": "h3:1"}


def test_a_writer_that_cannot_ask_blames_the_datanode():
    location = BlockLocation(container_id=1, local_id=1, offset=0, length=CELL_BYTES, pipeline="pipeline-1")
    failing: set[str] = set()
    writer = BlockWriter(location, view_of(OLD), Datanodes(), StreamOptions(), failing=failing)
    writer._recover(ERROR)
    assert failing == {"dn2"}


def test_a_primary_that_takes_no_stream_for_now_is_not_asked_again_at_once(monkeypatch):
    """It may do better further down in the tree; another leads the next attempt."""
    asked: list[str] = []
    datanodes = Datanodes()

    def refuse(member: Member) -> None:
        asked.append(member.datanode)
        raise DatanodeError(stream_errors.OVERLOADED, "as if", datanode=member.datanode)

    def still(_: object) -> None:
        if len(asked) == 3:
            raise ZeroDivisionError

    monkeypatch.setattr(datanodes, "connect", refuse)
    location = BlockLocation(container_id=1, local_id=1, offset=0, length=4 * CELL_BYTES, pipeline="pipeline-1")
    writer = BlockWriter(location, view_of(OLD), datanodes, StreamOptions(), still=still)
    writer.put(memoryview(bytes(2 * CELL_BYTES)), keep=True)
    with pytest.raises(ZeroDivisionError):
        writer.push()
    assert asked[0] != asked[1] != asked[2]
