"""``stratolog sh volume|bucket|key|snapshot ...``: the object store from the shell, in the way of ``ozone sh``.

Addresses and sizes are those of ``stratolog.commands.common.addresses``. A writing command says what it did, and with
``--json`` also at which position: a later read with ``--consistency session --session SHARD:INDEX`` sees the change. A
listing with ``--json`` has one object a line. If a server refuses a request, the command prints the code and exits with
status 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from stratolog.commands.common.invocation import Invocation
from stratolog.commands.sh import key_bytes
from stratolog.commands.sh.acls import (
    add_acl,
    cancel_token,
    get_acl,
    get_token,
    list_tokens,
    remove_acl,
    renew_token,
    set_acl,
)
from stratolog.commands.sh.buckets import (
    bucket_info,
    clear_bucket_quota,
    create_bucket,
    delete_bucket,
    list_buckets,
    repair_quota,
    set_bucket_quota,
    update_bucket,
)
from stratolog.commands.sh.keys import create_key, delete_key, key_info, list_keys, rename_key
from stratolog.commands.sh.snapshot_diff import diff_snapshots
from stratolog.commands.sh.snapshots import (
    create_snapshot,
    delete_snapshot,
    list_snapshots,
    rename_snapshot,
    set_snapshot_properties,
    snapshot_info,
)
from stratolog.commands.sh.volumes import (
    clear_volume_quota,
    create_volume,
    delete_volume,
    list_volumes,
    set_volume_quota,
    update_volume,
    volume_info,
)

HELPS = {"acl": "Access control lists.", "token": "Delegation tokens."}
"""Groups that say more than their name."""


def register(app: typer.Typer) -> None:
    """Add the groups."""
    shell = typer.Typer(no_args_is_help=True, help="Volumes, buckets, keys and snapshots, in the way of 'ozone sh'.")
    shell.callback()(_shell)
    groups: Mapping[str, Mapping[str, Any]] = {
        "volume": {
            "create": create_volume, "info": volume_info, "list": list_volumes, "delete": delete_volume,
            "update": update_volume, "set-quota": set_volume_quota, "clear-quota": clear_volume_quota,
        },
        "bucket": {
            "create": create_bucket, "info": bucket_info, "list": list_buckets, "delete": delete_bucket,
            "update": update_bucket, "set-quota": set_bucket_quota, "clear-quota": clear_bucket_quota,
        },
        "key": {
            "create": create_key, "info": key_info, "list": list_keys, "delete": delete_key, "rename": rename_key,
        },
        "snapshot": {
            "create": create_snapshot, "info": snapshot_info, "list": list_snapshots, "delete": delete_snapshot,
            "rename": rename_snapshot, "set": set_snapshot_properties, "diff": diff_snapshots,
        },
        "acl": {"add": add_acl, "remove": remove_acl, "set": set_acl, "get": get_acl},
        "token": {"get": get_token, "renew": renew_token, "cancel": cancel_token, "list": list_tokens},
    }  # fmt: skip
    for name, commands in groups.items():
        group = typer.Typer(no_args_is_help=True, help=HELPS.get(name, f"{name.capitalize()}s."))
        for verb, command in commands.items():
            group.command(verb)(command)
        # As Ozone spells them.
        for alias, verb in (("setquota", "set-quota"), ("clrquota", "clear-quota"), ("ls", "list")):
            if verb in commands:
                group.command(alias, hidden=True)(commands[verb])
        if name == "key":
            key_bytes.register(group)
        shell.add_typer(group, name=name)
    app.add_typer(shell, name="sh")
    quota = typer.Typer(no_args_is_help=True, help="Usage counters, which quotas are judged by.")
    quota.callback()(_quota)
    quota.command("repair")(repair_quota)
    app.add_typer(quota, name="quota")


def _quota() -> None:
    """Make a group of it, though it has one command."""


def _shell(
    context: typer.Context, *,
    at: Annotated[
        Path | None,
        typer.Option(
            "--at", file_okay=False, exists=True, metavar="DIR",
            help=(
                "Read the state in this directory, as 'stratolog drill point-in-time' makes it, instead of the "
                "running stack."
            ),
        ),
    ] = None,
) -> None:  # fmt: skip
    context.obj = replace(context.ensure_object(Invocation), at=at)
