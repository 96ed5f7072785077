"""``stratolog sh acl ...`` and ``stratolog sh token ...``: access control lists and delegation tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json, print_table
from stratolog.commands.sh.access import Asked, reads, writer
from stratolog.commands.sh.options import Consistency
from stratolog.configuration.credentials import read_credentials, write_credentials
from stratolog.errors import UsageError

Address = Annotated[
    str,
    typer.Argument(metavar="ADDRESS", help="/VOLUME, /VOLUME/BUCKET, /VOLUME/BUCKET/KEY, or with --prefix a prefix."),
]
Entries = Annotated[
    list[str],
    typer.Option(
        "--acl",
        metavar="ENTRY",
        help="TYPE:NAME:RIGHTS[SCOPE], as user:alice:rw[ACCESS] or world::r[DEFAULT]; repeatable.",
    ),
]
Prefix = Annotated[bool, typer.Option("--prefix", help="The address is a prefix of keys' names; it ends with a slash.")]
TokenFile = Annotated[Path, typer.Argument(metavar="FILE", help="File with a delegation token.")]


class AclAddress(NamedTuple):
    """What an address names."""

    volume: str
    bucket: str
    key: str
    prefix: str


def place_of_address(address: str, *, prefix: bool) -> AclAddress:
    """Return what an address names; raises UsageError.

    >>> place_of_address("/vol1/bucket1/logs/", prefix=True)
    AclAddress(volume='vol1', bucket='bucket1', key='', prefix='logs/')
    """
    volume, _, rest = address.removeprefix("/").partition("/")
    bucket, _, name = rest.partition("/")
    if not address.startswith("/") or not volume:
        raise UsageError(f"address {address!r} does not begin with /VOLUME")
    if prefix and not name.endswith("/"):
        raise UsageError(f"address {address!r} names no prefix: /VOLUME/BUCKET/PREFIX/")
    return AclAddress(volume, bucket, "" if prefix else name, name if prefix else "")


def _change(method: str, done: str, description: str) -> Callable[..., None]:
    """Return a command that changes a list: ``method`` is that of the client, ``done`` what is told."""

    def command(
        context: typer.Context, address: Address, acl: Entries, *, prefix: Prefix = False, as_json: JsonOption = False
    ) -> None:
        place = place_of_address(address, prefix=prefix)
        with writer(context, quiet=as_json) as client:
            getattr(client, method)(place.volume, place.bucket, acls=acl, key=place.key, prefix=place.prefix)
        if as_json:
            print_json({"done": done, "address": address, "acls": acl})
        else:
            console.print(f"{done} {', '.join(acl)}: {address}", markup=False, highlight=False, soft_wrap=True)

    command.__doc__ = description
    return command


add_acl = _change("add_acl", "added", "Add rights to an access control list.")
remove_acl = _change("remove_acl", "removed", "Take rights out of an access control list.")
set_acl = _change("set_acl", "set", "Replace an access control list.")


def get_acl(
    context: typer.Context, address: Address, *, prefix: Prefix = False, consistency: Consistency = "linearizable",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show an access control list."""
    place = place_of_address(address, prefix=prefix)
    with reads(context, Asked(None, None, consistency), quiet=as_json) as found_by:
        found = found_by.acl(place.volume, place.bucket, key=place.key, prefix=place.prefix, consistency=consistency)
    if as_json:
        print_json({"address": address, "owner": found.owner, "acls": found.acls})
        return
    print_table(f"{address}, owner {found.owner or 'none'}", ("entry",), [(acl,) for acl in found.acls])


def get_token(
    context: typer.Context, file: TokenFile, *,
    renewer: Annotated[str, typer.Option(help="User who may renew and cancel the token, too.")] = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Make a delegation token, in a file that nobody but its owner may read."""
    with writer(context, quiet=as_json) as client:
        token = client.get_delegation_token(renewer)
    write_credentials(file, token)
    _told(token.token, file, "is made", as_json)


def renew_token(context: typer.Context, file: TokenFile, *, as_json: JsonOption = False) -> None:
    """Let a delegation token live a day longer, until it is seven days old."""
    token = read_credentials(file)
    with writer(context, quiet=as_json) as client:
        client.renew_delegation_token(token)
    _told(token.token, file, "is renewed", as_json)


def cancel_token(context: typer.Context, file: TokenFile, *, as_json: JsonOption = False) -> None:
    """End a delegation token."""
    token = read_credentials(file)
    with writer(context, quiet=as_json) as client:
        client.cancel_delegation_token(token)
    _told(token.token, file, "is cancelled", as_json)


def list_tokens(
    context: typer.Context, *,
    owner: Annotated[str, typer.Option(help="Whose; for administrators. By default the caller's own.")] = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """List delegation tokens."""
    connected_settings_of(context)
    with reads(context, Asked(None, None, "linearizable"), quiet=as_json) as found_by:
        answer = found_by.get("/v1/tokens", {"owner": owner} if owner else {}, "linearizable")
    found: list[dict[str, Any]] = answer["tokens"]
    if as_json:
        for one in found:
            print_json(one)
        return
    rows = [(one["owner"], one["number"], one["renewer"] or None, one["expiry_time_ms"]) for one in found]
    print_table("Delegation tokens", ("owner", "number", "renewer", "expiry_time_ms"), rows)


def _told(token: str, file: Path, what: str, as_json: bool) -> None:
    if as_json:
        print_json({"token": token, "file": str(file), "done": what})
    else:
        console.print(f"token {token} {what}: {file}", markup=False, highlight=False, soft_wrap=True)
