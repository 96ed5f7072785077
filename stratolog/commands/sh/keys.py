"""``stratolog sh key ...``, without the commands that move bytes (``key_bytes``)."""

from __future__ import annotations

from typing import Annotated

import typer

from stratolog.commands.common import addresses
from stratolog.commands.common.addresses import Address
from stratolog.commands.common.invocation import JsonOption
from stratolog.commands.sh.access import Asked, reads, writer
from stratolog.commands.sh.options import (
    DEFAULT_LENGTH,
    All,
    Bucket,
    Consistency,
    Key,
    Length,
    Metadata,
    Node,
    Prefix,
    Session,
    Size,
    Start,
)
from stratolog.commands.sh.results import print_done, print_list
from stratolog.commands.sh.rows import print_fields


def create_key(
    context: typer.Context, address: Key, *,
    size: Size = None, metadata: Metadata = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Create a key: opens it, allocates its blocks and commits it.

    Metadata only, no bytes are stored: 'stratolog sh key put' writes a file. 'stratolog ingest' does the same for the
    files of a tree.
    """
    from producers.requests.keys import fit_blocks

    given, length = dict(map(addresses.metadata_item, metadata or [])), size or 0
    with writer(context, quiet=as_json) as client:
        place = (address.volume, address.bucket, address.key)
        opened = client.create_key(*place, size=length, metadata=given)
        client.commit_key(*place, opened.session_id, size=length, blocks=fit_blocks(opened.blocks, length))
        print_done("created", address, client, as_json)


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
        print_list(f"Keys of {address}", columns, found, None if every else length, as_json)


def delete_key(context: typer.Context, address: Key, *, as_json: JsonOption = False) -> None:
    """Delete a key."""
    with writer(context, quiet=as_json) as client:
        client.delete_key(address.volume, address.bucket, address.key)
        print_done("deleted", address, client, as_json)


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
        print_done(f"renamed {old} to", new, client, as_json)
