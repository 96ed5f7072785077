"""Reads over HTTP from the nodes, with fail-over and consistency (design, section 5).

What belongs here: the addresses, the paths of the nodes' HTTP API, and the way from its JSON to rows. The rules:

1. Any node answers for every shard. The node that answered last is asked first.
2. A node that cannot be reached, or answers 5xx (no leader, not caught up, flagged), is followed by the next;
   after a round of all nodes there is a pause, and at the deadline a RetryableError with the last reason.
3. A 4xx is the answer: RequestFailed with its code.
4. ``session`` reads carry the positions that the client's own responses carried, and see at least those writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

import httpx

from producers.errors import NOT_CONNECTED, NotConnected, RequestFailed, RetryableError
from schemas.result_codes import INTERNAL_ERROR, INVALID_REQUEST
from schemas.rows import BlockLocation, BucketInfo, KeyInfo, VolumeInfo

Consistency = Literal["linearizable", "session", "stale"]
"""``linearizable``: sees every write acknowledged before; ``session``: sees my own; ``stale``: what is there."""
DEFAULT_CONSISTENCY: Consistency = "linearizable"
PAGE_ENTRIES = 1000
"""Entries that a listing asks for at once: the most that a node gives."""
FIRST_PAUSE_MS = 50
LAST_PAUSE_MS = 1_000
REQUEST_TIMEOUT_MS = 10_000
"""How long one node may take for one answer before the next is asked."""
MIN_ASK_S = 0.1
"""Even at the deadline a node gets this long, so that the error names what is wrong with it."""

Row = TypeVar("Row", VolumeInfo, BucketInfo, KeyInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Generic[Row]):
    """A row as a node read it.

    ``info`` is the row, ``usage`` its counters by name, ``positions`` the index at which it was read, by shard.
    """

    info: Row
    usage: Mapping[str, int]
    positions: Mapping[int, int]


VolumeView = View[VolumeInfo]
BucketView = View[BucketInfo]
KeyView = View[KeyInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Row]):
    """A part of a listing: ``next_after`` is where the next one starts, None if this is the last."""

    entries: list[Row]
    next_after: str | None


class Reads:
    """Reads from the nodes at ``addresses`` (``http://host:port``); safe to share between threads.

    ``positions`` returns the (shard, index) of the caller's own writes, for ``session`` reads. Every read raises
    RequestFailed (4xx: VOLUME_NOT_FOUND, …), NotConnected or RetryableError (no answer within ``deadline_ms``).

    >>> reads = Reads(["http://127.0.0.1:9871"], deadline_ms=5000)
    >>> reads.volume_info("vol1", consistency="stale").info.owner  # doctest: +SKIP
    'alice'
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        deadline_ms: int = 60_000,
        positions: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._addresses = [address_of(address) for address in addresses]
        self._deadline_ms = deadline_ms
        self._positions = positions
        self._preferred = 0
        self._http = httpx.Client(timeout=REQUEST_TIMEOUT_MS / 1000, trust_env=False)

    def follow(self, positions: Callable[[], Mapping[int, int]]) -> None:
        """Take the positions of ``session`` reads from here from now on."""
        self._positions = positions

    def close(self) -> None:
        """Close the connections to the nodes."""
        self._http.close()

    def volume_info(self, volume: str, *, consistency: Consistency = DEFAULT_CONSISTENCY) -> VolumeView:
        """Read a volume with its counters ``used_namespace`` and ``allotted_bytes``."""
        return _view(VolumeInfo, self.get(f"/v1/volumes/{_segment(volume)}", {}, consistency))

    def bucket_info(self, volume: str, bucket: str, *, consistency: Consistency = DEFAULT_CONSISTENCY) -> BucketView:
        """Read a bucket with its counters ``used_bytes`` and ``used_namespace``."""
        path = f"/v1/volumes/{_segment(volume)}/buckets/{_segment(bucket)}"
        return _view(BucketInfo, self.get(path, {}, consistency))

    def key_info(
        self, volume: str, bucket: str, key: str, *, consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> KeyView:
        """Read a committed key."""
        path = f"/v1/volumes/{_segment(volume)}/buckets/{_segment(bucket)}/key"
        return _view(KeyInfo, self.get(path, {"name": key}, consistency))

    def list_volumes(
        self, *, prefix: str = "", start_after: str = "", consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> Iterator[VolumeInfo]:
        """Iterate over the volumes of all shards by name; each page is read as it is needed.

        A page is a snapshot of each shard, not of all together, and pages are read at different times.
        """
        return self._pages(lambda after: self.volumes_page(prefix, after, consistency), start_after)

    def list_buckets(
        self, volume: str, *, prefix: str = "", start_after: str = "", consistency: Consistency = DEFAULT_CONSISTENCY
    ) -> Iterator[BucketInfo]:
        """Iterate over a volume's buckets by name; each page is read as it is needed."""
        return self._pages(lambda after: self.buckets_page(volume, prefix, after, consistency), start_after)

    def list_keys(
        self,
        volume: str,
        bucket: str,
        *,
        prefix: str = "",
        start_after: str = "",
        consistency: Consistency = DEFAULT_CONSISTENCY,
    ) -> Iterator[KeyInfo]:
        """Iterate over a bucket's keys by name; each page is read as it is needed. They come without blocks: ``key_info`` has those."""
        return self._pages(lambda after: self.keys_page(volume, bucket, prefix, after, consistency), start_after)

    def volumes_page(self, prefix: str, start_after: str, consistency: Consistency) -> Page[VolumeInfo]:
        """Read one page of the volumes."""
        return _page(VolumeInfo, "volume", self._listing("/v1/volumes", prefix, start_after, consistency))

    def buckets_page(self, volume: str, prefix: str, start_after: str, consistency: Consistency) -> Page[BucketInfo]:
        """Read one page of a volume's buckets."""
        path = f"/v1/volumes/{_segment(volume)}/buckets"
        return _page(BucketInfo, "bucket", self._listing(path, prefix, start_after, consistency))

    def keys_page(
        self, volume: str, bucket: str, prefix: str, start_after: str, consistency: Consistency
    ) -> Page[KeyInfo]:
        """Read one page of a bucket's keys."""
        path = f"/v1/volumes/{_segment(volume)}/buckets/{_segment(bucket)}/keys"
        return _page(KeyInfo, "key", self._listing(path, prefix, start_after, consistency))

    def _pages(self, read: Callable[[str], Page[Row]], start_after: str) -> Iterator[Row]:
        after: str | None = start_after
        while after is not None:
            page = read(after)
            yield from page.entries
            after = page.next_after

    def _listing(self, path: str, prefix: str, start_after: str, consistency: Consistency) -> dict[str, Any]:
        parameters = {"prefix": prefix, "start_after": start_after, "limit": str(PAGE_ENTRIES)}
        return self.get(path, {name: value for name, value in parameters.items() if value}, consistency)

    def get(
        self, path: str, parameters: Mapping[str, str], consistency: Consistency, *, deadline_ms: int | None = None
    ) -> dict[str, Any]:
        """Ask the nodes in turn for ``path`` and return the JSON object of the first that answers; ``deadline_ms`` instead of the client's."""
        if not self._addresses:
            raise NotConnected(NOT_CONNECTED, f"GET {path}: the client was given no node to read from (read_from)")
        query = dict(parameters) | {"consistency": consistency}
        if consistency == "session" and (positions := self._positions()):
            query["session"] = ",".join(f"{shard}:{index}" for shard, index in sorted(positions.items()))
        deadline_s = time.monotonic() + (deadline_ms or self._deadline_ms) / 1000
        pause_ms = FIRST_PAUSE_MS
        while True:
            outcome = self._round(path, query, deadline_s)
            if not isinstance(outcome, RetryableError):
                return outcome
            if time.monotonic() + pause_ms / 1000 >= deadline_s:
                raise outcome
            time.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, LAST_PAUSE_MS)

    def _round(self, path: str, query: Mapping[str, str], deadline_s: float) -> dict[str, Any] | RetryableError:
        """Ask each node once, the preferred one first; return the answer or the last reason for none."""
        first = self._preferred
        outcome: dict[str, Any] | RetryableError = NotConnected(NOT_CONNECTED, f"GET {path}: no node was asked")
        for step in range(len(self._addresses)):
            node = (first + step) % len(self._addresses)
            left_s = max(deadline_s - time.monotonic(), MIN_ASK_S)
            outcome = self._ask(self._addresses[node], path, query, min(left_s, REQUEST_TIMEOUT_MS / 1000))
            if not isinstance(outcome, RetryableError):
                self._preferred = node
                break
        return outcome

    def _ask(
        self, address: str, path: str, query: Mapping[str, str], timeout_s: float
    ) -> dict[str, Any] | RetryableError:
        try:
            answer = self._http.get(address + path, params=query, timeout=timeout_s)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise RequestFailed(
                INVALID_REQUEST, f"GET {path}: a name is too long, or no Unicode text: {error}"
            ) from error
        except httpx.TransportError as error:
            return NotConnected(NOT_CONNECTED, f"GET {address}{path}: {type(error).__name__}: {error}")
        if answer.status_code == httpx.codes.OK:
            return _object(answer, address + path)
        code, message = _error(answer)
        if answer.is_server_error:
            return RetryableError(code, f"GET {address}{path}: {message}")
        raise RequestFailed(code, f"GET {path}: {message}")


def address_of(address: str) -> str:
    """Return a node's address without a trailing slash; ``host:port`` alone means http.

    Raises ValueError, naming it, for one that is no address.

    >>> address_of("127.0.0.1:9871/")
    'http://127.0.0.1:9871'
    """
    url = address if "://" in address else f"http://{address}"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{address!r} is not the address of a node: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ValueError(f"{address!r} is not the address of a node, as in http://127.0.0.1:9871")
    return url.rstrip("/")


def _segment(name: str) -> str:
    """Return a name as one segment of a path; refuses what a path cannot carry."""
    if name in {"", ".", ".."}:
        raise RequestFailed(INVALID_REQUEST, f"{name!r} is not the name of a volume or bucket")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise RequestFailed(INVALID_REQUEST, f"{name!r} is no Unicode text: {error}") from error


def _object(answer: httpx.Response, url: str) -> dict[str, Any]:
    try:
        value = answer.json()
    except json.JSONDecodeError as error:
        raise RequestFailed(INTERNAL_ERROR, f"GET {url}: the answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestFailed(INTERNAL_ERROR, f"GET {url}: the answer is not a JSON object")
    return value


def _error(answer: httpx.Response) -> tuple[str, str]:
    """Return code and message of an answer that is no 200; a proxy's may have neither."""
    try:
        value = answer.json()
        return str(value["error"]), str(value["message"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"HTTP_{answer.status_code}", answer.text[:200] or answer.reason_phrase


def _view(row: type[Row], value: dict[str, Any]) -> View[Row]:
    return View(info=_row(row, value), usage=value.get("usage") or {}, positions=_positions(value))


def _positions(value: dict[str, Any]) -> dict[int, int]:
    return {int(shard): int(index) for shard, index in value.get("positions", {}).items()}


def _page(row: type[Row], name_field: str, value: dict[str, Any]) -> Page[Row]:
    entries = [_row(row, entry) for entry in value.get("entries", [])]
    if not value.get("truncated") or not entries:
        return Page(entries=entries, next_after=None)
    # Older nodes do not say it.
    return Page(entries=entries, next_after=str(value.get("next_after", getattr(entries[-1], name_field))))


def _row(row: type[Row], value: dict[str, Any]) -> Row:
    """Return a row from its JSON object; fields that a newer node added are left out."""
    try:
        known = {field.name: value[field.name] for field in fields(row)}
    except (KeyError, TypeError) as error:
        raise RequestFailed(INTERNAL_ERROR, f"a node's {row.__name__} lacks the field {error}") from error
    if "blocks" in known:
        known["blocks"] = [BlockLocation(**block) for block in known["blocks"]]
    return row(**known)
