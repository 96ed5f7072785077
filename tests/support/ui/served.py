"""A dashboard's server on a real socket, without a cluster."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import replace
from pathlib import Path

import httpx
from aiohttp import web

from schemas.privilege import ClusterSecret
from schemas.security.tls import ProcessTls, TlsFiles, scheme_of, verify_of
from stratolog.configuration.settings import Settings
from stratolog.ui.serving.drill_runs import DrillRuns
from stratolog.ui.serving.operator_key import secret_of_key
from stratolog.ui.serving.server import DashboardServer
from stratolog.ui.watching.watch import ClusterWatch

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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(secret), self._loop).result(10)
        trusted = None if tls is None else ProcessTls(TlsFiles(ca=tls.ca))
        self.http = httpx.Client(
            base_url=f"{scheme_of(trusted)}://{self.address}", trust_env=False, timeout=10, verify=verify_of(trusted)
        )

    async def _begin(self, secret: ClusterSecret | None) -> None:
        self.server = DashboardServer(self.watch, self.drills, secret)
        self._runner = web.AppRunner(self.server.app(), shutdown_timeout=1)
        await self._runner.setup()
        context = None if self.server.tls is None else self.server.tls.server(needs_certificate=False)
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.address = "{}:{}".format(*self._runner.addresses[0])

    def post(self, target: str, key: str | None, **headers: str) -> httpx.Response:
        proof = {} if key is None else {"Authorization": secret_of_key(key).authorization("POST", self.address, target)}
        return self.http.post(target, headers={**proof, **headers})

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self.http.close()
        self.watch.close()
