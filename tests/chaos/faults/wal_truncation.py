"""The write-ahead log of a replica's RocksDB loses its tail while the replica does not run: cut within the newest file.

What must hold: it opens (point-in-time recovery), stands at an older position with the data of exactly that position, replays from the
log what it lost, and is equal to the others. Nothing that was acknowledged depends on one replica's disk.
"""

from __future__ import annotations

from stratolog.drills.kit.rebuild import stored_offset
from tests.chaos.campaign import Chaos, Fault
from tests.chaos.damage import shard_folder, truncate
from tests.support.faults.stack_faults import database

MIN_WAL_BYTES = 32 * 1024


def inject(chaos: Chaos, _round: int) -> None:
    stack = chaos.stack
    victim = chaos.random.choice(chaos.followers())
    folder = shard_folder(chaos, victim)

    def written() -> bool:
        return max((path.stat().st_size for path in folder.glob("*.log")), default=0) >= MIN_WAL_BYTES

    stack.wait(f"{victim} has written {MIN_WAL_BYTES} bytes to its WAL", written)
    before = chaos.applied(victim)
    stack.kill_node(victim)
    newest = max(folder.glob("*.log"), key=lambda path: int(path.stem))
    size = newest.stat().st_size
    truncate(newest, chaos.random.randrange(size // 10, size // 2))
    with database(stack, victim, 0) as store:
        stored = stored_offset(store)
    assert stored < before, f"{victim} had applied offset {before}, and stands at {stored} with half of its WAL gone"
    stack.start_node(victim)
    chaos.wait_caught_up(victim)
    view = stack.shard(victim, 0)
    assert view["records_applied"] + view["records_void"] >= before - stored, f"not replayed from {stored}: {view}"
    chaos.wait_progress()


FAULT = Fault(name="wal-truncation", inject=inject)
