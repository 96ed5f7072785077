"""``admin certificate make|hand-out|renew|revoke|revoked``: what the cluster's authority gives out, and takes back.

A key is made here, goes into a file that its owner alone may read, and is never shown. Processes that run read a
renewed file for their next connection.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from schemas.security.certificates import PeerIdentity, Role
from stratolog.brokers.access_rules import remove_access
from stratolog.brokers.admission import ROLES, admin_of
from stratolog.brokers.at_rest import with_stored_key
from stratolog.brokers.identities import authority_of
from stratolog.commands.common.invocation import JsonOption, settings_of
from stratolog.commands.common.output import console, print_json, print_table
from stratolog.configuration.settings import Settings
from stratolog.errors import Unavailable, UsageError
from stratolog.local.state import connected
from stratolog.security.authority import AUTHORITY_FILE, Authority, Issued
from stratolog.security.private_files import write_private

MAX_SERIAL_BITS = 160
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
    own.command("hand-out")(hand_out)
    own.command("renew")(renew)
    own.command("revoke")(revoke)
    own.command("revoked")(revoked)
    group.add_typer(own, name="certificate")


def make(
    context: typer.Context, name: NameArgument, *, role: RoleOption = Role.CLIENT, host: HostOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Give a holder a certificate for 30 days, with its key, in one file; one that is right stays as it is."""
    holder = _holder(name, role)
    authority = _authority(settings_of(context))
    _say([authority.certify(holder, host or (), now_s=int(time.time()))], authority, as_json=as_json)


def hand_out(
    context: typer.Context, name: NameArgument,
    file: Annotated[Path, typer.Option("--file", help="The holder's own file, which his programs name.")],
    *, role: RoleOption = Role.CLIENT, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write a holder's certificate and its key into a file for the holder, in clear: the cluster's copy is encrypted.

    'certificate make' comes first. After a renewal do it again.
    """
    holder = _holder(name, role)
    authority = _authority(settings_of(context))
    write_private(file, authority.in_clear(holder))
    if as_json:
        print_json({"holder": str(holder), "file": str(file), "authority": str(authority.ca_file)})
        return
    console.print(f"the certificate of {holder} is in {file}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"to be trusted: {authority.ca_file}", markup=False, highlight=False, soft_wrap=True)


def renew(
    context: typer.Context, *,
    all_: Annotated[bool, typer.Option("--all", help="Renew all at once, whatever time they have left.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Renew every certificate with less than a third of its time left. Do it daily: nothing is restarted."""
    authority = _authority(settings_of(context))
    now_s = int(time.time())
    issued = [authority.certify(holder, hosts, now_s=now_s, anew=all_) for holder, hosts in authority.holders()]
    _say(issued, authority, as_json=as_json)
    if authority.is_due(now_s):
        console.print("the authority's own certificate has less than a third of its time left", style="yellow")


def revoke(
    context: typer.Context,
    whose: Annotated[str, typer.Argument(help="A holder's name, or the serial number (hexadecimal) of one certificate.")],
    *, role: Annotated[Role | None, typer.Option(help="The holder's role, if several have the name.")] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Revoke the certificates of a holder, or one: from the next connection on no process hears who shows it.

    Brokers do not look at the list, so a member loses its rights there, until it is started with a new certificate of
    the same name. 'certificate make' gives it one.
    """
    settings = with_stored_key(settings_of(context))
    authority, now_s = _authority(settings), int(time.time())
    holder, serials = _chosen(authority, whose, role, now_s)
    authority.revocation.revoke(serials, now_s)
    at_brokers = _take_rights(settings, holder)
    shown = [f"{one:x}" for one in serials]
    if as_json:
        print_json({"revoked": shown, "holder": str(holder) if holder else None, "brokers": at_brokers})
        return
    whom = f"{len(serials)} of {holder}" if holder else "1"
    console.print(f"revoked: {whom} ({', '.join(shown)})", markup=False, highlight=False, soft_wrap=True)
    console.print(at_brokers, markup=False, highlight=False, soft_wrap=True)


def revoked(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show the serial numbers that are revoked, and since when; those that have expired are left out in time."""
    found = _authority(settings_of(context)).revocation.revoked()
    times = {f"{one:x}": datetime.fromtimestamp(since_s, UTC).isoformat() for one, since_s in found.items()}
    if as_json:
        print_json({"revoked": times})
        return
    print_table("Revoked certificates", ("serial", "since"), list(times.items()))


def _holder(name: str, role: Role) -> PeerIdentity:
    try:
        return PeerIdentity(name=name, role=role)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _chosen(
    authority: Authority, whose: str, role: Role | None, now_s: int
) -> tuple[PeerIdentity | None, list[int]]:  # fmt: skip
    """Return the holder, if one is named, and the serial numbers that are meant; raises UsageError if none is."""
    given = authority.revocation.given_out()
    holders = {one.holder for one in given} | {holder for holder, _ in authority.holders()}
    named = sorted((one for one in holders if one.name == whose and role in (None, one.role)), key=str)
    if len(named) > 1:
        raise UsageError(f"{whose} has certificates as {', '.join(one.role for one in named)}: give --role")
    if named:
        return named[0], authority.certificates_of(named[0], now_s)
    try:
        serial = int(whose.replace(":", ""), 16)
    except ValueError:
        raise UsageError(f"nobody called {whose!r} has a certificate, and it is no serial number") from None
    if not 0 < serial < 1 << MAX_SERIAL_BITS:
        raise UsageError(f"{whose} is no serial number: those have at most {MAX_SERIAL_BITS // 8} bytes")
    return None, [serial]


def _take_rights(settings: Settings, holder: PeerIdentity | None) -> str:
    """Take a member's rights on running brokers; say what was done, or what is to be done."""
    kinds = {role: kind for kind, role in ROLES.items()}
    if holder is None:
        return "brokers do not look at the list: they trust that certificate until it ends"
    if holder.role in (Role.BROKER, Role.ADMIN):
        return (
            "brokers do not look at the list, and their super-users need no rights: to end its use there, 'stratolog "
            "down', remove authority/, 'stratolog up'"
        )
    if holder.role not in kinds:
        return "the holder has no rights on brokers, once they have been started by this release"
    running = connected(settings)
    try:
        remove_access(admin_of(running.connection), kinds[holder.role], holder.name)
    except (Unavailable, UsageError) as error:
        return f"brokers do not look at the list, and its rights there could not be taken: {error}"
    return (
        f"{holder} has no rights on the brokers any more: give it a new certificate ('certificate make'), then stop and "
        "start it"
    )


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
