"""Which way a client's requests go: straight to the nodes, through the brokers, or both."""

from __future__ import annotations

from functools import partial

from producers.direct.brokers_word import BrokersWord
from producers.direct.direct_transport import DirectTransport
from producers.direct.fallback import FallbackConnection
from producers.reads.leaders_group import known_nodes
from producers.requests.engine import RequestConnection, RequestEngine, RequestSettings, connect_to_kafka


def connect(settings: RequestSettings, client_id: bytes) -> RequestConnection:
    """Connect a client as its settings say; raises NotConnected."""
    if not settings.nodes:
        return connect_to_kafka(settings, client_id)
    if not settings.bootstrap_servers:
        return DirectTransport(
            settings.nodes, client_id, connect_timeout_ms=settings.connect_timeout_ms, tls=settings.tls,
            credentials=settings.credentials, cluster=settings.cluster,
        )  # fmt: skip
    kafka = connect_to_kafka(settings, client_id)
    direct = DirectTransport(
        settings.nodes, client_id, connect_timeout_ms=None, tls=settings.tls, credentials=settings.credentials,
        cluster=settings.cluster,
    )  # fmt: skip
    return FallbackConnection(kafka, direct, BrokersWord(partial(known_nodes, settings.bootstrap_servers)))


def open_engine(settings: RequestSettings) -> RequestEngine:
    """Return a request engine that is connected as the settings say; raises NotConnected."""
    return RequestEngine(settings, connect=connect)
