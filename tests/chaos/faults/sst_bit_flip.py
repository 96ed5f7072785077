"""One bit flipped in an SST file of a replica that does not run; then it starts.

What must hold: the damage is found by RocksDB's block checksum, at the latest by the next scrub, and the node stops with an error that
names the file: it neither serves nor repeats what it read. Its database removed, it is rebuilt from the log and is equal to the others.
"""

from __future__ import annotations

from pathlib import Path

from schemas.column_families import DELETED_TABLE, KEY_TABLE, RETRY_TABLE
from tests.chaos.campaign import Chaos, Fault, Load
from tests.chaos.damage import LogMark, flip_bit, shard_folder, wait_stopped, wipe
from tests.support.faults.stack_faults import database

SCRUB_INTERVAL_MS = 2_000
MIN_SST_BYTES = 8 * 1024
SHARD = 0
ATTEMPTS = 10
TABLES = (KEY_TABLE, RETRY_TABLE, DELETED_TABLE)


def inject(chaos: Chaos, _round: int) -> None:
    stack = chaos.stack
    victim = chaos.random.choice(chaos.followers())
    sst = _sst_of(chaos, victim)
    # Data blocks come first in the file; index, filter and properties are at its end.
    offset = chaos.random.randrange(sst.stat().st_size // 2)
    flip_bit(sst, offset)
    mark = LogMark(chaos, victim)
    stack.start_node(victim)
    said = wait_stopped(chaos, victim, mark)
    assert "Corruption" in said, said
    assert sst.name in said, said
    wipe(chaos, victim)
    stack.start_node(victim)
    chaos.wait_caught_up(victim)
    chaos.wait_progress()


def _sst_of(chaos: Chaos, victim: str) -> Path:
    """Kill a node and return an SST of it that a scrub reads."""
    for _ in range(ATTEMPTS):
        chaos.stack.kill_node(victim)
        with database(chaos.stack, victim, SHARD):
            pass  # opening it writes what is in the WAL to SSTs
        if found := sorted(path for path in shard_folder(chaos, victim).glob("*.sst") if _is_scrubbed(path)):
            return chaos.random.choice(found)
        chaos.stack.start_node(victim)
        chaos.wait_caught_up(victim)
        chaos.wait_progress()
    raise AssertionError(f"{victim} has no SST of {MIN_SST_BYTES} bytes")


def _is_scrubbed(path: Path) -> bool:
    """Say whether an SST is large enough and of a family whose rows are in the digests; its properties name the family."""
    content = path.read_bytes()
    return len(content) >= MIN_SST_BYTES and any(table.encode() in content[-4096:] for table in TABLES)


# Each round replays the log from its beginning, with all its scrubs, while the writers go on: a long log would be all that is waited for.
FAULT = Fault(
    name="sst-bit-flip", inject=inject, load=Load(rate=15.0), settings=(("scrub_interval_ms", SCRUB_INTERVAL_MS),)
)
