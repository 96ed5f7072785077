"""``stratolog topics ensure``: create a cluster's topics, or verify them."""

from __future__ import annotations

import typer

from stratolog.commands.common import JsonOption, connected_settings_of, console, print_json
from stratolog.local.stack import topic_plan
from stratolog.local.topics import ensure_topics


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="The topics of a cluster.")
    group.command("ensure")(ensure)
    app.add_typer(group, name="topics")


def ensure(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Create the topics that are missing with the settings that the log needs, and verify the others."""
    settings = connected_settings_of(context)
    plan = topic_plan(settings)
    created = ensure_topics(settings.bootstrap_servers, plan)
    verified = [name for name in plan.topics() if name not in created]
    if as_json:
        print_json({"created": created, "verified": verified})
    else:
        console.print(
            f"created: {', '.join(created) or 'none'}", f"verified: {', '.join(verified) or 'none'}", sep="\n"
        )
