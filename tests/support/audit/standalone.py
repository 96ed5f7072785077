"""A standalone Spark on this machine, from PySpark's own jars: a master and its workers, each a process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from stratolog.local.ports import free_ports

SPARK_HOME = Path(pyspark.__file__).parent
DAEMON = "org.apache.spark.deploy"
WAIT_SECONDS = 300


def own_address() -> str:
    """The address of this machine's own name: what processes of other machines would use."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


class StandaloneSpark:
    """A master and workers of one core each; ``url`` for ``--master``."""

    def __init__(self, folder: Path, workers: int, secret: str | None = None) -> None:
        """With a ``secret`` they ask each other, and drivers, for it."""
        self._secret = secret
        self.host = own_address()
        port, self._web_port, *web_ports = free_ports(2 + workers)
        self.url = f"spark://{self.host}:{port}"
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start("master.Master", "--port", str(port), "--webui-port", str(self._web_port), secret=secret)
        for web_port in web_ports:
            self._start_worker(web_port, secret)
        self._workers = workers

    def add_worker(self, secret: str | None) -> Path:
        """Start a worker that may have another secret, or none, and does not count; return its log."""
        return self._start_worker(free_ports(1)[0], secret)

    def _start_worker(self, web_port: int, secret: str | None) -> Path:
        work_dir = self._folder / f"work-{len(self.processes)}"
        return self._start(
            "worker.Worker", "--cores", "1", "--memory", "700m", "--work-dir", str(work_dir), "--webui-port",
            str(web_port), self.url, secret=secret,
        )  # fmt: skip

    def environment(self, secret: str | None) -> dict[str, str]:
        """Return the environment of a process that has a secret: Spark reads it from a file of its owner alone."""
        found = os.environ | {"SPARK_DAEMON_MEMORY": "128m", "SPARK_LOCAL_IP": self.host}
        if secret is None:
            return found
        conf = self._folder / f"conf-{secret}"
        conf.mkdir(mode=0o700, exist_ok=True)
        defaults = conf / "spark-defaults.conf"
        defaults.touch(mode=0o600)
        defaults.write_text(f"spark.authenticate true\nspark.authenticate.secret {secret}\n")
        return found | {"SPARK_CONF_DIR": str(conf)}

    def _start(self, kind: str, *arguments: str, secret: str | None) -> Path:
        log = self._folder / f"{kind.partition('.')[0]}-{len(self.processes)}.log"
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"{DAEMON}.{kind}", "--host", self.host, *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=self.environment(secret))
        self.processes.append(process)
        return log

    def state(self) -> dict[str, Any]:
        """What the master says of its workers and applications; empty before it answers."""
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self._web_port}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return {}
        return found

    def workers(self) -> list[Any]:
        """What the master says of the workers that it has."""
        return [one for one in self.state().get("workers", ()) if one["state"] == "ALIVE"]

    def await_workers(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.workers()) < self._workers:
            if time.monotonic() > deadline or any(one.poll() is not None for one in self.processes):
                logs = {path.name: path.read_text()[-2000:] for path in self._folder.glob("*.log")}
                raise TimeoutError(f"no {self._workers} workers: {logs}")
            time.sleep(0.5)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def standalone_spark(folder: Path, workers: int = 2, secret: str | None = None) -> Iterator[StandaloneSpark]:
    """Start a master and workers; they are ended with their executors."""
    folder.mkdir(parents=True)
    found = StandaloneSpark(folder, workers, secret)
    try:
        found.await_workers()
        yield found
    finally:
        found.close()
