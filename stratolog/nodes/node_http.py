"""HTTP to nodes and datanodes: an address speaks TLS if the settings that named it say so (decision 0073).

One process may know more than one cluster: a drill's own stack beside the one that it was started for. So what an
address speaks is kept by address. Settings are learnt before their nodes are asked. What was never learnt is asked in
clear, and a server that speaks TLS answers nothing to that. So is whose credentials sign the questions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx

from schemas.security.certificates import A_MEMBER
from schemas.security.tls import ProcessTls, verify_of
from stratolog.configuration.settings import Settings

HTTP_TIMEOUT_S = 2.0
_TLS: dict[str, ProcessTls] = {}
"""By ``host:port``; as many as the settings of this process have nodes and datanodes."""
_SIGNERS: dict[str, httpx.Auth] = {}
"""The same, for what is signed."""


def learn(settings: Settings) -> Settings:
    """Take note of what the nodes and datanodes of these settings speak; return the settings. Raises UsageError."""
    tls = settings.tls()
    for address in _addresses(settings):
        if tls is None:
            _TLS.pop(address, None)
        else:
            _TLS[address] = tls
    return settings


def sign(settings: Settings) -> Settings:
    """Have this process's questions to these nodes signed, if the settings have something to sign with.

    Returns the settings; raises UsageError if their credentials cannot be read.
    """
    from producers.reads.call_signer import CallSigner

    credentials = settings.credentials()
    if credentials is not None:
        signer = CallSigner(credentials)
        _SIGNERS.update(dict.fromkeys(_addresses(settings), signer))
    return settings


def operator_auth(settings: Settings) -> Any:
    """Return what proves that an operator calls, for httpx: the cluster's secret, or an administrator's signature.

    Nodes take the latter where users sign. Raises UsageError if there is neither.
    """
    if settings.credentials_file is None or settings.secret_file.exists():
        return settings.secret().sign
    from producers.reads.call_signer import CallSigner

    credentials = settings.credentials()
    return settings.secret().sign if credentials is None else CallSigner(credentials)


def _addresses(settings: Settings) -> list[str]:
    return [*(node.address for node in settings.nodes), *(one.http_address for one in settings.datanodes)]


def url_of(address: str, path: str = "") -> str:
    """Return the URL of a path at ``host:port``."""
    return f"{'https' if address in _TLS else 'http'}://{address}{path}"


def http_to(address: str) -> httpx.Client:
    """Return this process's HTTP client for an address: making a client takes longer than a request."""
    return _client(_TLS.get(address), _SIGNERS.get(address))


@cache
def _client(tls: ProcessTls | None, signer: httpx.Auth | None) -> httpx.Client:
    return httpx.Client(timeout=HTTP_TIMEOUT_S, trust_env=False, verify=verify_of(tls, A_MEMBER), auth=signer)
