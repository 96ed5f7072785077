"""``stratolog datanode``: run one datanode in this process, or prepare a running one for an upgrade."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import typer

from stratolog.cluster.reach import await_broker, broker_addresses
from stratolog.commands.common.invocation import JsonOption, connected_settings_of, settings_of
from stratolog.commands.common.names import datanode_names
from stratolog.commands.common.output import print_json
from stratolog.commands.common.waiting import interruptible
from stratolog.configuration.node_configs import datanode_config
from stratolog.errors import Unavailable, UsageError, UserError
from stratolog.extras import libraries_of
from stratolog.nodes.node_http import http_to, url_of
from stratolog.security.private_files import be_private

PREPARE_TIMEOUT_S = 180.0
"""How long closing all containers and pipelines may take."""


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="Datanodes.")
    group.command("run")(run)
    group.command("prepare-upgrade")(prepare_upgrade)
    app.add_typer(group, name="datanode")


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="DATANODE", help="Name of the datanode, one of the setting 'datanodes'.", autocompletion=datanode_names
    ),
]
OldName = Annotated[str | None, typer.Option("--node", hidden=True, help="The name, as earlier versions took it.")]


def _name(name: str | None, old: str | None) -> str:
    """Return the name, given as the argument or by the old option."""
    given = [one for one in (name, old) if one is not None]
    if len(given) != 1:
        raise UsageError("give the name of one datanode, as in 'stratolog datanode run dn1'")
    return given[0]


def run(context: typer.Context, name: Name = None, *, node: OldName = None) -> None:
    """Run one datanode in this process until SIGTERM."""
    node = _name(name, node)
    settings = settings_of(context)
    try:
        config = datanode_config(settings, node)
    except ValueError as error:
        raise UsageError(str(error)) from error
    be_private(config.data_dir)
    with libraries_of("datanode"):
        from datanode_processors import node as datanode
        from replicated_db.shell import logs
    logs.configure(config.node, config.log_level, config.log_format)
    with interruptible("the datanode had not begun"):
        await_broker(broker_addresses(settings), logs.log.warning)
    datanode.run(config)


def prepare_upgrade(
    context: typer.Context, name: Name = None, *, node: OldName = None, as_json: JsonOption = False
) -> None:  # fmt: skip
    """Close a running datanode's containers and pipelines, and mark its folder:
    software with a newer layout may then take it.
    """
    node = _name(name, node)
    settings = connected_settings_of(context)
    address, secret = settings.datanode(node).http_address, settings.secret()
    url = url_of(address, "/v1/prepare-upgrade")
    try:
        answer = http_to(address).post(url, timeout=PREPARE_TIMEOUT_S, auth=secret.sign)
        found: dict[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable(f"datanode {node} at {address} does not answer: {error}") from error
    if answer.status_code != 200:
        raise UserError(f"datanode {node} is not prepared: {found.get('message', found)}")
    if as_json:
        print_json({"datanode": node, "pipelines": found["pipelines"]})
        return
    pipelines = ", ".join(found["pipelines"]) or "none"
    typer.echo(f"datanode {node} is prepared for an upgrade; pipelines closed: {pipelines}")
