"""Questions that are asked when somebody opens a dialog: a page of the log, the keys of a bucket, their sizes."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from replicated_db.core.ports import Entry, LogUnavailable, OffsetOutOfRange
from replicated_db.shell.kafka.kafka_log import KafkaLog
from schemas.topics import OM_LOG
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable
from stratolog.nodes.answers import node_answer, node_status
from stratolog.nodes.core.leaders import view_of
from stratolog.ui.core.judged_tail import ChainMark, TailRecord, judged_tail
from stratolog.ui.core.storage_rows import SizeHistogram, histogram_of

PAGE_RECORDS = 120
MAX_SIZED_KEYS = 10_000
"""Keys of a bucket whose sizes are read, the first ones by name."""
LISTED_KEYS = 1_000
"""Keys of a page of the nodes' listing, the most that they give."""
READ_WAIT_S = 1.0
SILENT_READS = 5

Json = dict[str, Any]


def log_page(settings: Settings, shard: int, until: ChainMark | None) -> tuple[list[TailRecord], int]:
    """Return a page of a shard's log, judged, and the log's first offset.

    The page ends at ``until``, or without that at the log's end. Raises Unavailable if the brokers do not serve it.
    """
    source = KafkaLog(settings.connection, OM_LOG, shard, "")
    try:
        mark = until or _mark_of(settings, shard)
        first, end = source.bounds()
        stop = end if until is None else min(end, until.offset + 1)
        start = max(first, stop - PAGE_RECORDS)
        entries = _read(source, start, stop)
    except (LogUnavailable, OffsetOutOfRange) as error:
        raise Unavailable(f"{OM_LOG}/{shard}: {error}") from error
    finally:
        source.close()
    return judged_tail(entries, mark, from_first=start == 0 and first == 0), first


def _mark_of(settings: Settings, shard: int) -> ChainMark | None:
    """Return where the chain stands, as the first node that answers tells it."""
    for node in settings.nodes:
        if view := view_of(node_status(node.address), shard):
            return ChainMark(int(view["applied_offset"]), str(view["chain"]))
    return None


def _read(source: KafkaLog, start: int, stop: int) -> list[Entry]:
    entries: list[Entry] = []
    offset, silent = start, 0
    while offset < stop:
        found = source.read(offset, min(PAGE_RECORDS, stop - offset), READ_WAIT_S)
        silent = 0 if found else silent + 1
        if silent == SILENT_READS:
            if entries:
                break  # the last offsets may be markers of a stranger's transaction
            raise LogUnavailable(f"offset {offset} of {stop} is not served")
        entries += [entry for entry in found if entry.offset < stop]
        offset = found[-1].offset + 1 if found else offset
    return entries


def bucket_rows(settings: Settings, shard: int, node: str, cf: str, bucket: int) -> tuple[Json, Json, str]:
    """Return the rows of a digest bucket on a node and on a peer (the leader if that is another one), and the peer.

    Raises Unavailable if one of them does not answer; UsageError for an unknown node.
    """
    target = f"/v1/shards/{shard}/rows?{urlencode({'cf': cf, 'bucket': bucket})}"
    mine = node_answer(settings.node(node).address, target)
    if mine is None:
        raise Unavailable(f"{node} does not tell the rows of {cf}, bucket {bucket}")
    for peer in _peers(settings, shard, node):
        if (other := node_answer(settings.node(peer).address, target)) is not None:
            return mine, other, peer
    raise Unavailable(f"no other node tells the rows of {cf}, bucket {bucket}")


def _peers(settings: Settings, shard: int, node: str) -> list[str]:
    others = [one.name for one in settings.nodes if one.name != node]
    roles = {name: view_of(node_status(settings.node(name).address), shard).get("role") for name in others}
    return sorted((name for name in others if roles[name]), key=lambda name: roles[name] != "leader")


def key_sizes(settings: Settings, volume: str, bucket: str) -> SizeHistogram:
    """Return the sizes of a bucket's first MAX_SIZED_KEYS keys, stale, as the first node that answers lists them.

    Raises Unavailable if no node lists them: none answers, or there is no such bucket.
    """
    path = f"/v1/volumes/{quote(volume, safe='')}/buckets/{quote(bucket, safe='')}/keys"
    for node in settings.nodes:
        if (found := _sizes(node.address, path)) is not None:
            return histogram_of(found[0], is_cut=found[1])
    raise Unavailable(f"no node lists the keys of {volume[:100]}/{bucket[:100]}")


def _sizes(address: str, path: str) -> tuple[list[int], bool] | None:
    """Return the sizes page by page, and whether there are more; None if the node does not list them."""
    sizes: list[int] = []
    query = {"consistency": "stale", "limit": str(LISTED_KEYS)}
    while True:
        page = node_answer(address, f"{path}?{urlencode(query)}")
        if page is None:
            return (sizes, True) if sizes else None
        sizes += [int(entry["size"]) for entry in page["entries"]]
        if not page["truncated"] or len(sizes) >= MAX_SIZED_KEYS:
            return sizes[:MAX_SIZED_KEYS], bool(page["truncated"])
        query["start_after"] = str(page["next_after"])
