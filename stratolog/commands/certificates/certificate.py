"""``admin certificate make|renew``: what the cluster's authority gives out, beside what ``up --secure`` makes itself.

A key is made here, goes into a file that its owner alone may read, and is never shown. Processes that run read a
renewed file for their next connection.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from schemas.security.certificates import PeerIdentity, Role
from stratolog.brokers.at_rest import with_stored_key
from stratolog.brokers.identities import authority_of
from stratolog.commands.common.invocation import JsonOption, settings_of
from stratolog.commands.common.output import console, print_json
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.security.authority import AUTHORITY_FILE, Authority, Issued

NameArgument = Annotated[str, typer.Argument(help="Whose certificate it is: a user, a node, a program.")]
RoleOption = Annotated[Role, typer.Option(help="What its holder is for; an admin may do everything.")]
HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="HOST", help="A name or address at which its holder is reached; again for more."),
]


def register(group: typer.Typer) -> None:
    """Add the commands."""
    own = typer.Typer(no_args_is_help=True, help="Certificates that the authority of a secure cluster gives out.")
    own.command("make")(make)
    own.command("renew")(renew)
    group.add_typer(own, name="certificate")


def make(
    context: typer.Context, name: NameArgument, *, role: RoleOption = Role.CLIENT, host: HostOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Give a holder a certificate for 30 days, with its key, in one file; one that is right stays as it is."""
    try:
        holder = PeerIdentity(name=name, role=role)
    except ValueError as error:
        raise UsageError(str(error)) from error
    authority = _authority(settings_of(context))
    _say([authority.certify(holder, host or (), now_s=int(time.time()))], authority, as_json=as_json)


def renew(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Renew every certificate with less than a third of its time left. Do it daily: nothing is restarted."""
    authority = _authority(settings_of(context))
    now_s = int(time.time())
    issued = [authority.certify(holder, hosts, now_s=now_s) for holder, hosts in authority.holders()]
    _say(issued, authority, as_json=as_json)
    if authority.is_due(now_s):
        console.print("the authority's own certificate has less than a third of its time left", style="yellow")


def _authority(settings: Settings) -> Authority:
    """Open the authority of the data directory; raises UsageError if it has none: it is not made by the way."""
    if not (settings.data_dir / "authority" / AUTHORITY_FILE).exists():
        raise UsageError(f"there is no authority in {settings.data_dir}: 'stratolog up --secure' makes one")
    settings = with_stored_key(settings)
    return authority_of(settings.data_dir, settings.cluster, settings.key_encryption_file)


def _say(issued: list[Issued], authority: Authority, *, as_json: bool) -> None:
    if as_json:
        found = [{"file": str(one.path), "made_because": one.reason} for one in issued]
        print_json({"authority": str(authority.ca_file), "certificates": found})
        return
    for one in issued:
        what = "stays as it is" if one.reason is None else f"is new: {one.reason}"
        console.print(f"{one.path} {what}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"to be trusted: {authority.ca_file}", markup=False, highlight=False, soft_wrap=True)
