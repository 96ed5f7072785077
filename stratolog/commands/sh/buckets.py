"""``stratolog sh bucket ...``, and ``stratolog quota repair``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from stratolog.commands.common.addresses import Address
from stratolog.commands.common.invocation import JsonOption
from stratolog.commands.sh.access import Asked, reads, writer
from stratolog.commands.sh.options import (
    DEFAULT_LENGTH,
    All,
    Bucket,
    Consistency,
    Length,
    NamespaceQuota,
    NewOwner,
    Node,
    Owner,
    Place,
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
    print_repair,
    quota_or_unlimited,
)
from stratolog.commands.sh.rows import print_fields

if TYPE_CHECKING:
    from producers.client import Client


def create_bucket(
    context: typer.Context, address: Bucket, *, quota: SpaceQuota = None, namespace_quota: NamespaceQuota = None,
    owner: Owner = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Create a bucket."""
    with writer(context, quiet=as_json) as client:
        client.create_bucket(
            address.volume, address.bucket, owner=owner or "",
            quota_in_bytes=quota_or_unlimited(quota), quota_in_namespace=quota_or_unlimited(namespace_quota),
        )  # fmt: skip
        print_done("created", address, client, as_json)


def bucket_info(
    context: typer.Context, address: Bucket, *, consistency: Consistency = "linearizable", session: Session = None,
    node: Node = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show a bucket and what of its quotas is used."""
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        print_fields(
            str(address), found_by.bucket_info(address.volume, address.bucket, consistency=consistency), as_json
        )


def list_buckets(
    context: typer.Context, address: Volume, *, prefix: Prefix = "", start: Start = "", length: Length = DEFAULT_LENGTH,
    every: All = False, consistency: Consistency = "linearizable", session: Session = None, node: Node = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """List a volume's buckets by name."""
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        found = found_by.list_buckets(address.volume, prefix=prefix, start_after=start, consistency=consistency)
        columns = ("bucket", "owner", *QUOTAS, "creation_time_ms")
        print_list(f"Buckets of {address}", columns, found, None if every else length, as_json)


def delete_bucket(context: typer.Context, address: Bucket, *, as_json: JsonOption = False) -> None:
    """Delete a bucket without keys."""
    with writer(context, quiet=as_json) as client:
        client.delete_bucket(address.volume, address.bucket)
        print_done("deleted", address, client, as_json)


def update_bucket(context: typer.Context, address: Bucket, *, owner: NewOwner, as_json: JsonOption = False) -> None:
    """Give a bucket another owner."""
    with writer(context, quiet=as_json) as client:
        client.set_bucket_property(address.volume, address.bucket, owner=owner)
        print_done("updated", address, client, as_json)


def set_bucket_quota(
    context: typer.Context, address: Bucket, *, quota: SpaceQuota = None, namespace_quota: NamespaceQuota = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Set a bucket's quotas: the bytes of its keys, and their number."""
    check_quota_given(quota, namespace_quota)
    with writer(context, quiet=as_json) as client:
        client.set_bucket_property(
            address.volume, address.bucket, quota_in_bytes=quota, quota_in_namespace=namespace_quota
        )
        print_done("quota set on", address, client, as_json)


def clear_bucket_quota(
    context: typer.Context, address: Bucket, *,
    space: Annotated[bool, typer.Option("--space-quota", "--quota", help="The space quota.")] = False,
    namespace: Annotated[bool, typer.Option("--namespace-quota", help="The namespace quota.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Lift a bucket's quotas."""
    check_quota_given(space or None, namespace or None)
    with writer(context, quiet=as_json) as client:
        client.set_bucket_property(
            address.volume, address.bucket,
            quota_in_bytes=NO_QUOTA if space else None, quota_in_namespace=NO_QUOTA if namespace else None,
        )  # fmt: skip
        print_done("quota lifted from", address, client, as_json)


def repair_quota(
    context: typer.Context, address: Place, *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count and show, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Count a bucket's keys and put its usage counters right; of a volume, its own counters and all its buckets'.

    Writing goes on meanwhile. For administrators.
    """
    from producers.errors import NotFound

    with writer(context, quiet=as_json, operator=True) as client:
        _repair(client, address, dry_run, as_json)
        for listed in [] if address.bucket else client.list_buckets(address.volume):
            with suppress(NotFound):  # it was deleted meanwhile
                _repair(client, Address(volume=address.volume, bucket=listed.bucket), dry_run, as_json)


def _repair(client: Client, place: Address, dry_run: bool, as_json: bool) -> None:
    found = client.usage(place.volume, place.bucket)
    wanted = not (dry_run or found.is_right)
    if wanted:
        client.repair_quota(place.volume, place.bucket, found)
    print_repair(place, found, is_done=wanted, as_json=as_json)
