"""The call by which a member is asked for its durable position."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from replicated_db.core.trimming.places import MemberPlace
from schemas.privilege import ClusterSecret
from schemas.security.certificates import A_MEMBER
from schemas.security.tls import ProcessTls, scheme_of, verify_of

ASK_TIMEOUT_S = 20.0
"""How long a member may take: it syncs its store first."""

MAX_ANSWER_BYTES = 256 * 1024
PATH = "/v1/shards/{shard}/durable-position"


class MemberCalls:
    """Asks members of one cluster. For any thread."""

    def __init__(self, cluster: str, secret: ClusterSecret | None, tls: ProcessTls | None = None) -> None:
        self._scheme = scheme_of(tls)
        self._cluster = cluster
        self._secret = secret
        self._http = httpx.Client(timeout=ASK_TIMEOUT_S, trust_env=False, verify=verify_of(tls, A_MEMBER))

    def ask(self, shard: int, node: str, addresses: Mapping[str, str]) -> MemberPlace | str:
        """Return a member's place, or in words why it is not known."""
        address = addresses.get(node)
        if address is None:
            return "its address is not known here"
        url = f"{self._scheme}://{address}{PATH.format(shard=shard)}"
        try:
            with self._http.stream("POST", url, auth=None if self._secret is None else self._secret.sign) as answer:
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        return f"its answer from {address} has over {MAX_ANSWER_BYTES} bytes"
                if answer.status_code != httpx.codes.OK:
                    return f"{address} answers {answer.status_code}: {body[:200].decode(errors='replace')}"
                place = MemberPlace.from_json(httpx.Response(200, content=body).json())
        except (httpx.HTTPError, ValueError) as error:
            return f"it does not answer at {address}: {str(error) or type(error).__name__}"
        if (place.node, place.cluster, place.shard) != (node, self._cluster, shard):
            return f"{address} answers as {place.node} of cluster {place.cluster!r}, shard {place.shard}"
        return place

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
