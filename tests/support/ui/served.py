"""A dashboard's server on a real socket, without a cluster."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import httpx

from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls, TlsFiles, scheme_of, verify_of
from stratolog.configuration.settings import Settings
from stratolog.ui.serving.drill_runs import DrillRuns
from stratolog.ui.serving.operator_key import secret_of_key
from stratolog.ui.serving.server import DashboardServer
from stratolog.ui.watching.watch import ClusterWatch
from transport.web.http_server import HttpServer
from transport.web.listening import listen, port_of
from transport.web.threaded_server import ThreadedServer

SECRET = ClusterSecret(b"s" * 32)


class Served:
    """A server in a thread of its own, on a port that the system chose; its cluster is a port where nobody listens."""

    def __init__(self, folder: Path, secret: ClusterSecret | None = SECRET, tls: TlsFiles | None = None) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        settings = replace(Settings(), data_dir=folder, bootstrap_servers=nobody, nodes=())
        if tls is not None:
            settings = replace(settings, tls_ca_file=tls.ca, tls_certificate_file=tls.certificate)
        self.watch = ClusterWatch(lambda: settings)
        self.drills = DrillRuns(folder)
        self.server = DashboardServer(self.watch, self.drills, secret)
        context = None if self.server.tls is None else self.server.tls.server(needs_certificate=False)
        listening = listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{port_of(listening)}"
        served = HttpServer(self.server.app(), tls=context, end_timeout_s=1)
        self._threaded = ThreadedServer(served, "dashboard").start(listening)
        trusted = None if tls is None else ProcessTls(TlsFiles(ca=tls.ca))
        self.http = httpx.Client(
            base_url=f"{scheme_of(trusted)}://{self.address}", trust_env=False, timeout=10, verify=verify_of(trusted)
        )

    def post(self, target: str, key: str | None, **headers: str) -> httpx.Response:
        proof = {} if key is None else {"Authorization": secret_of_key(key).authorization("POST", self.address, target)}
        return self.http.post(target, headers={**proof, **headers})

    def close(self) -> None:
        self._threaded.close()
        self.http.close()
        self.watch.close()
