"""What nodes and datanodes answer over HTTP."""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx

from stratolog.configuration.settings import Settings

HTTP_TIMEOUT_S = 2.0
_NOT_READY = 503


@cache
def _http() -> httpx.Client:
    """Return the only HTTP client of this process: making a client takes longer than a request."""
    return httpx.Client(timeout=HTTP_TIMEOUT_S, trust_env=False)


def answer_as(settings: Settings) -> None:
    """Have this process's questions to nodes signed, if the settings have something to sign with."""
    from producers.reads.call_signer import CallSigner

    credentials = settings.credentials()
    if credentials is not None:
        _http().auth = CallSigner(credentials)


def signer() -> httpx.Auth | None:
    """Return what this process's questions are signed by; None: they are not."""
    return _http().auth


def node_statuses(settings: Settings) -> dict[str, dict[str, Any] | None]:
    """Return the ``/status`` of each Object Manager node by its name, None for a node that does not answer."""
    return {node.name: node_status(node.address) for node in settings.nodes}


def node_status(address: str) -> dict[str, Any] | None:
    """Return a node's ``/status``, or None if it does not answer."""
    return node_answer(address, "/status")


def node_opening(address: str) -> list[str]:
    """Return what a node says that is not ready yet: a line for each replica that it opens; empty if it is silent."""
    try:
        answer = _http().get(f"http://{address}/status")
        found = answer.json()
    except (httpx.HTTPError, ValueError):
        return []
    lines = found.get("opening") if isinstance(found, dict) and answer.status_code == _NOT_READY else None
    return [str(line) for line in lines] if isinstance(lines, list) else []


def node_answer(address: str, path: str) -> dict[str, Any] | None:
    """Return a node's answer to a GET, or None if it does not answer or answers with an error."""
    try:
        answer = _http().get(f"http://{address}{path}")
        answer.raise_for_status()
        found = answer.json()
    except (httpx.HTTPError, ValueError):
        return None
    return found if isinstance(found, dict) else None
