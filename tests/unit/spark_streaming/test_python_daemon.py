"""The process that forks Spark's Python workers: what it takes out of each task."""

from __future__ import annotations

import errno
import gc
import importlib
import importlib.util
import io
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zipimport import zipimporter

import pytest
from pyspark import daemon
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient, StatefulProcessorHandleState
from pyspark.sql.types import StructType

from spark_streaming.records import python_daemon
from spark_streaming.records.session import SparkSettings, _queries


def test_spark_starts_this_daemon_wherever_the_package_lies():
    settings = SparkSettings(jars=(), work_dir=Path("/nowhere"))
    assert _queries(settings)["spark.python.daemon.module"] == python_daemon.__name__


def test_it_runs_pysparks_own_manager_with_its_own_tasks(monkeypatch: pytest.MonkeyPatch):
    ran: list[object] = []
    monkeypatch.setattr(daemon, "manager", lambda: ran.append(daemon.worker_main))
    for patched in ("worker", "socket", "traceback", "worker_main"):
        monkeypatch.setattr(daemon, patched, getattr(daemon, patched))
    monkeypatch.setattr(StatefulProcessorApiClient, "__init__", StatefulProcessorApiClient.__init__)
    monkeypatch.setattr(gc, "freeze", lambda: ran.append("frozen"))
    python_daemon.main()
    frozen, task = ran
    assert frozen == "frozen"
    assert callable(task)


SECRET = "0123456789abcdef"
PROOF = len(SECRET).to_bytes(4, "big") + SECRET.encode()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    monkeypatch.setenv(python_daemon.SECRET, SECRET)
    monkeypatch.setattr(python_daemon, "PROOF_S", 0.2)
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    with ours, theirs:
        yield ours, theirs


def test_who_proves_itself_is_worked_for_and_asked_once(pair):
    ours, theirs = pair
    worked: list[bool] = []

    def work(sock: socket.socket, authenticated: bool) -> int:
        worked.append(authenticated)
        assert sock.gettimeout() is None
        return 0

    run = python_daemon.proven_first(work)
    for piece in (PROOF[:3], PROOF[3:7], PROOF[7:] + b"task"):
        theirs.sendall(piece)
    assert run(ours, False) == 0
    assert theirs.recv(100) == b"\0\0\0\2ok"
    assert ours.recv(100) == b"task", "what follows a proof is the task's"
    assert run(ours, True) == 0
    assert worked == [True, True]


@pytest.mark.parametrize(
    "said",
    [b"", PROOF[:-1], PROOF[:-1] + b"x", b"\x7f\xff\xff\xff" + b"x" * 100, b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n"],
)
def test_who_does_not_is_closed_and_nothing_is_worked(said: bytes, pair):
    ours, theirs = pair
    theirs.sendall(said)
    assert python_daemon.proven_first(lambda *_: pytest.fail("it works for a stranger"))(ours, False) == 1
    assert ours.fileno() == -1, "PySpark waits for the end of a connection that is open"


def test_beyond_so_many_workers_connections_are_closed(monkeypatch: pytest.MonkeyPatch):
    with python_daemon.BoundedSocket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()) as peer, listening.accept()[0]:
            peer.sendall(b"x")
        monkeypatch.setattr(python_daemon, "children", lambda: ["1"] * python_daemon.MOST_WORKERS)
        with socket.create_connection(listening.getsockname()) as peer:
            peer.settimeout(10)
            with pytest.raises(InterruptedError) as refused:
                listening.accept()
            assert refused.value.errno == errno.EINTR
            assert peer.recv(10) == b""


def test_a_port_of_state_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """As if a stranger had connected first: this connection waits in the queue."""
    monkeypatch.setattr(python_daemon, "STATE_ANSWER_S", 0.1)
    monkeypatch.setattr(
        StatefulProcessorApiClient, "__init__", python_daemon.impatient(StatefulProcessorApiClient.__init__)
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        client = StatefulProcessorApiClient(taken.getsockname()[1], StructType([]))
        with pytest.raises(TimeoutError):
            client.set_handle_state(StatefulProcessorHandleState.INITIALIZED)
        with suppress(OSError):
            client.sockfile.close()
        client._client_socket.close()


def test_a_peer_that_has_gone_is_no_defect(capfd: pytest.CaptureFixture[str]):
    for error in (BrokenPipeError(), ConnectionResetError(), ValueError("a defect")):
        try:
            raise error
        except Exception:
            python_daemon.print_defect()
    said = capfd.readouterr().err
    assert said.count("Traceback") == 1
    assert "a defect" in said


def test_children_are_counted():
    before = len(python_daemon.children())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert len(python_daemon.children()) == before + 1
    finally:
        child.communicate(b"\n", timeout=30)


def test_before_a_task_archives_are_forgotten_and_found_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = tmp_path / "large.jar"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("found_in_a_jar.py", "HERE = 1\n")
    monkeypatch.syspath_prepend(str(archive))
    importers = sys.path_importer_cache
    assert importlib.util.find_spec("found_in_a_jar") is not None
    assert isinstance(importers[str(archive)], zipimporter)
    folders = {path for path, importer in importers.items() if not isinstance(importer, zipimporter)}
    seen: list[set[str]] = []

    def task(infile: object, outfile: object) -> None:
        seen.append(set(importers))
        importlib.invalidate_caches()  # as PySpark's worker does

    python_daemon.without_archives(task, importers)(io.BytesIO(), io.BytesIO())
    assert str(archive) not in seen[0]
    assert seen[0] >= folders
    assert importlib.import_module("found_in_a_jar").HERE == 1
    sys.modules.pop("found_in_a_jar")


def test_what_a_task_raises_passes_through():
    def task(infile: object, outfile: object) -> None:
        raise SystemExit(-1)

    with pytest.raises(SystemExit):
        python_daemon.without_archives(task, {})(io.BytesIO(), io.BytesIO())
