"""``stratolog sh snapshot ...``: snapshots of a bucket, with the words of ``ozone sh snapshot``.

The keys of a snapshot are read by the commands of ``sh key``, as ``/VOLUME/BUCKET/.snapshot/NAME/KEY``.
"""

from __future__ import annotations

from typing import Annotated

import typer

from stratolog.commands.common import addresses
from stratolog.commands.common.addresses import Address
from stratolog.commands.common.invocation import JsonOption
from stratolog.commands.common.names import settings_for_completion
from stratolog.commands.sh.access import Asked, reads, writer
from stratolog.commands.sh.options import (
    DEFAULT_LENGTH,
    All,
    Bucket,
    Consistency,
    Length,
    Node,
    Prefix,
    Session,
    Start,
)
from stratolog.commands.sh.results import print_done, print_list
from stratolog.commands.sh.rows import print_fields

MAX_COMPLETIONS = 50
"""Most names of snapshots that a shell is offered."""
COMPLETION_MS = 1_000
"""How long a shell that completes a name waits for a node."""


def snapshot_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of the given bucket's snapshots that begin with ``incomplete``; none if no node answers soon."""
    address, settings = context.params.get("address"), settings_for_completion()
    if not isinstance(address, Address) or settings is None:
        return []
    from producers.errors import StratologError
    from producers.reads.reads import Reads
    from stratolog.cluster.connection import node_urls

    asked = Reads(node_urls(settings), deadline_ms=COMPLETION_MS)
    try:
        found = asked.list_snapshots(
            address.volume, address.bucket, prefix=incomplete, limit=MAX_COMPLETIONS, consistency="stale"
        )
        return [one.snapshot for one in found]
    except StratologError:
        return []
    finally:
        asked.close()


Name = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="Name of the snapshot.", autocompletion=snapshot_names)
]  # fmt: skip


def _place(bucket: Address, snapshot: str) -> Address:
    """Return the address under which a snapshot's keys are read."""
    return Address(volume=bucket.volume, bucket=bucket.bucket, key=f".snapshot/{snapshot}")


def create_snapshot(
    context: typer.Context, address: Bucket,
    snapshot: Annotated[
        str | None, typer.Argument(metavar="[SNAPSHOT]", help="Its name; without, one is made of the time.")
    ] = None,
    *, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Keep a bucket as it is now.

    Read it with 'stratolog sh key list /VOLUME/BUCKET --prefix .snapshot/SNAPSHOT/' and 'stratolog sh key get
    /VOLUME/BUCKET/.snapshot/SNAPSHOT/KEY FILE'.
    """
    with writer(context, quiet=as_json) as client:
        made = client.create_snapshot(address.volume, address.bucket, snapshot or "")
        print_done(
            "created", _place(address, made.snapshot), client, as_json,
            snapshot=made.snapshot, snapshot_id=made.snapshot_id,
        )  # fmt: skip


def delete_snapshot(context: typer.Context, address: Bucket, snapshot: Name, *, as_json: JsonOption = False) -> None:
    """Delete a snapshot. Its name is free at once, its space soon."""
    with writer(context, quiet=as_json) as client:
        client.delete_snapshot(address.volume, address.bucket, snapshot)
        print_done("deleted", _place(address, snapshot), client, as_json)


def rename_snapshot(
    context: typer.Context, address: Bucket, snapshot: Name,
    to: Annotated[str, typer.Argument(metavar="NEW_NAME", help="Its new name.")],
    *, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Give a snapshot another name within its bucket."""
    with writer(context, quiet=as_json) as client:
        client.rename_snapshot(address.volume, address.bucket, snapshot, to)
        print_done(f"renamed {_place(address, snapshot)} to", _place(address, to), client, as_json)


def set_snapshot_properties(
    context: typer.Context, address: Bucket, snapshot: Name,
    properties: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Properties; 'NAME=' removes one, others stay.")
    ],
    *, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Set properties of a snapshot, such as who wants it and until when."""
    given = dict(map(addresses.property_item, properties))
    with writer(context, quiet=as_json) as client:
        client.set_snapshot_properties(address.volume, address.bucket, snapshot, given)
        print_done("set properties of", _place(address, snapshot), client, as_json)


def snapshot_info(
    context: typer.Context, address: Bucket, snapshot: Name, *, consistency: Consistency = "linearizable",
    session: Session = None, node: Node = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show a snapshot, and what it takes on the disk of the node that answers.

    The disk holds the shard's metadata as it was. 'only disk bytes' are those that removing this snapshot would free;
    the others are shared with the shard itself, or with other snapshots. The bytes of keys are on the datanodes.
    """
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        view = found_by.snapshot_info(address.volume, address.bucket, snapshot, consistency=consistency)
        print_fields(str(_place(address, snapshot)), view, as_json)


def list_snapshots(
    context: typer.Context, address: Bucket, *, prefix: Prefix = "", start: Start = "", length: Length = DEFAULT_LENGTH,
    every: All = False, consistency: Consistency = "linearizable", session: Session = None, node: Node = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """List a bucket's snapshots by name."""
    with reads(context, Asked(node, session, consistency), quiet=as_json) as found_by:
        found = found_by.list_snapshots(
            address.volume, address.bucket, prefix=prefix, start_after=start, consistency=consistency
        )
        columns = ("snapshot", "referenced_keys", "referenced_bytes", "creator", "creation_time_ms")
        print_list(f"Snapshots of {address}", columns, found, None if every else length, as_json)
