"""``stratolog sh volume|bucket|key ...``: the object store from the shell, in the way of ``ozone sh``.

Addresses and sizes are those of ``stratolog.commands.common.addresses``. Writing commands say what they did, and with ``--json``
at which position, so that a later read with ``--consistency session --session SHARD:INDEX`` sees it; listings with
``--json`` are one object a line. What a server refuses is printed with its code, exit status 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stratolog.commands.common import addresses
from stratolog.commands.common.addresses import Address
from stratolog.commands.common.common import Invocation, JsonOption, console, notes, print_json
from stratolog.commands.common.names import node_names
from stratolog.commands.sh import sh_bytes
from stratolog.commands.sh.rows import print_fields, print_rows
from stratolog.commands.sh.sh_access import Asked, reads, writer
from stratolog.errors import UsageError

if TYPE_CHECKING:
    from producers.client import Client

DEFAULT_LENGTH = 100
NO_QUOTA = -1
"""The value of a quota that means none (``schemas.records.messages.UNLIMITED``)."""

Volume = Annotated[Address, typer.Argument(parser=addresses.volume_address, metavar="/VOLUME")]
Bucket = Annotated[Address, typer.Argument(parser=addresses.bucket_address, metavar="/VOLUME/BUCKET")]
Key = Annotated[Address, typer.Argument(parser=addresses.key_address, metavar="/VOLUME/BUCKET/KEY")]
SpaceQuota = Annotated[
    int | None,
    typer.Option(
        "--space-quota", "--quota", parser=addresses.size_in_bytes, metavar="SIZE", help="Such as 10GB or 1TB."
    ),
]
NamespaceQuota = Annotated[int | None, typer.Option(min=1, help="At most so many buckets (volume) or keys (bucket).")]
Owner = Annotated[str | None, typer.Option("--user", "--owner", "-u", help="Its owner; without, the one who asks.")]
NewOwner = Annotated[str, typer.Option("--user", "--owner", "-u", help="Its new owner.")]
Size = Annotated[
    int | None,
    typer.Option(parser=addresses.size_in_bytes, metavar="SIZE", help="Its size; blocks are allocated for it."),
]
Metadata = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Metadata; may be given several times.")]
Prefix = Annotated[str, typer.Option("--prefix", "-p", help="Only names that begin with this.")]
Start = Annotated[str, typer.Option("--start", "-s", help="Only names after this one.")]
Length = Annotated[int, typer.Option("--length", "--limit", "-l", min=1, help="At most so many.")]
All = Annotated[bool, typer.Option("--all", "-a", help="All of them.")]
Consistency = Annotated[
    Literal["linearizable", "session", "stale"],
    typer.Option(help="See every acknowledged write; or at least those up to --session; or what a node has."),
]
Session = Annotated[
    dict[int, int] | None,
    typer.Option(parser=addresses.positions, metavar="SHARD:INDEX[,...]", help="Positions for --consistency session."),
]
Node = Annotated[
    str | None, typer.Option(metavar="NODE", help="Ask this node and no other.", autocompletion=node_names)
]


def register(app: typer.Typer) -> None:
    """Add the groups."""
    shell = typer.Typer(no_args_is_help=True, help="Volumes, buckets and keys, in the way of 'ozone sh'.")
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
    }  # fmt: skip
    for name, commands in groups.items():
        group = typer.Typer(no_args_is_help=True, help=f"{name.capitalize()}s.")
        for verb, command in commands.items():
            group.command(verb)(command)
        # As Ozone spells them.
        for alias, verb in (("setquota", "set-quota"), ("clrquota", "clear-quota")):
            if verb in commands:
                group.command(alias, hidden=True)(commands[verb])
        if name == "key":
            sh_bytes.register(group)
        shell.add_typer(group, name=name)
    app.add_typer(shell, name="sh")


def _shell(
    context: typer.Context, *,
    at: Annotated[
        Path | None,
        typer.Option(
            "--at", file_okay=False, exists=True, metavar="DIR",
            help="Read the state in this directory, as 'stratolog drill point-in-time' makes it, instead of the running stack.",
        ),
    ] = None,
) -> None:  # fmt: skip
    context.obj = replace(context.ensure_object(Invocation), at=at)


# -- volumes -----------------------------------------------------------------------------------------------------------


def create_volume(
    context: typer.Context, address: Volume, *, quota: SpaceQuota = None, namespace_quota: NamespaceQuota = None,
    owner: Owner = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Create a volume."""
    with writer(context, quiet=as_json) as client:
        client.create_volume(
            address.volume, owner=owner or "", quota_in_bytes=_quota(quota), quota_in_namespace=_quota(namespace_quota)
        )
        _did("created", address, client, as_json)


def volume_info(
    context: typer.Context, address: Volume, *, consistency: Consistency = "linearizable", session: Session = None,
    node: Node = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show a volume and what of its quotas is used."""
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        print_fields(str(address), found_by.volume_info(address.volume, consistency=consistency), as_json)


def list_volumes(
    context: typer.Context, *, prefix: Prefix = "", start: Start = "", length: Length = DEFAULT_LENGTH, every: All = False,
    consistency: Consistency = "linearizable", session: Session = None, node: Node = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """List volumes by name."""
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        found = found_by.list_volumes(prefix=prefix, start_after=start, consistency=consistency)
        _list("Volumes", ("volume", "owner", *QUOTAS, "creation_time_ms"), found, None if every else length, as_json)


def delete_volume(context: typer.Context, address: Volume, *, as_json: JsonOption = False) -> None:
    """Delete a volume without buckets."""
    with writer(context, quiet=as_json) as client:
        client.delete_volume(address.volume)
        _did("deleted", address, client, as_json)


def update_volume(context: typer.Context, address: Volume, *, owner: NewOwner, as_json: JsonOption = False) -> None:
    """Give a volume another owner."""
    with writer(context, quiet=as_json) as client:
        client.set_volume_property(address.volume, owner=owner)
        _did("updated", address, client, as_json)


def set_volume_quota(
    context: typer.Context, address: Volume, *, quota: SpaceQuota = None, namespace_quota: NamespaceQuota = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Set a volume's quotas: the sum of its buckets' space quotas, the number of its buckets."""
    _check_given(quota, namespace_quota)
    with writer(context, quiet=as_json) as client:
        client.set_volume_property(address.volume, quota_in_bytes=quota, quota_in_namespace=namespace_quota)
        _did("quota set on", address, client, as_json)


def clear_volume_quota(
    context: typer.Context, address: Volume, *,
    space: Annotated[bool, typer.Option("--space-quota", "--quota", help="The space quota.")] = False,
    namespace: Annotated[bool, typer.Option("--namespace-quota", help="The namespace quota.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Lift a volume's quotas."""
    _check_given(space or None, namespace or None)
    with writer(context, quiet=as_json) as client:
        client.set_volume_property(
            address.volume,
            quota_in_bytes=NO_QUOTA if space else None,
            quota_in_namespace=NO_QUOTA if namespace else None,
        )
        _did("quota lifted from", address, client, as_json)


# -- buckets -----------------------------------------------------------------------------------------------------------


def create_bucket(
    context: typer.Context, address: Bucket, *, quota: SpaceQuota = None, namespace_quota: NamespaceQuota = None,
    owner: Owner = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Create a bucket."""
    with writer(context, quiet=as_json) as client:
        client.create_bucket(
            address.volume, address.bucket, owner=owner or "",
            quota_in_bytes=_quota(quota), quota_in_namespace=_quota(namespace_quota),
        )  # fmt: skip
        _did("created", address, client, as_json)


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
        _list(f"Buckets of {address}", columns, found, None if every else length, as_json)


def delete_bucket(context: typer.Context, address: Bucket, *, as_json: JsonOption = False) -> None:
    """Delete a bucket without keys."""
    with writer(context, quiet=as_json) as client:
        client.delete_bucket(address.volume, address.bucket)
        _did("deleted", address, client, as_json)


def update_bucket(context: typer.Context, address: Bucket, *, owner: NewOwner, as_json: JsonOption = False) -> None:
    """Give a bucket another owner."""
    with writer(context, quiet=as_json) as client:
        client.set_bucket_property(address.volume, address.bucket, owner=owner)
        _did("updated", address, client, as_json)


def set_bucket_quota(
    context: typer.Context, address: Bucket, *, quota: SpaceQuota = None, namespace_quota: NamespaceQuota = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Set a bucket's quotas: the bytes of its keys, and their number."""
    _check_given(quota, namespace_quota)
    with writer(context, quiet=as_json) as client:
        client.set_bucket_property(
            address.volume, address.bucket, quota_in_bytes=quota, quota_in_namespace=namespace_quota
        )
        _did("quota set on", address, client, as_json)


def clear_bucket_quota(
    context: typer.Context, address: Bucket, *,
    space: Annotated[bool, typer.Option("--space-quota", "--quota", help="The space quota.")] = False,
    namespace: Annotated[bool, typer.Option("--namespace-quota", help="The namespace quota.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Lift a bucket's quotas."""
    _check_given(space or None, namespace or None)
    with writer(context, quiet=as_json) as client:
        client.set_bucket_property(
            address.volume, address.bucket,
            quota_in_bytes=NO_QUOTA if space else None, quota_in_namespace=NO_QUOTA if namespace else None,
        )  # fmt: skip
        _did("quota lifted from", address, client, as_json)


# -- keys --------------------------------------------------------------------------------------------------------------


def create_key(
    context: typer.Context, address: Key, *,
    size: Size = None, metadata: Metadata = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Create a key: opens it, allocates its blocks and commits it.

    Metadata only, no bytes are stored: 'stratolog sh key put' writes a file. 'stratolog ingest' does the same for the files of a tree.
    """
    from producers.requests.keys import fit_blocks

    given, length = dict(map(addresses.metadata_item, metadata or [])), size or 0
    with writer(context, quiet=as_json) as client:
        place = (address.volume, address.bucket, address.key)
        opened = client.create_key(*place, size=length, metadata=given)
        client.commit_key(*place, opened.session_id, size=length, blocks=fit_blocks(opened.blocks, length))
        _did("created", address, client, as_json)


def key_info(
    context: typer.Context, address: Key, *, consistency: Consistency = "linearizable", session: Session = None,
    node: Node = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show a key with its blocks and metadata."""
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        view = found_by.key_info(address.volume, address.bucket, address.key, consistency=consistency)
        print_fields(str(address), view, as_json)


def list_keys(
    context: typer.Context, address: Bucket, *, prefix: Prefix = "", start: Start = "", length: Length = DEFAULT_LENGTH,
    every: All = False, consistency: Consistency = "linearizable", session: Session = None, node: Node = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """List a bucket's keys by name."""
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        found = found_by.list_keys(
            address.volume, address.bucket, prefix=prefix, start_after=start, consistency=consistency
        )
        columns = ("key", "size", "owner", "modification_time_ms")
        _list(f"Keys of {address}", columns, found, None if every else length, as_json)


def delete_key(context: typer.Context, address: Key, *, as_json: JsonOption = False) -> None:
    """Delete a key."""
    with writer(context, quiet=as_json) as client:
        client.delete_key(address.volume, address.bucket, address.key)
        _did("deleted", address, client, as_json)


def rename_key(
    context: typer.Context, address: Bucket, *,
    from_key: Annotated[str, typer.Argument(metavar="FROM_KEY", help="Name of the key within the bucket.")],
    to_key: Annotated[str, typer.Argument(metavar="TO_KEY", help="Its new name within the bucket.")],
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Rename a key within its bucket."""
    with writer(context, quiet=as_json) as client:
        client.rename_key(address.volume, address.bucket, from_key, to_key)
        old, new = (Address(volume=address.volume, bucket=address.bucket, key=key) for key in (from_key, to_key))
        _did(f"renamed {old} to", new, client, as_json)


# -- what they share ---------------------------------------------------------------------------------------------------

QUOTAS = ("quota_in_bytes", "quota_in_namespace")


def _quota(given: int | None) -> int:
    return NO_QUOTA if given is None else given


def _check_given(*quotas: object) -> None:
    if all(quota is None for quota in quotas):
        raise UsageError("which quota? give --space-quota or --namespace-quota, or both")


def _did(what: str, address: Address, client: Client, as_json: bool) -> None:
    """Say what was done, and where in the log."""
    if as_json:
        positions = {str(shard): index for shard, index in client.positions.items()}
        print_json({"done": what, "address": str(address), "positions": positions})
    else:
        console.print(f"{what} {address}", markup=False, highlight=False, soft_wrap=True)


def _list(title: str, columns: tuple[str, ...], found: Iterable[Any], length: int | None, as_json: bool) -> None:
    """Print the first ``length`` rows (None: all) as they come, and say if there are more."""
    rows = iter(found)
    shown = islice(rows, length)
    if as_json:
        for row in shown:
            print_json(asdict(row))
    else:
        print_rows(title, columns, shown)
    if length is not None and next(rows, None) is not None:
        notes.print("there are more: give --length, --all or --start", highlight=False)
