"""A node whose disk can be made to hang: ``python hanging_node.py NAME`` runs the real node, its store's port wrapped.

While ``shard-N.hang`` lies beside the database of shard N, a write to that database does not return, as on a disk that
answers no more; reads go on. All else is the node as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from om_processors import node
from replicated_db.core.ports import Write
from replicated_db.shell.rocks import RocksStore
from stratolog.configuration.loading import load_settings
from stratolog.configuration.node_configs import node_config

POLL_S = 0.02


def hang_file(database: Path) -> Path:
    return database.with_name(database.name + ".hang")


class HangingStore(RocksStore):
    def write(self, writes: Iterable[Write]) -> None:
        while hang_file(self.path).exists():
            time.sleep(POLL_S)
        super().write(writes)


if __name__ == "__main__":
    node.RocksStore = HangingStore  # type: ignore[attr-defined]
    node.run(node_config(load_settings(), sys.argv[1]))
