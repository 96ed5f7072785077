"""Peers' checkpoints that nodes install, and have installed, in words (design, section 7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from replicated_db.core.bootstrap.pace import size_words
from schemas.settings.values import DatanodeAddress
from stratolog.configuration.settings import Settings
from stratolog.nodes.answers import node_opening, node_status
from stratolog.nodes.core.leaders import Status, views_in

MAX_SHOWN_CHARACTERS = 500


def install_words(said: Mapping[str, Any]) -> str:
    """Return what a node says of an install (``installed`` of its status), in words."""
    return (
        f"that of {said['peer']} at offset {said['offset']}, in {said['rounds']} rounds: "
        f"{size_words(int(said['fetched_bytes']))} fetched, {size_words(int(said['saved_bytes']))} saved by exclusion, "
        f"{float(said['took_s']):.2f} s"
    )


def installs_in(name: str, status: Status) -> Iterator[str]:
    """Yield a line for each replica of a node that began with a peer's checkpoint."""
    for view in views_in(status):
        if said := view.get("installed"):
            yield f"{name}, shard {view['shard']}: installed a peer's checkpoint, {install_words(said)}"


def installs_on_datanodes(settings: Settings) -> list[str]:
    """Return a line for each replica on a datanode that began with a member's checkpoint, or waits for one."""
    return [line for one in settings.datanodes for line in _pipelines_of(one)]


def _pipelines_of(datanode: DatanodeAddress) -> Iterator[str]:
    said = node_status(f"{datanode.host}:{datanode.http_port}") or {}
    for pipeline in said.get("pipelines", ()):
        if words := pipeline.get("installed"):
            yield f"{datanode.name}, {pipeline['pipeline']}: installed a checkpoint, {install_words(words)}"
    for pipeline in said.get("installing", ()):
        yield f"{datanode.name}, {pipeline['pipeline']}: {str(pipeline['progress'])[:MAX_SHOWN_CHARACTERS]}"


def installing(settings: Settings, name: str) -> list[str]:
    """Return what a node that is not ready yet is installing; empty if nothing.

    The node says so itself; if it does not answer, its folder is looked at, which may be on this machine.
    """
    if said := node_opening(settings.node(name).address):
        return [line[:MAX_SHOWN_CHARACTERS] for line in said]
    found = []
    for file in sorted(settings.node_folder(name).glob("shard-*.candidate/progress.txt")):
        with suppress(OSError, UnicodeDecodeError):
            found.append(file.read_text()[:MAX_SHOWN_CHARACTERS])
    return found
