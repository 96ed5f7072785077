"""``stratolog admin block-tokens``: the keys of block tokens (decision 0074). Registered by ``admin``.

No command shows or takes a key: keys are derived from the cluster's secret, and the log has their ids.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from stratolog.cluster.connection import client_of, reads_of
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json
from stratolog.commands.common.waiting import waiting
from stratolog.errors import UserError

UNKNOWN = "whether it was done is not known: 'stratolog admin block-tokens show' tells"


def register(group: typer.Typer) -> None:
    """Add the commands to the group ``admin``."""
    tokens = typer.Typer(no_args_is_help=True, help="Keys of block tokens, which datanodes check.")
    tokens.command("roll")(roll)
    tokens.command("show")(show)
    group.add_typer(tokens, name="block-tokens")


def roll(
    context: typer.Context,
    *,
    overlap: Annotated[
        int, typer.Option(metavar="SECONDS", min=0, help="How long tokens of before are taken besides.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Roll the key of block tokens now, as after a theft: tokens of before end. Nodes roll it daily by themselves."""
    from schemas.access.block_tokens import TOKEN_KEYS_USER
    from schemas.records.identity import RotateUser

    settings = connected_settings_of(context)
    body = RotateUser(user=TOKEN_KEYS_USER, overlap_ms=1000 * overlap)
    with waiting(settings, "RotateUser", UNKNOWN, quiet=as_json), client_of(settings, operator=True) as client:
        index = client.call(body).index
    if as_json:
        print_json({"key": index, "overlap_s": overlap})
    else:
        console.print(f"key {index} of block tokens is the newest; datanodes are told within seconds", highlight=False)


def show(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show the ids of the keys: the newest, when it was rolled, and until when the one of before is taken."""
    from schemas.access.block_tokens import TOKEN_KEYS_USER

    settings = connected_settings_of(context)
    with reads_of(settings) as reads:
        users: list[dict[str, Any]] = reads.get("/v1/users", {}, "linearizable")["users"]
    row = next((one for one in users if one["user"] == TOKEN_KEYS_USER), None)
    if row is None:
        raise UserError(
            "no key of block tokens was made: the nodes have 'block_tokens' off, or the feature level is below "
            "ACCESS_CONTROL ('stratolog admin finalize')"
        )
    found = {
        "key": row["generation"], "rolled_at_ms": row["modification_time_ms"],
        "before_until_ms": row["previous_until_ms"],
    }  # fmt: skip
    if as_json:
        print_json(found)
    else:
        rolled, until_ms = _time(found["rolled_at_ms"]), found["before_until_ms"]
        before = f"the one of before is taken until {_time(until_ms)}" if until_ms else "none of before is taken"
        console.print(f"key {found['key']} of block tokens, rolled {rolled}; {before}", highlight=False, soft_wrap=True)


def _time(ms: int) -> str:
    """Return a time for people.

    >>> _time(1_750_000_000_000)
    '2025-06-15T15:06:40+00:00'
    """
    return datetime.fromtimestamp(ms // 1000, UTC).isoformat()
