"""``stratolog node run NAME``: run one Object Manager node in this process, until SIGTERM."""

from __future__ import annotations

from typing import Annotated

import typer

from stratolog.cluster.reach import await_broker, broker_addresses
from stratolog.commands.common.invocation import settings_of
from stratolog.commands.common.names import node_names
from stratolog.commands.common.waiting import interruptible
from stratolog.configuration.node_configs import node_config
from stratolog.configuration.tracing import tracer_of
from stratolog.errors import UsageError
from stratolog.extras import libraries_of
from stratolog.security.private_files import be_private


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="Object Manager nodes.")
    group.command("run")(run)
    app.add_typer(group, name="node")


def run(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NODE", help="Name of the node, one of the setting 'nodes'.", autocompletion=node_names),
    ],
) -> None:
    """Run one node in this process until SIGTERM."""
    settings = settings_of(context)
    try:
        config = node_config(settings, name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    be_private(config.data_dir)
    with libraries_of("om"):
        from om_processors import node
        from replicated_db.shell import logs
    logs.configure(config.node, config.log_level, config.log_format)
    with interruptible("the node had not begun"):
        await_broker(broker_addresses(settings), logs.log.warning)
    with tracer_of(settings, "stratolog-om", config.node) as tracer:
        node.run(config, tracer)
