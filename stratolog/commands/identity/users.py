"""``stratolog admin user``: users, and the files with their credentials. Registered by ``admin``.

A user's secret is derived from the cluster's secret (decision 0071). So the command that makes it needs that file, no
server keeps it, and it goes nowhere but into the file that this command writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratolog.cluster.connection import client_of, reads_of
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json, print_table
from stratolog.commands.common.waiting import waiting
from stratolog.configuration.credentials import write_credentials
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError

if TYPE_CHECKING:
    from schemas.records.messages import RequestBody

DEFAULT_OVERLAP_S = 24 * 3600
UNKNOWN = "whether it was done is not known: 'stratolog admin user list' tells"

User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
File = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Where the credentials go; by default DATA_DIR/credentials/USER."),
]


def register(group: typer.Typer) -> None:
    """Add the commands to the group ``admin``."""
    users = typer.Typer(no_args_is_help=True, help="Users: who may sign requests.")
    users.command("add")(add)
    users.command("rotate")(rotate)
    users.command("remove")(remove)
    users.command("list")(list_users)
    group.add_typer(users, name="user")


def add(
    context: typer.Context,
    user: User,
    *,
    administrator: Annotated[bool, typer.Option("--administrator", help="The user may do everything.")] = False,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="GROUP", help="A group that the user is in; repeatable.")
    ] = None,
    file: File = None,
    as_json: JsonOption = False,
) -> None:
    """Make a user, and a file with its credentials, which nobody but the file's owner may read."""
    from schemas.records.identity import CreateUser

    _check_name(user)
    settings = connected_settings_of(context)
    body = CreateUser(user=user, administrator=administrator, groups=list(group or ()))
    _with_new_secret(settings, user, body, file, "is made", as_json)


def rotate(
    context: typer.Context,
    user: User,
    *,
    overlap: Annotated[
        int, typer.Option(metavar="SECONDS", min=0, help="How long the secret of before is taken besides.")
    ] = DEFAULT_OVERLAP_S,
    file: File = None,
    as_json: JsonOption = False,
) -> None:
    """Give a user a new secret, in a new file. The one of before, and tokens made with it, are taken for a while."""
    from schemas.records.identity import RotateUser

    _check_name(user)
    settings = connected_settings_of(context)
    body = RotateUser(user=user, overlap_ms=1000 * overlap)
    _with_new_secret(settings, user, body, file, "has a new secret", as_json)


def _check_name(user: str) -> None:
    """Raise UsageError for the name that stands for the keys of block tokens."""
    from schemas.access.block_tokens import TOKEN_KEYS_USER

    if user == TOKEN_KEYS_USER:
        raise UsageError(f"{user} has the keys of block tokens, and is nobody: 'stratolog admin block-tokens roll'")


def _with_new_secret(
    settings: Settings, user: str, body: RequestBody, file: Path | None, what: str, as_json: bool
) -> None:
    from schemas.access.credentials import TokenName, credentials_of

    secret = settings.secret()
    generation = _ask(settings, body, as_json)
    credentials = credentials_of(secret, TokenName(user=user, generation=generation, number=0))
    path = file or settings.data_dir / "credentials" / user
    write_credentials(path, credentials)
    if as_json:
        print_json({"user": user, "token": credentials.token, "file": str(path)})
    else:
        text = f"user {user} {what}: credentials_file = {path}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def remove(context: typer.Context, user: User, *, as_json: JsonOption = False) -> None:
    """Forget a user and its delegation tokens. What it owns stays, under its name."""
    from schemas.records.identity import RemoveUser

    _check_name(user)
    index = _ask(connected_settings_of(context), RemoveUser(user=user), as_json)
    if as_json:
        print_json({"user": user, "index": index})
    else:
        console.print(f"user {user} is removed", markup=False, highlight=False)


def _ask(settings: Settings, body: RequestBody, as_json: bool) -> int:
    with (
        waiting(settings, type(body).__name__, UNKNOWN, quiet=as_json),
        client_of(settings, operator=True) as client,
    ):
        return client.call(body).index


def list_users(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """List the users."""
    from schemas.access.block_tokens import TOKEN_KEYS_USER

    settings = connected_settings_of(context)
    with reads_of(settings) as reads:
        users: list[dict[str, Any]] = reads.get("/v1/users", {}, "linearizable")["users"]
    found = [one for one in users if one["user"] != TOKEN_KEYS_USER]
    if as_json:
        for one in found:
            print_json(one)
        return
    rows = [
        (one["user"], "yes" if one["administrator"] else None, ", ".join(one["groups"]) or None, one["generation"])
        for one in found
    ]
    print_table("Users", ("user", "administrator", "groups", "generation"), rows)
