"""Arguments that name a node or a datanode: one form for all commands, and how a shell completes them.

Names come from the settings that reach the stack. A completion that cannot read the settings offers nothing, silently.
"""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from schemas.settings.declaring import OldSettingName
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.local import state


def settings_for_completion() -> Settings | None:
    """Return the settings that reach the stack, None if they cannot be read."""
    try:
        with warnings.catch_warnings(action="ignore", category=OldSettingName):
            return state.connected(load_settings())
    except (UserError, OSError):
        return None


def node_names(incomplete: str) -> list[str]:
    """Return the nodes' names that begin with ``incomplete``."""
    settings = settings_for_completion()
    return [] if settings is None else [node.name for node in settings.nodes if node.name.startswith(incomplete)]


def datanode_names(incomplete: str) -> list[str]:
    """Return the datanodes' names that begin with ``incomplete``."""
    settings = settings_for_completion()
    return [] if settings is None else [one.name for one in settings.datanodes if one.name.startswith(incomplete)]


NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=node_names)]
DatanodeArgument = Annotated[
    str, typer.Argument(metavar="DATANODE", help="Name of the datanode.", autocompletion=datanode_names)
]
