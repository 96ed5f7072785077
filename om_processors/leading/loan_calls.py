"""The calls over HTTP by which an owner lends a shard to another node (``serving/leadership_api`` answers them)."""

from __future__ import annotations

from typing import Any

import httpx

from om_processors.config import NodeConfig
from om_processors.errors import OMError
from om_processors.leading.core.lending import LEND_TIMEOUT_S, Answer, Loan
from schemas.result_codes import INVALID_REQUEST
from schemas.security.certificates import AN_OM
from schemas.security.tls import scheme_of, verify_of

ASK_TIMEOUT_S = 2.0
"""How long another node may take to answer."""

GIVE_BACK_TIMEOUT_S = 10.0
"""How long a borrower may take to drain and step down."""


class LoanCalls:
    """Calls to other nodes; usable from any thread."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._scheme = scheme_of(config.tls)
        self._http = httpx.Client(timeout=ASK_TIMEOUT_S, trust_env=False, verify=verify_of(config.tls, AN_OM))

    def check_fitness(self, shard: int, node: str, address: str) -> None:
        """Raise OMError if ``node`` will not lead, so that the owner finds out before it steps down."""
        try:
            url = f"{self._scheme}://{address}/v1/shards/{shard}/fitness"
            found = self._http.get(url, auth=self._config.secret.sign).json()
        except (httpx.HTTPError, ValueError) as error:
            raise OMError(INVALID_REQUEST, f"{node} does not answer at {address}: {error!r}") from error
        if found.get("node") != node:
            raise OMError(INVALID_REQUEST, f"{found.get('node')} answers at {address}, not {node}")
        if found["against"]:
            raise OMError(INVALID_REQUEST, f"{node} may not lead now: {'; '.join(found['against'])}")

    def lend(self, shard: int, node: str, address: str) -> int:
        """Have ``node`` claim the shard; return its term. Raises OMError if it does not."""
        try:
            return int(self._post(address, shard, "borrow", LEND_TIMEOUT_S)["term"])
        except (httpx.HTTPError, OMError, ValueError) as error:
            raise OMError(INVALID_REQUEST, f"{node} does not lead shard {shard}: {error}") from error

    def renew(self, loan: Loan) -> Answer:
        """Ask the borrower to go on; return its answer."""
        try:
            answer = self._post(loan.address, loan.shard, "renew", ASK_TIMEOUT_S)
        except httpx.ConnectError:
            return Answer.GONE
        except (httpx.HTTPError, OMError, ValueError):
            return Answer.SILENT
        return Answer.LEADS if answer["leads"] else Answer.DOES_NOT_LEAD

    def want_back(self, loan: Loan) -> str | None:
        """Have the borrower drain and step down; return what went wrong, None if nothing did."""
        try:
            self._post(loan.address, loan.shard, "give-back", GIVE_BACK_TIMEOUT_S)
        except (httpx.HTTPError, OMError, ValueError) as error:
            return repr(error)
        return None

    def _post(self, address: str, shard: int, what: str, timeout_s: float) -> dict[str, Any]:
        answer = self._http.post(
            f"{self._scheme}://{address}/v1/shards/{shard}/{what}",
            params={"owner": self._config.node}, timeout=timeout_s, auth=self._config.secret.sign,
        )  # fmt: skip
        found: dict[str, Any] = answer.json()
        if answer.status_code != 200:
            raise OMError(str(found.get("error")), str(found.get("message")))
        return found
