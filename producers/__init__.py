"""The client SDK: requests over Kafka, reads over HTTP, bytes over TCP, load generators and the ingest of a directory tree.

What belongs here: everything that a program needs in order to *use* a cluster (design, sections 2, 4 and 5).
It imports ``schemas`` alone, and installs without Spark, Faust or RocksDB. Start with :class:`Client`.
"""

from producers.async_client import AsyncClient
from producers.client import Client
from producers.errors import (
    ClientClosed,
    DatanodeError,
    NotConnected,
    OutcomeUnknown,
    RequestFailed,
    RetryableError,
    StratologError,
    TooManyInFlight,
)
from producers.stream_options import CommitWay, StreamOptions
from schemas.privilege import ClusterSecret

__all__ = [
    "AsyncClient",
    "Client",
    "ClientClosed",
    "ClusterSecret",
    "CommitWay",
    "DatanodeError",
    "NotConnected",
    "OutcomeUnknown",
    "RequestFailed",
    "RetryableError",
    "StratologError",
    "StreamOptions",
    "TooManyInFlight",
]
