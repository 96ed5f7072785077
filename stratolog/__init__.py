"""Stratolog: the command, the local stack, the settings, and the public SDK.

The SDK is ``producers``; it is loaded when one of its names is first used, so that ``import stratolog`` and the command
stay quick::

    from stratolog import Client
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from producers import AsyncClient as AsyncClient
    from producers import Client as Client
    from producers.errors import ClientClosed as ClientClosed
    from producers.errors import DatanodeError as DatanodeError
    from producers.errors import NotConnected as NotConnected
    from producers.errors import OutcomeUnknown as OutcomeUnknown
    from producers.errors import RequestFailed as RequestFailed
    from producers.errors import RetryableError as RetryableError
    from producers.errors import StratologError as StratologError
    from producers.errors import TooManyInFlight as TooManyInFlight
    from producers.stream_options import CommitWay as CommitWay
    from producers.stream_options import StreamOptions as StreamOptions
    from schemas.privilege import ClusterSecret as ClusterSecret

_HOMES = {
    "Client": "producers.client",
    "AsyncClient": "producers.async_client",
    "StratologError": "producers.errors",
    "RetryableError": "producers.errors",
    "RequestFailed": "producers.errors",
    "OutcomeUnknown": "producers.errors",
    "ClientClosed": "producers.errors",
    "NotConnected": "producers.errors",
    "TooManyInFlight": "producers.errors",
    "DatanodeError": "producers.errors",
    "CommitWay": "producers.stream_options",
    "StreamOptions": "producers.stream_options",
    "ClusterSecret": "schemas.privilege",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a name of the SDK at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'stratolog' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the SDK's names too, loaded or not."""
    return sorted({*globals(), *_HOMES})
