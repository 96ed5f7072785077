"""``stratolog jars fetch``: the jars of the broker, of Spark's connectors and of Delta, once."""

from __future__ import annotations

from contextlib import suppress

import typer

from stratolog.commands.common.invocation import JsonOption, settings_of
from stratolog.commands.common.output import console, print_json, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.errors import Unavailable
from stratolog.local.jars import delta_jars, kafka_jars, spark_jars
from stratolog.local.kafka import make_class_archive


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="The jars of Kafka, of Spark's connectors and of Delta.")
    group.command("fetch")(fetch)
    app.add_typer(group, name="jars")


def fetch(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Fetch the jars by Maven, and make the archive of the broker's classes, unless they are in the cache;
    several processes may do so at once.
    """
    settings = settings_of(context)
    with progress(as_json) as report, interruptible("what is not whole is not kept: give the command again"):
        report("jars of Kafka")
        kafka = kafka_jars(settings.cache_dir)
        report("the broker's classes, for a quick start")
        with suppress(Unavailable):  # brokers also start without the archive
            make_class_archive(kafka)
        report("jars of Spark's connectors")
        spark = spark_jars(settings.cache_dir)
        report("jars of Delta, for tables of the log")
        delta = delta_jars(settings.cache_dir)
    if as_json:
        print_json({"kafka": str(kafka), "spark": [str(jar) for jar in spark], "delta": [str(jar) for jar in delta]})
    else:
        folders = (f"Kafka: {kafka}", f"Spark: {spark[0].parent}", f"Delta: {delta[0].parent}")
        console.print(*folders, sep="\n", highlight=False, soft_wrap=True)
