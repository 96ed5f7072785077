"""``admin kafka-rights``: nodes, datanodes and the audit get exactly the rights that ``schemas.kafka.access`` says.

``stratolog up`` does so for each process that it starts. Where processes run elsewhere, this is done once before.
"""

from __future__ import annotations

import typer

from schemas.kafka.access import KafkaPrincipal, principal_of
from stratolog.brokers.access_rules import ensure_access
from stratolog.brokers.admission import admin_of
from stratolog.brokers.identities import AUDIT_NAME
from stratolog.commands.brokers.kafka_user import secure_settings
from stratolog.commands.common.invocation import JsonOption
from stratolog.commands.common.output import console, print_json
from stratolog.configuration.settings import Settings


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("kafka-rights")(command)


def command(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Give nodes, datanodes and the audit of the settings exactly their rights on brokers that know who asks."""
    settings = secure_settings(context)
    members = members_of(settings)
    changed = ensure_access(admin_of(settings.connection), members)
    names = [principal_of(kind, name) for kind, name in members]
    if as_json:
        print_json({"principals": names, "changed": changed})
        return
    console.print(
        f"{changed} rights made or taken: {', '.join(names)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
        emoji=False,
    )


def members_of(settings: Settings) -> list[tuple[KafkaPrincipal, str]]:
    """Return the processes that ask the brokers by certificates, operators apart."""
    return [
        *((KafkaPrincipal.OM, node.name) for node in settings.nodes),
        *((KafkaPrincipal.DATANODE, datanode.name) for datanode in settings.datanodes),
        (KafkaPrincipal.AUDIT, AUDIT_NAME),
    ]
