"""A process that writes blocks until it is killed, and says what it was told is stored: ``python -m tests.support.datanodes.block_writing FOLDER FSYNC SEED``.

Each line of its output is ``local id, length``: a flush (under ``packet``, a write) up to there has returned. Blocks are written in random
order, in packets of random sizes, each stream going on a little before where the last one ended. The bytes of a block are its own
(:func:`content`), so whoever finds them can tell whether they are right.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from datanode_processors.blocks.block_store import BlockStore

CELL = 4096
CONTAINER = 1
BLOCKS = 12
BLOCK_BYTES = 1_000_003
MAX_PACKET_BYTES = 3 * CELL
MAX_STREAM_PACKETS = 40


def content(local_id: int) -> bytes:
    """Return all the bytes of a block."""
    return random.Random(local_id).randbytes(BLOCK_BYTES)


def main() -> None:
    """Write until killed, or until all blocks are complete."""
    folder, fsync, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    store, chance = BlockStore(folder, fsync=fsync), random.Random(seed)
    left = set(range(BLOCKS))
    while left:
        local_id = chance.choice(sorted(left))
        data = content(local_id)
        offset = max(0, store.written_length(CONTAINER, local_id) - chance.randrange(2 * CELL))
        with store.open_writer(CONTAINER, local_id, offset, CELL) as writer:
            for _ in range(chance.randint(1, MAX_STREAM_PACKETS)):
                piece = data[offset : offset + chance.randint(1, MAX_PACKET_BYTES)]
                writer.write(offset, piece)
                offset += len(piece)
                if fsync == "packet" or chance.random() < 0.1:
                    writer.flush()
                    print(local_id, store.stored_length(CONTAINER, local_id), flush=True)
        if offset == len(data):
            left.discard(local_id)


if __name__ == "__main__":
    main()
