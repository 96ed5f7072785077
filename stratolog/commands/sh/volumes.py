"""``stratolog sh volume ...``."""

from __future__ import annotations

from typing import Annotated

import typer

from stratolog.commands.common.invocation import JsonOption
from stratolog.commands.sh.access import Asked, reads, writer
from stratolog.commands.sh.options import (
    DEFAULT_LENGTH,
    All,
    Consistency,
    Length,
    NamespaceQuota,
    NewOwner,
    Node,
    Owner,
    Prefix,
    Session,
    SpaceQuota,
    Start,
    Volume,
)
from stratolog.commands.sh.results import (
    NO_QUOTA,
    QUOTAS,
    check_quota_given,
    print_done,
    print_list,
    quota_or_unlimited,
)
from stratolog.commands.sh.rows import print_fields


def create_volume(
    context: typer.Context, address: Volume, *, quota: SpaceQuota = None, namespace_quota: NamespaceQuota = None,
    owner: Owner = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Create a volume."""
    with writer(context, quiet=as_json) as client:
        client.create_volume(
            address.volume,
            owner=owner or "",
            quota_in_bytes=quota_or_unlimited(quota),
            quota_in_namespace=quota_or_unlimited(namespace_quota),
        )
        print_done("created", address, client, as_json)


def volume_info(
    context: typer.Context, address: Volume, *, consistency: Consistency = "linearizable", session: Session = None,
    node: Node = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show a volume and what of its quotas is used."""
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        print_fields(str(address), found_by.volume_info(address.volume, consistency=consistency), as_json)


def list_volumes(
    context: typer.Context, *, prefix: Prefix = "", start: Start = "", length: Length = DEFAULT_LENGTH,
    every: All = False, consistency: Consistency = "linearizable", session: Session = None, node: Node = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """List volumes by name."""
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        found = found_by.list_volumes(prefix=prefix, start_after=start, consistency=consistency)
        print_list(
            "Volumes", ("volume", "owner", *QUOTAS, "creation_time_ms"), found, None if every else length, as_json
        )


def delete_volume(context: typer.Context, address: Volume, *, as_json: JsonOption = False) -> None:
    """Delete a volume without buckets."""
    with writer(context, quiet=as_json) as client:
        client.delete_volume(address.volume)
        print_done("deleted", address, client, as_json)


def update_volume(context: typer.Context, address: Volume, *, owner: NewOwner, as_json: JsonOption = False) -> None:
    """Give a volume another owner."""
    with writer(context, quiet=as_json) as client:
        client.set_volume_property(address.volume, owner=owner)
        print_done("updated", address, client, as_json)


def set_volume_quota(
    context: typer.Context, address: Volume, *, quota: SpaceQuota = None, namespace_quota: NamespaceQuota = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Set a volume's quotas: the sum of its buckets' space quotas, the number of its buckets."""
    check_quota_given(quota, namespace_quota)
    with writer(context, quiet=as_json) as client:
        client.set_volume_property(address.volume, quota_in_bytes=quota, quota_in_namespace=namespace_quota)
        print_done("quota set on", address, client, as_json)


def clear_volume_quota(
    context: typer.Context, address: Volume, *,
    space: Annotated[bool, typer.Option("--space-quota", "--quota", help="The space quota.")] = False,
    namespace: Annotated[bool, typer.Option("--namespace-quota", help="The namespace quota.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Lift a volume's quotas."""
    check_quota_given(space or None, namespace or None)
    with writer(context, quiet=as_json) as client:
        client.set_volume_property(
            address.volume,
            quota_in_bytes=NO_QUOTA if space else None,
            quota_in_namespace=NO_QUOTA if namespace else None,
        )
        print_done("quota lifted from", address, client, as_json)
