"""``stratolog broker run NUMBER``: run one Kafka broker that knows who asks, in this process, until SIGTERM."""

from __future__ import annotations

from typing import Annotated

import typer

from stratolog.commands.brokers.one_broker import run_broker
from stratolog.commands.common.invocation import settings_of


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="Kafka brokers that know who asks, each a process of its own.")
    group.command("run")(run)
    app.add_typer(group, name="broker")


def run(
    context: typer.Context,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="Which of the setting 'brokers', from 1.")],
) -> None:
    """Run one broker in this process until SIGTERM, as 'up --secure' starts it; its data is in 'data_dir'.

    Its keys are made by 'stratolog admin keys make'.
    """
    run_broker(settings_of(context), number)
