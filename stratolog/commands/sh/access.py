"""How ``stratolog sh`` reaches the running stack, or a state directory (``--at``).

A command that waits for an answer says why. An interrupted command says what is known to be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import typer

from stratolog.cluster.connection import PATIENCE_MS, client_of, reads_of
from stratolog.cluster.reach import check_log
from stratolog.commands.common.invocation import Invocation, connected_settings_of
from stratolog.commands.common.output import printed
from stratolog.commands.common.waiting import waiting
from stratolog.errors import UsageError

if TYPE_CHECKING:
    from producers.client import Client
    from producers.reads.reads import Reads

LINEARIZABLE = "linearizable"
UNKNOWN = "whether it was done is not known, for a request that was sent may still be executed: 'info' and 'list' tell"


class Asked(NamedTuple):
    """How to read: the node that answers (None: any), the positions of a session by shard, the consistency."""

    node: str | None
    session: dict[int, int] | None
    consistency: str


@contextmanager
def writer(context: typer.Context, *, quiet: bool, operator: bool = False) -> Iterator[Client]:
    """Open a client; an ``operator``'s has the cluster's secret.

    Raises UsageError if a state directory is to be read.
    """
    at = context.ensure_object(Invocation).at
    if at is not None:
        raise UsageError(f"the state in {at} can be read only: without --at the command goes to the running stack")
    settings = connected_settings_of(context)
    with (
        waiting(settings, "write", UNKNOWN, quiet=quiet),
        client_of(settings, patience_ms=PATIENCE_MS, operator=operator) as client,
    ):
        yield client


@contextmanager
def reads(
    context: typer.Context, asked: Asked, *, quiet: bool, moving: Callable[[], int] = lambda: printed.results
) -> Iterator[Reads]:
    """Open reads from the running stack, or from the state directory given.

    While ``moving`` grows, nothing is said about the wait.
    """
    at = context.ensure_object(Invocation).at
    if at is not None:
        if asked.node is not None or asked.session is not None:
            raise UsageError(
                "--node and --session are about the running stack, not about the state in a directory (--at)"
            )
        from stratolog.configuration.state_directory import reads_at

        with reads_at(at) as state:
            yield state
        return
    settings = connected_settings_of(context)
    if asked.consistency == LINEARIZABLE:
        check_log(settings)
    with waiting(settings, "read", "nothing was changed", quiet=quiet, moving=moving):
        with reads_of(settings, node=asked.node, positions=asked.session) as found:
            yield found
