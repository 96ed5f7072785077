"""The processes of a stack whose state file cannot be read, found by what they were started with.

A search of this machine's processes (``/proc``) finds those that name the stack's own files: brokers by their
properties file, the audit by its module and configuration, nodes, datanodes and the dashboard by the settings file in
their environment.

Two rules keep other processes out. The search looks only at processes of the same user, for root too. It accepts only
absolute paths into the stack's directory, as ``up`` writes them: a relative path counts from that process's directory,
not from ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stratolog.configuration.loading import CONFIG_VARIABLE
from stratolog.errors import UserError
from stratolog.local.processes import Process
from stratolog.local.state import AUDIT, BROKER, DATANODE, NODE, SETTINGS_FILE, UI, StackMember, StackState

_PROC = Path("/proc")
_AUDIT_MODULE = "spark_streaming.jobs.audit_stream"
"""The audit's module; in a wheel it lies below the package ``stratolog``."""


def find_orphans(data_dir: Path) -> StackState:
    """Return the processes that run on a data directory; raises UserError where the system has no /proc."""
    if not (_PROC / "self" / "cmdline").exists():
        raise UserError(
            f"there is no /proc to find the processes of the stack in {data_dir}: stop those that name it (ps), "
            "then delete its stack.json"
        )
    return StackState(members=tuple(_members(data_dir)))


def _members(data_dir: Path) -> Iterator[StackMember]:
    for folder in _PROC.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            if folder.stat().st_uid != os.geteuid():
                continue
            words = (folder / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
            variables = (folder / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
        except OSError:
            continue  # it has ended, or is not ours to look at
        found = _kind_and_name(data_dir, words, variables)
        process = Process.of(int(folder.name))
        if found is not None and process is not None:
            kind, name = found
            log = data_dir / "logs" / f"{name}.log"
            yield StackMember(kind=kind, name=name, address="", log=log, process=process, extra={})


def _kind_and_name(data_dir: Path, words: list[str], variables: list[str]) -> tuple[str, str] | None:
    """Return what a process is to the stack in ``data_dir``, by its command line and environment; None = nothing."""
    for word in words:
        # Compare files, not texts: the process may have reached the directory by another path.
        if word.startswith("/") and word.endswith("/server.properties") and "kafka.Kafka" in words:
            home = Path(os.path.realpath(word)).parent
            if home.parent == Path(os.path.realpath(data_dir / "kafka")):
                return BROKER, home.name
    if _is_audit(words) and any(_is_same(word, data_dir / "audit" / "audit.json") for word in words[3:]):
        return AUDIT, AUDIT
    given = next((one.partition("=")[2] for one in variables if one.startswith(f"{CONFIG_VARIABLE}=")), "")
    if not given or not _is_same(given, data_dir / SETTINGS_FILE) or words[1:3] != ["-m", "stratolog"]:
        return None
    arguments = [word for word in words[3:] if word and word != "--node"]
    if arguments[:2] == ["node", "run"] and len(arguments) > 2:
        return NODE, arguments[2]
    if arguments[:2] == ["datanode", "run"] and len(arguments) > 2:
        return DATANODE, arguments[2]
    return (UI, UI) if arguments[:2] == ["ui", "--of-stack"] else None


def _is_audit(words: list[str]) -> bool:
    return words[1:2] == ["-m"] and any(f".{module}".endswith(f".{_AUDIT_MODULE}") for module in words[2:3])


def _is_same(one: str, other: Path) -> bool:
    return os.path.isabs(one) and os.path.realpath(one) == os.path.realpath(other)
