"""``stratolog topics ensure``: create a cluster's topics, or verify them."""

from __future__ import annotations

import typer

from stratolog.cluster.reach import check_brokers
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json
from stratolog.commands.common.waiting import waiting
from stratolog.errors import UsageError
from stratolog.local.stack import topic_plan
from stratolog.local.state import read_state
from stratolog.local.topics import ensure_topics


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="The topics of a cluster.")
    group.command("ensure")(ensure)
    app.add_typer(group, name="topics")


def ensure(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Create the topics that are missing with the settings that the log needs, and verify the others."""
    settings = connected_settings_of(context)
    known = read_state(settings.data_dir)
    if "bootstrap_servers" not in settings.explicit and (known is None or not known.running()):
        # The Kafka at the default address may be anybody's.
        raise UsageError(
            f"whose topics? no stack is running in {settings.data_dir}: give STRATOLOG_BOOTSTRAP_SERVERS, or "
            "'bootstrap_servers' in the settings file"
        )
    check_brokers(settings)
    plan = topic_plan(settings)
    left = "topics that were created stay: give the command again, it creates what is missing"
    with waiting(settings, "topics", left, quiet=as_json):
        created = ensure_topics(settings.connection, plan)
    verified = [name for name in plan.topics() if name not in created]
    if as_json:
        print_json({"created": created, "verified": verified})
    else:
        console.print(
            f"created: {', '.join(created) or 'none'}", f"verified: {', '.join(verified) or 'none'}", sep="\n"
        )
