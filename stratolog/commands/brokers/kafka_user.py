"""``admin kafka-user add|rotate|remove|list``: users who log in to the brokers of a secure cluster with a password.

A password is made here, goes to the brokers over TLS and into a file that its owner alone may read; it is never shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from schemas.kafka.access import KafkaPrincipal
from schemas.topics import OM_RESPONSES
from stratolog.brokers.access_rules import are_acls_kept, ensure_access
from stratolog.brokers.admission import admin_of
from stratolog.brokers.at_rest import with_stored_key
from stratolog.brokers.identities import password_file
from stratolog.brokers.kafka_users import add_user, check_name, password_of, remove_user, set_password, users
from stratolog.cluster.reach import check_brokers
from stratolog.commands.common.invocation import JsonOption, connected_settings_of, settings_of
from stratolog.commands.common.output import console, print_json
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.local.stack import topic_plan
from stratolog.security.key_encryption import KeyEncryption
from stratolog.security.private_files import write_private

NameArgument = Annotated[str, typer.Argument(help="The user: letters, digits and '-'.")]
FileOption = Annotated[
    Path | None, typer.Option("--password-file", help="Where the password goes. By default: kafka-users/NAME.password.")
]


def register(group: typer.Typer) -> None:
    """Add the commands."""
    own = typer.Typer(no_args_is_help=True, help="Users who log in to the brokers of a secure cluster.")
    own.command("add")(add)
    own.command("rotate")(rotate)
    own.command("hand-out")(hand_out)
    own.command("remove")(remove)
    own.command("list")(list_)
    group.add_typer(own, name="kafka-user")


def add(
    context: typer.Context, name: NameArgument, *, file: FileOption = None, as_json: JsonOption = False
) -> None:  # fmt: skip
    """Make a user: a password in a file, the right to send requests, a topic for responses that nobody else reads."""
    settings = secure_settings(context)
    path, keys = _place(settings, name, file)
    plan = topic_plan(settings)
    made = add_user(
        admin_of(settings.connection), name, path, plan.topics()[OM_RESPONSES].settings, plan.replication_factor, keys
    )
    _say(f"user {name} {'is made' if made else 'is there already'}; the password is in {path}",
         {"user": name, "made": made, "password_file": str(path)}, as_json=as_json)  # fmt: skip


def rotate(
    context: typer.Context, name: NameArgument, *, file: FileOption = None, as_json: JsonOption = False
) -> None:  # fmt: skip
    """Give a user a new password, in the same file. Open connections stay; who is refused reads the file again."""
    settings = secure_settings(context)
    admin = admin_of(settings.connection)
    if name not in users(admin, may_ask=True):
        raise UsageError(f"no user {name!r}: 'stratolog admin kafka-user add {name}' makes one")
    path, keys = _place(settings, name, file)
    set_password(admin, name, path, keys)
    ensure_access(admin, [(KafkaPrincipal.USER, name)])
    _say(f"user {name} has a new password, in {path}", {"user": name, "password_file": str(path)}, as_json=as_json)


def hand_out(
    context: typer.Context, name: NameArgument,
    file: Annotated[Path, typer.Option("--file", help="The user's own file, which his programs name.")],
    *, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write a user's password into a file for the user, in clear: the cluster's own copy is encrypted."""
    settings = with_stored_key(settings_of(context))
    write_private(file, password_of(name, password_file(settings.data_dir, check_name(name)), settings.keys()))
    _say(f"the password of user {name} is in {file}", {"user": name, "password_file": str(file)}, as_json=as_json)


def remove(
    context: typer.Context, name: NameArgument, *, file: FileOption = None, as_json: JsonOption = False
) -> None:  # fmt: skip
    """Remove a user, with his rights, his password's file and his responses. Open connections lose their rights."""
    settings = secure_settings(context)
    path, _ = _place(settings, name, file)
    was_there = remove_user(admin_of(settings.connection), name, path)
    _say(f"user {name} {'is removed' if was_there else 'was not there'}",
         {"user": name, "removed": was_there}, as_json=as_json)  # fmt: skip


def list_(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show the users who have a password."""
    found = users(admin_of(secure_settings(context).connection), may_ask=True)
    _say("\n".join(found) or "no users", {"users": found}, as_json=as_json)


def _place(settings: Settings, name: str, file: Path | None) -> tuple[Path, KeyEncryption | None]:
    """Return where a password goes, and under what: the cluster's own copy is encrypted, a file for its user is not."""
    if file is not None:
        check_name(name)
        return file, None
    return password_file(settings.data_dir, check_name(name)), settings.keys()


def secure_settings(context: typer.Context) -> Settings:
    """Return the settings that reach brokers which know who asks; raises UsageError, Unavailable for others."""
    settings = connected_settings_of(context)
    check_brokers(settings)
    if not settings.connection.has_tls or not are_acls_kept(admin_of(settings.connection)):
        raise UsageError(
            f"the brokers at {settings.bootstrap_servers} ask nobody who he is: 'stratolog up --secure' starts a stack "
            "whose brokers do"
        )
    return settings


def _say(text: str, values: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(values)
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
