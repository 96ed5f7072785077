"""The ``stratolog`` command: groups are in ``stratolog.commands``, exit codes in ``stratolog.errors``.

An error that a person can act on becomes one sentence on standard error (a JSON object with ``--json``) and an exit
code. Any other error is a defect and keeps its traceback.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from schemas.settings.declaring import OldSettingName
from stratolog.commands.common.helps import tidied
from stratolog.commands.common.invocation import Invocation, JsonOption
from stratolog.commands.common.output import complain, print_json, printed
from stratolog.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNAVAILABLE, Unavailable, UserError
from stratolog.extras import missing_extra
from stratolog.local.state import OTHER_DIR

COMMANDS = {
    "demo": "demo", "up": "stack", "down": "stack", "status": "stack", "ingest": "ingest", "sh": "sh.group",
    "quota": "sh.group",
    "audit": "audit", "tables": "tables.tables", "sql": "tables.sql", "ui": "dashboard.ui", "bench": "bench",
    "debug": "debug", "admin": "admin.group",
    "backup": "backups.backup", "restore": "backups.restore", "drill": "drill", "node": "node", "datanode": "datanode",
    "broker": "brokers.broker", "topics": "topics", "jars": "jars", "alerts": "observing.alerts",
}  # fmt: skip
"""Module in ``stratolog.commands`` of each command, in the order in which ``--help`` lists them."""

EXIT_STATUS_HELP = (
    "Exit status: 0 done; 1 the answer is no (a check failed, a request was refused); 2 wrong usage or settings; "
    "3 something needed is missing (no running stack, no broker, no Java); 130 interrupted."
)


def build_app(words: Iterable[str] = ()) -> typer.Typer:
    """Return the command with all its groups, or with the one group that ``words`` (the arguments) name.

    Importing all groups takes half a second: too long for a node that starts, or for ``sh`` in a loop.
    """
    app = typer.Typer(
        name="stratolog",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        epilog=EXIT_STATUS_HELP,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    named = _named(words)
    for module in dict.fromkeys([COMMANDS[named]] if named else COMMANDS.values()):
        import_module(f"stratolog.commands.{module}").register(app)
    app.command("version")(_version)
    return app


def _named(words: Iterable[str]) -> str | None:
    """Return the command that the arguments name; None if anything but ``--config FILE`` comes before it."""
    rest = list(words)
    while rest and rest[0].startswith("--config"):
        del rest[: 1 if "=" in rest[0] else 2]
    return rest[0] if rest and rest[0] in COMMANDS else None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stratolog {metadata.version('stratolog')}")
        raise typer.Exit


def _root(
    context: typer.Context,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Settings file (TOML); else STRATOLOG_CONFIG, else stratolog.toml of this directory or one above."
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version, and end.")
    ] = False,
) -> None:
    """An object store's metadata path on Kafka: leader-side execution, and an audit in Spark."""
    del version
    context.obj = Invocation(config=config)


def _version(*, as_json: JsonOption = False) -> None:
    """Show the versions of Stratolog, and of the Kafka and Spark that it runs."""
    from stratolog.local.jars import KAFKA_VERSION, SPARK_VERSION

    found = {"stratolog": metadata.version("stratolog"), "kafka": KAFKA_VERSION, "spark": SPARK_VERSION}
    if as_json:
        print_json(found)
    else:
        typer.echo("\n".join(f"{name} {version}" for name, version in found.items()))


_with_its_place = warnings.formatwarning


def _warning_text(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
    """Return how a warning is shown: those about settings concern who runs the command, not where its code is."""
    if category is OldSettingName:
        return f"warning: {message}\n"
    return _with_its_place(message, category, *where, **more)


def main() -> None:
    """Run the command with the process's arguments; ends the process."""
    warnings.formatwarning = _warning_text
    try:
        tidied(build_app(sys.argv[1:]))(prog_name="stratolog")
    except SystemExit as ended:
        # Typer ends an interrupted command silently. Some commands complain themselves (commands/common/waiting.py).
        if ended.code == EXIT_INTERRUPTED and not printed.complaints:
            complain("Interrupted", "interrupted", "before the command had begun, or when it was done")
        raise
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Without this, the interpreter would complain when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except Exception as error:
        if (missing := missing_extra(error)) is not None:
            error = Unavailable(missing)
        elif isinstance(error, PermissionError) and error.filename:
            # Any code may meet this error: even a look into a directory needs permission to enter it.
            error = UserError(f"{error.filename}: {error.strerror}; {OTHER_DIR}")
        code = exit_code_of(error)
        if code is None:
            raise
        # A refused request also has a result code (schemas/result_codes.py).
        more = {"code": error.status} if hasattr(error, "status") else {}
        complain(type(error).__name__, "error", str(error), **more)
        sys.exit(code)


def exit_code_of(error: Exception) -> int | None:
    """Return the exit code of an error that a person can act on, None for a defect."""
    if isinstance(error, UserError):
        return error.exit_code
    from producers.errors import RetryableError, StratologError

    if isinstance(error, StratologError):
        return EXIT_UNAVAILABLE if isinstance(error, RetryableError) else EXIT_FAILED
    return None
