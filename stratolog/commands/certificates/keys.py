"""``admin keys make|status|encrypt|rotate|decrypt``: keys of a cluster, and the key under which they are encrypted.

What is done to a stack's files is in ``stratolog.brokers.at_rest``, what a cluster elsewhere needs in
``stratolog.brokers.cluster_keys``; each command may be killed, and given again.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from schemas.kafka.connection import KEY_PASSWORD_FILE
from stratolog.brokers import at_rest
from stratolog.brokers.cluster_keys import make_cluster_keys
from stratolog.commands.common.invocation import JsonOption, settings_of
from stratolog.commands.common.output import console, print_json, print_table
from stratolog.configuration.loading import load_settings
from stratolog.configuration.settings import Settings
from stratolog.errors import UsageError
from stratolog.local import state
from stratolog.security.key_encryption import KeyEncryption, default_file

FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="Where the key is, or is made: elsewhere than copies of the data directory go."),
]


def register(group: typer.Typer) -> None:
    """Add the commands."""
    own = typer.Typer(no_args_is_help=True, help="The key under which keys and secrets are encrypted in their files.")
    own.command("make")(make)
    own.command("status")(status)
    own.command("encrypt")(encrypt)
    own.command("rotate")(rotate)
    own.command("decrypt")(decrypt)
    group.add_typer(own, name="keys")


def make(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where processes find their keys, and nobody else looks.")
    ],
    *, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Make the keys and secrets of a cluster that runs in containers or on other machines, as the settings name it.

    The authority's key stays in 'data_dir', the key under which all are encrypted in 'key_encryption_file'. Given
    again, it renews certificates with a third of their time left, and leaves all else as it is.
    """
    settings = settings_of(context)
    done = make_cluster_keys(settings, folder.absolute())
    key_file = settings.key_encryption_file or default_file(settings.data_dir)
    _say("made", done, f"they are encrypted under {key_file}, which each process reads, too", as_json)


def status(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show which files hold keys and secrets, and whether they are encrypted."""
    settings = at_rest.with_stored_key(settings_of(context))
    found = [(str(one.path), one.is_encrypted) for one in at_rest.secret_files(settings)]
    key_file = None if settings.key_encryption_file is None else str(settings.key_encryption_file)
    if as_json:
        print_json(
            {"key_encryption_file": key_file, "files": [{"file": path, "encrypted": is_so} for path, is_so in found]}
        )
        return
    rows = [(path, "encrypted" if is_so else "in clear") for path, is_so in found]
    print_table(f"Key-encryption key: {key_file or 'none'}", ("file", "state"), rows)


def encrypt(context: typer.Context, *, file: FileOption = None, as_json: JsonOption = False) -> None:
    """Encrypt the keys and secrets of a stopped stack. Older software cannot read them: 'decrypt' is the way back."""
    settings = at_rest.with_stored_key(settings_of(context))
    _refuse_running(settings)
    with state.locked(settings.data_dir), state.writing(settings.data_dir):
        path = (file.absolute() if file else None) or settings.key_encryption_file or default_file(settings.data_dir)
        keys = at_rest.ensure_key(settings, path)
        # The setting first: files in clear are read with it, encrypted ones only with it.
        _store(settings, path)
        done = at_rest.encrypt(settings, keys)
    _say("encrypted", done, f"the key is in {path}: keep copies of it elsewhere than those of the data", as_json)


def rotate(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Make another key-encryption key, and encrypt all files under it. Processes may run."""
    settings, keys = _encrypted(context)
    with state.locked(settings.data_dir), state.writing(settings.data_dir):
        done = at_rest.rotate(settings, keys)
    _say("encrypted", done, f"the new key is in {keys.path}; copies of the old one open nothing any more", as_json)


def decrypt(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Write all keys and secrets in clear, as older software reads them. Processes may run."""
    settings, keys = _encrypted(context)
    with state.locked(settings.data_dir), state.writing(settings.data_dir):
        done = at_rest.decrypt(settings, keys)
        _store(settings, None)
    leave_out = (
        " leave out the setting 'key_encryption_file', and" if "key_encryption_file" in settings.explicit else ""
    )
    _say("in clear", done, f"no file needs {keys.path} any more:{leave_out} start the processes anew", as_json)


def _encrypted(context: typer.Context) -> tuple[Settings, KeyEncryption]:
    settings = at_rest.with_stored_key(settings_of(context))
    keys = settings.keys()
    if keys is None:
        raise UsageError(f"nothing in {settings.data_dir} is encrypted: 'stratolog admin keys encrypt' does that")
    keys.keys()
    return settings, keys


def _refuse_running(settings: Settings) -> None:
    """Raise UsageError while processes run that were not told where the key is: they could read no renewed file."""
    known = state.read_state(settings.data_dir)
    if settings.key_encryption_file is None and known is not None and known.running():
        raise UsageError(f"processes of the stack in {settings.data_dir} run: 'stratolog down' first")


def _store(settings: Settings, key_file: Path | None) -> None:
    """Write into the stack's settings where the key is; a directory without a stack has none."""
    path = settings.data_dir / state.SETTINGS_FILE
    if not path.exists():
        return
    stored = replace(load_settings(path, environment={}), key_encryption_file=key_file)
    if key_file is None:
        # 'up' names it in the settings of Kafka's clients as well.
        stored = replace(stored, kafka=tuple(one for one in stored.kafka if one[0] != KEY_PASSWORD_FILE))
    text = stored.to_toml()
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text)
    scratch.replace(path)


def _say(what: str, done: list[Path], end: str, as_json: bool) -> None:
    if as_json:
        print_json({"done": what, "files": [str(path) for path in done]})
        return
    for path in done:
        console.print(f"{path} {what}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(done)} files {what}; {end}", markup=False, highlight=False, soft_wrap=True)
