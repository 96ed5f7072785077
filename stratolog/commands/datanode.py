"""``stratolog datanode``: one datanode in this process, and the preparation of an upgrade of one that runs."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import typer

from stratolog.commands.common import libraries_of, settings_of
from stratolog.errors import Unavailable, UsageError, UserError

DATANODE_LIBRARIES = frozenset({"faust", "mode", "aiokafka", "aiohttp", "rocksdict", "sortedcontainers", "uvloop"})
"""What the extra ``datanode`` brings."""

PREPARE_TIMEOUT_S = 180.0
"""How long closing all containers and pipelines may take."""


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="Datanodes.")
    group.command("run")(run)
    group.command("prepare-upgrade")(prepare_upgrade)
    app.add_typer(group, name="datanode")


def run(
    context: typer.Context,
    node: Annotated[str, typer.Option(help="Name of the datanode, one of the setting 'datanodes'.")],
) -> None:
    """Run one datanode in this process until SIGTERM."""
    settings = settings_of(context)
    try:
        config = settings.datanode_config(node)
    except ValueError as error:
        raise UsageError(str(error)) from error
    with libraries_of("datanode", DATANODE_LIBRARIES):
        from datanode_processors import node as datanode
    datanode.run(config)


def prepare_upgrade(
    context: typer.Context,
    node: Annotated[str, typer.Option(help="Name of the datanode, one of the setting 'datanodes'.")],
) -> None:
    """Close a running datanode's containers and pipelines, and mark its folder: software with a newer layout may then take it."""
    settings = settings_of(context)
    address, secret = settings.datanode(node).http_address, settings.secret()
    url = f"http://{address}/v1/prepare-upgrade"
    try:
        answer = httpx.post(url, timeout=PREPARE_TIMEOUT_S, trust_env=False, auth=secret.sign)
        found: dict[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable(f"datanode {node} at {address} does not answer: {error}") from error
    if answer.status_code != 200:
        raise UserError(f"datanode {node} is not prepared: {found.get('message', found)}")
    pipelines = ", ".join(found["pipelines"]) or "none"
    typer.echo(f"datanode {node} is prepared for an upgrade; pipelines closed: {pipelines}")
