"""What a block's writer believes of errors; streams and failures of all kinds are in ``test_key_files``."""

import pytest

from producers.blocks.block_writer import BlockWriter
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
