"""Arguments and options of ``stratolog sh``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from stratolog.commands.common import addresses
from stratolog.commands.common.addresses import Address
from stratolog.commands.common.names import node_names

DEFAULT_LENGTH = 100

Volume = Annotated[Address, typer.Argument(parser=addresses.volume_address, metavar="/VOLUME")]
Bucket = Annotated[Address, typer.Argument(parser=addresses.bucket_address, metavar="/VOLUME/BUCKET")]
Place = Annotated[Address, typer.Argument(parser=addresses.place_address, metavar="/VOLUME[/BUCKET]")]
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
