"""The rows of a digest bucket, asked of a replica over HTTP (``/v1/shards/N/rows``)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import httpx

from schemas.access.credentials import Credentials
from schemas.access.signatures import user_authorization
from schemas.privilege import AUTHORIZATION
from schemas.records.messages import Difference
from schemas.security.certificates import A_MEMBER
from schemas.security.tls import ProcessTls, scheme_of, verify_of
from spark_streaming.naming.core.row_differences import BucketRows
from transport.waiting.deadline import Deadline

ASK_SECONDS = 10.0
"""How long a node may take for its answer: it reads the rows of a whole column family."""

SILENCE_SECONDS = 5.0
"""How long it may be silent meanwhile."""

ANSWER_BYTES = 16 * 1024 * 1024
"""Most bytes of an answer: ten thousand rows with keys of several hundred bytes."""


class NoRows(Exception):
    """A node did not give the rows; the message names it, and says why."""


class ReplicaRows:
    """Asks nodes; ``addresses``: by the name of a log, ``host:port`` of each node's HTTP server. For one thread.

    ``credentials`` sign the questions, for nodes that take no others.
    """

    def __init__(
        self, addresses: Mapping[str, Mapping[str, str]], tls: ProcessTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:  # fmt: skip
        self._addresses = addresses
        self._credentials = credentials
        self._scheme = scheme_of(tls)
        # No compression: a few bytes of it may be an answer without end.
        headers = {"Accept-Encoding": "identity"}
        self._http = httpx.Client(
            timeout=SILENCE_SECONDS, trust_env=False, headers=headers, verify=verify_of(tls, A_MEMBER)
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def others(self, log: str, node: str) -> list[str]:
        """Return the nodes that may have the same replica."""
        return sorted(set(self._addresses.get(log, ())) - {node})

    def knows(self, log: str, node: str) -> bool:
        """Say whether a node's address is known."""
        return node in self._addresses.get(log, ())

    def ask(self, log: str, node: str, shard: int, difference: Difference) -> BucketRows:
        """Return a node's rows of a bucket; raises NoRows."""
        address = self._addresses[log][node]
        try:
            return _rows(self._answer(address, shard, difference.cf, difference.bucket))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, RecursionError) as error:
            raise NoRows(f"{node} at {address}: {str(error) or type(error).__name__}") from error

    def _answer(self, address: str, shard: int, cf: str, bucket: int) -> Any:
        deadline, body = Deadline.after_s(ASK_SECONDS), bytearray()
        params = {"cf": cf, "bucket": str(bucket)}
        question = self._http.build_request(
            "GET", f"{self._scheme}://{address}/v1/shards/{shard}/rows", params=params
        )  # fmt: skip
        if self._credentials is not None:
            target, now_ms = question.url.raw_path.decode("ascii"), time.time_ns() // 1_000_000
            question.headers[AUTHORIZATION] = user_authorization(
                self._credentials, "GET", question.headers["host"], target, now_ms
            )
        with closing(self._http.send(question, stream=True)) as answer:
            if answer.status_code != httpx.codes.OK:
                raise ValueError(f"status {answer.status_code}")
            for piece in answer.iter_raw():
                body += piece
                if len(body) > ANSWER_BYTES:
                    raise ValueError(f"more than {ANSWER_BYTES} bytes")
                if deadline.has_passed:
                    raise ValueError(f"no whole answer within {ASK_SECONDS:.0f} s")
        return json.loads(bytes(body))


def _rows(answer: Any) -> BucketRows:
    """Read an answer; raises ValueError, KeyError or TypeError if it is none."""
    rows = {bytes.fromhex(row["key"]): int(row["hash"]) for row in answer["rows"]}
    return BucketRows(index=int(answer["index"]), rows=rows, is_whole=not answer["truncated"])
