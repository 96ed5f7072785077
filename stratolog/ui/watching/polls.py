"""What nodes and datanodes answer over HTTP, asked side by side; None for who does not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from stratolog.configuration.settings import Settings
from stratolog.nodes.answers import node_answer, node_status

MAX_ASKED_TOGETHER = 16
MAX_VOLUMES = 50
"""Volumes whose buckets are read; the summary says if there are more."""
MAX_BUCKETS = 1_000
"""Buckets that are read of each volume: one page."""

Json = dict[str, Any]


class Polls:
    """Asks a cluster; keeps a pool of threads for it. Close it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=MAX_ASKED_TOGETHER, thread_name_prefix="ui-ask")

    def nodes(self, settings: Settings) -> dict[str, Json | None]:
        """Return each node's ``/status``."""
        return self._statuses({node.name: node.address for node in settings.nodes})

    def datanodes(self, addresses: Mapping[str, str]) -> dict[str, Json | None]:
        """Return each datanode's ``/status``, by names and the addresses of their HTTP servers."""
        return self._statuses(addresses)

    def _statuses(self, addresses: Mapping[str, str]) -> dict[str, Json | None]:
        answers = self._pool.map(node_status, addresses.values())
        return dict(zip(addresses, answers, strict=True))

    def fleet(self, settings: Settings, living: Sequence[str]) -> tuple[list[Json], list[Json]]:
        """Return datanodes and pipelines as the first of the ``living`` nodes that answers tells them."""
        return self._first(settings, living, "datanodes"), self._first(settings, living, "pipelines")

    def _first(self, settings: Settings, living: Sequence[str], what: str) -> list[Json]:
        for name in living:
            if (answer := node_answer(settings.node(name).address, f"/v1/{what}?consistency=stale")) is not None:
                return list(answer[what])
        return []

    def buckets(self, settings: Settings, living: Sequence[str]) -> tuple[list[Json], bool]:
        """Return the buckets with their usage, and whether there are more than are read; stale, from one node."""
        for name in living:
            address = settings.node(name).address
            page = node_answer(address, f"/v1/volumes?consistency=stale&limit={MAX_VOLUMES}")
            if page is None:
                continue
            found: list[Json] = []
            cut = bool(page["truncated"])
            for volume in page["entries"]:
                path = f"/v1/volumes/{quote(volume['volume'], safe='')}/buckets?consistency=stale&limit={MAX_BUCKETS}"
                answer = node_answer(address, path) or {"entries": [], "truncated": True}
                found += answer["entries"]
                cut = cut or bool(answer["truncated"])
            return found, cut
        return [], False

    def close(self) -> None:
        """End the threads, without waiting for answers."""
        self._pool.shutdown(wait=False, cancel_futures=True)
