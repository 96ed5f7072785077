"""What nodes and datanodes answer over HTTP."""

from __future__ import annotations

from typing import Any

import httpx

from stratolog.configuration.settings import Settings
from stratolog.nodes.node_http import http_to, url_of

_NOT_READY = 503


def node_statuses(settings: Settings) -> dict[str, dict[str, Any] | None]:
    """Return the ``/status`` of each Object Manager node by its name, None for a node that does not answer."""
    return {node.name: node_status(node.address) for node in settings.nodes}


def node_status(address: str) -> dict[str, Any] | None:
    """Return a node's ``/status``, or None if it does not answer."""
    return node_answer(address, "/status")


def node_opening(address: str) -> list[str]:
    """Return what a node says that is not ready yet: a line for each replica that it opens; empty if it is silent."""
    try:
        answer = http_to(address).get(url_of(address, "/status"))
        found = answer.json()
    except (httpx.HTTPError, ValueError):
        return []
    lines = found.get("opening") if isinstance(found, dict) and answer.status_code == _NOT_READY else None
    return [str(line) for line in lines] if isinstance(lines, list) else []


def node_answer(address: str, path: str) -> dict[str, Any] | None:
    """Return a node's answer to a GET, or None if it does not answer or answers with an error."""
    try:
        answer = http_to(address).get(url_of(address, path))
        answer.raise_for_status()
        found = answer.json()
    except (httpx.HTTPError, ValueError):
        return None
    return found if isinstance(found, dict) else None
