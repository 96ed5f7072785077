"""``stratolog admin``: what an operator does after a divergence, and to single nodes of the local stack.

To repair a replica: find the wrong one (``stratolog audit --once``, ``debug digest``), stop its node, ``admin rebuild``
the replica, start the node again. If the *log's* claims were wrong, its digest sums stay wrong even when the replicas
are right: ``admin digest-base`` then logs new sums, from the batch oracle (design, section 3).
"""

from __future__ import annotations

import typer

from stratolog.commands.admin import fleet, members, modes, transfer, trim, unflag, upgrades
from stratolog.commands.admin.digest_base import digest_base
from stratolog.commands.admin.nodes import rebuild, start_node, stop_node
from stratolog.commands.admin.secret import make_cluster_secret
from stratolog.commands.brokers import kafka_rights, kafka_user
from stratolog.commands.certificates import certificate, keys
from stratolog.commands.identity import users
from stratolog.commands.identity.block_tokens import register as register_block_tokens


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Leaders, members, datanodes, upgrades, trimming, repairs; single nodes of the local stack.",
    )
    group.command("digest-base")(digest_base)
    group.command("rebuild")(rebuild)
    group.command("stop-node")(stop_node)
    group.command("start-node")(start_node)
    group.command("make-secret")(make_cluster_secret)
    unflag.register(group)
    transfer.register(group)
    members.register(group)
    upgrades.register(group)
    modes.register(group)
    trim.register(group)
    fleet.register(group)
    kafka_user.register(group)
    kafka_rights.register(group)
    users.register(group)
    register_block_tokens(group)
    certificate.register(group)
    keys.register(group)
    app.add_typer(group, name="admin")
