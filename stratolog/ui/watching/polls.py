"""What nodes and datanodes answer over HTTP, asked side by side; None for who does not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from schemas.column_families import DELETED_TABLE, OPEN_KEY_TABLE
from stratolog.configuration.settings import Settings
from stratolog.nodes.answers import node_answer, node_status
from stratolog.ui.core.observed import RowCount

MAX_ASKED_TOGETHER = 16
MAX_VOLUMES = 50
"""Volumes whose buckets are read; the summary says if there are more."""
MAX_BUCKETS = 1_000
"""Buckets that are read of each volume: one page."""
MAX_COUNTED = 10_000
"""Rows of a family that are counted in all shards together; the page says if there are more."""
LEAST_COUNTED = 100
"""Rows that are counted of each shard however many shards there are."""
COUNTED = (OPEN_KEY_TABLE, DELETED_TABLE)

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

    def waiting(self, settings: Settings, living: Sequence[str]) -> dict[str, RowCount]:
        """Return how many rows each family of COUNTED has; none of a family that no node counts (older nodes)."""
        limit = max(LEAST_COUNTED, MAX_COUNTED // settings.shards)
        asked = [(cf, shard) for cf in COUNTED for shard in range(settings.shards)]

        def count(place: tuple[str, int]) -> Json | None:
            path = f"/v1/shards/{place[1]}/count?cf={place[0]}&limit={limit}"
            answers = (node_answer(settings.node(name).address, path) for name in living)
            return next((answer for answer in answers if answer is not None), None)

        found: dict[str, list[Json | None]] = {cf: [] for cf in COUNTED}
        for (cf, _), answer in zip(asked, self._pool.map(count, asked), strict=True):
            found[cf].append(answer)
        return {cf: _summed(answers) for cf, answers in found.items() if any(answers)}

    def close(self) -> None:
        """End the threads, without waiting for answers."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _summed(answers: Sequence[Json | None]) -> RowCount:
    counted = [answer for answer in answers if answer is not None]
    is_cut = len(counted) < len(answers) or any(answer["more"] for answer in counted)
    return RowCount(sum(int(answer["rows"]) for answer in counted), is_cut)
