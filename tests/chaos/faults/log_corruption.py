"""One bit flipped in a closed segment of ``om.log``, on the disk of the broker that leads the partition.

What Kafka does: it serves the damaged batch as it is; neither the broker nor its in-sync followers read it again. What must hold: readers find it
by its checksum, stop, and name the offset: a node that replays the log from its beginning (aiokafka), and a reader of the log by
librdkafka. The latter may be aborted by its library instead, which says nothing of the offset: after a wrong checksum librdkafka goes on at
a wrong place of the answer, and ends the process if zeros lie there. (``tests/unit/replicated_db/shell/test_kafka_log.py`` shows it without
a disk.) Nothing of the batch is applied. Nodes that had read it before go on.
With the broker's copy of the partition removed, it copies the others' again, and the node that had stopped reads on and is equal to the others.
"""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from schemas.topics import OM_LOG
from tests.chaos.brokers import data_folder, is_in_sync, leader_of_log, wait_in_sync
from tests.chaos.campaign import PATIENCE_S, Chaos, Fault
from tests.chaos.damage import LogMark, flip_bit, wait_stopped, wipe
from tests.support.local.stack import TestStack

SHARD = 0
SEGMENT_MS = 2_000
HEADER = struct.Struct(">qi")
"""Base offset and length of what follows: the first twelve bytes of a record batch."""
BATCH_HEADER_BYTES = 61
"""What lies before a batch's records; the checksum covers all but the first 21."""
READING = """
import sys
from tests.support.logs.judged_log import LogReader
for _ in LogReader().read(sys.argv[1], int(sys.argv[2])):
    pass
"""
ABORTED = "rd_slice_narrow_copy: Assertion"
"""What librdkafka says when it ends the process."""


def inject(chaos: Chaos, _round: int) -> None:
    stack = chaos.stack
    _close_segments_soon(stack)
    victim = chaos.random.choice(chaos.followers())
    stack.kill_node(victim)
    wipe(chaos, victim, SHARD)
    # Whatever batch is damaged: the others have read it.
    chaos.wait_all_caught_up()
    broker = leader_of_log(stack, SHARD)
    segment = _closed_segment(chaos, broker)
    base, begin, end = chaos.random.choice([one for one in _batches(segment) if one[2] - one[1] > BATCH_HEADER_BYTES])
    flip_bit(segment, chaos.random.randrange(begin + BATCH_HEADER_BYTES, end))
    mark = LogMark(chaos, victim)
    stack.start_node(victim)
    said = wait_stopped(chaos, victim, mark)
    assert f"offset {base} fails its checksum" in said, (base, said)
    _check_reader_stops(stack, base)
    chaos.wait_progress()
    _rebuild_replica_of(chaos, broker)
    stack.start_node(victim)
    chaos.wait_caught_up(victim)
    chaos.wait_progress()


def _check_reader_stops(stack: TestStack, base: int) -> None:
    """Read the log by librdkafka, in a process of its own: it must not come past the batch at offset ``base``."""
    command = [sys.executable, "-c", READING, stack.settings.bootstrap_servers, str(SHARD)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if ended.returncode == -signal.SIGABRT:
        assert ABORTED in ended.stderr, ended.stderr
    else:
        assert ended.returncode == 1, (ended.returncode, ended.stderr)
        assert f"BrokenLog: {OM_LOG}/{SHARD}: the record at offset {base} fails" in ended.stderr, ended.stderr


def _close_segments_soon(stack: TestStack) -> None:
    entry = ConfigEntry("segment.ms", str(SEGMENT_MS), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, OM_LOG, incremental_configs=[entry])
    for future in stack.kafka.admin.incremental_alter_configs([resource]).values():
        future.result()


def _closed_segment(chaos: Chaos, broker: int) -> Path:
    """Wait for segments that are closed, and choose one of them; the last one is being written to."""
    folder = data_folder(chaos.stack, broker) / f"{OM_LOG}-{SHARD}"

    def closed() -> list[Path]:
        found = sorted(folder.glob("*.log"))[:-1]
        return [path for path in found if any(True for _ in _batches(path))]

    found: list[Path] = chaos.stack.wait(f"closed segments of {OM_LOG}/{SHARD}", closed)
    return chaos.random.choice(found)


def _batches(segment: Path) -> Iterator[tuple[int, int, int]]:
    """Iterate over (base offset, first byte, byte behind the last) of a segment's record batches."""
    content = segment.read_bytes()
    begin = 0
    while begin + HEADER.size <= len(content):
        base, length = HEADER.unpack_from(content, begin)
        end = begin + HEADER.size + length
        if length <= 0 or end > len(content):
            return
        yield base, begin, end
        begin = end


def _rebuild_replica_of(chaos: Chaos, broker: int) -> None:
    """Do what an operator does: stop the broker, remove its copy of the partition, start it, wait until it is in sync."""
    stack = chaos.stack
    stack.kafka.kill_broker(broker)
    stack.wait(
        f"broker {broker} is out of sync",
        lambda: not is_in_sync(stack, broker, SHARD),
    )
    shutil.rmtree(data_folder(stack, broker) / f"{OM_LOG}-{SHARD}")
    stack.kafka.start_broker(broker)
    wait_in_sync(stack)


FAULT = Fault(name="log-corruption", inject=inject)
