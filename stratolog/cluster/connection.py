"""How commands and their parts reach a cluster: the SDK's client and reads, made from the settings.

Requests go straight to the shards' leaders, and through the brokers where no leader is reached (the direct door).

A command gives up sooner than a program would, because a person waits for it: :data:`PATIENCE_MS` bounds its deadlines.
That is still long enough for another node to take over a shard.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stratolog.cluster.reach import check_brokers, check_leaders, check_nodes
from stratolog.configuration.settings import Settings
from stratolog.configuration.tracing import tracer_of
from stratolog.errors import Unavailable, UsageError
from stratolog.nodes.node_http import url_of

if TYPE_CHECKING:
    from producers.blocks.stream_options import StreamOptions
    from producers.client import Client
    from producers.reads.reads import Reads

PATIENCE_MS = 20_000
"""A command with single requests gives up after this time, or after the setting 'request_timeout_ms' if less."""
CONNECT_TIMEOUT_MS = 10_000
INTERRUPTED_CLOSE_MS = 200
"""How long an interrupted command waits for its requests in flight."""


def node_urls(settings: Settings) -> list[str]:
    """Return the addresses of the nodes' HTTP servers."""
    return [url_of(node.address) for node in settings.nodes]


def doors(settings: Settings) -> list[str]:
    """Return the addresses (``host:port``) of the nodes that requests go to; empty: they go through the brokers alone.

    Settings that name brokers and no nodes reach the cluster of those brokers. The default nodes may be another's.
    """
    if settings.explicit & {"bootstrap_servers", "node_bootstrap_servers"} and "nodes" not in settings.explicit:
        return []
    return [node.address for node in settings.nodes]


def stream_options(settings: Settings) -> StreamOptions:
    """Return how bytes are written and read; raises UsageError for settings that do not go together."""
    from producers.blocks.stream_options import StreamOptions

    try:
        return StreamOptions(
            commit_way=settings.commit_way,
            topology=settings.topology,
            rack=settings.client_rack,
            packet_bytes=settings.packet_bytes,
            flush_bytes=settings.flush_bytes,
            client_buffer_bytes=settings.client_buffer_bytes,
            block_bytes=settings.block_bytes,
            inline_bytes=settings.inline_bytes,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


@contextmanager
def client_of(
    settings: Settings, *, patience_ms: int | None = None, in_flight: int = 0, operator: bool = False
) -> Iterator[Client]:
    """Open a client for at least ``in_flight`` requests at once; an ``operator``'s client has the cluster's secret.

    A request goes to the leader of its shard, through one of :func:`doors`, or through the brokers if none is open.
    Raises UsageError for settings that the client refuses, and for an operator without a secret; Unavailable if no
    broker answers.
    """
    from producers.client import Client
    from producers.errors import NotConnected

    check_brokers(settings)
    check_leaders(settings)
    credentials = settings.credentials()
    # An administrator needs no secret of the cluster's; without credentials its absence is an error that says so.
    secret = settings.secret() if operator and (credentials is None or settings.secret_file.exists()) else None
    deadline_ms = min(settings.request_timeout_ms, patience_ms or settings.request_timeout_ms)
    with tracer_of(settings, "stratolog-command") as tracer:
        try:
            client = Client(
                settings.connection,
                nodes=doors(settings),
                caller=settings.caller if credentials is None else None,
                deadline_ms=deadline_ms,
                max_in_flight=max(settings.max_in_flight, in_flight),
                read_from=node_urls(settings),
                connect_timeout_ms=min(CONNECT_TIMEOUT_MS, deadline_ms),
                streams=stream_options(settings),
                cluster_secret=secret,
                credentials=credentials,
                tracer=tracer,
                tls=settings.tls_files(),
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
        except NotConnected as error:
            raise Unavailable(str(error)) from error
        with client:
            try:
                yield client
            except KeyboardInterrupt:
                client.close_timeout_ms = INTERRUPTED_CLOSE_MS
                logging.getLogger("stratolog.client").setLevel(
                    logging.ERROR
                )  # the handler of the interrupt reports unanswered requests
                raise


@contextmanager
def reads_of(
    settings: Settings, *, node: str | None = None, positions: dict[int, int] | None = None
) -> Iterator[Reads]:
    """Open reads from all nodes, or from one; ``positions`` are for reads of consistency ``session``.

    Raises UsageError for an unknown node. A NotConnected from a read becomes Unavailable.
    """
    from producers.errors import NotConnected
    from producers.reads.reads import Reads

    check_nodes(settings, None if node is None else {settings.node(node).name})
    urls = [url_of(settings.node(node).address)] if node else node_urls(settings)
    known = positions or {}
    reads = Reads(
        urls, deadline_ms=min(settings.request_timeout_ms, PATIENCE_MS), positions=lambda: known, tls=settings.tls(),
        credentials=settings.credentials(),
    )  # fmt: skip
    try:
        yield reads
    except NotConnected as error:
        raise Unavailable(str(error)) from error
    finally:
        reads.close()
