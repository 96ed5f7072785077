"""``stratolog sh key put|get|cat|cp``: the bytes of keys, with the key before the local file, as in ``ozone sh key``.

Bytes are written to and read from the datanodes (``producers.files.key_files``), as the settings say (``commit_way``,
``topology``, ...). Progress is a bar if standard error is a terminal. With ``--json`` a command says what it did, with
the SHA-256 of the bytes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from stratolog.cluster.connection import client_of, reads_of, stream_options
from stratolog.cluster.reach import check_log
from stratolog.commands.common import addresses
from stratolog.commands.common.addresses import Address, shown_size
from stratolog.commands.common.invocation import Invocation, JsonOption, connected_settings_of
from stratolog.commands.common.output import console, notes, print_json
from stratolog.commands.common.waiting import waiting
from stratolog.errors import UsageError, UserError

if TYPE_CHECKING:
    from producers.bulk.key_copy import Copied
    from producers.client import Client
    from producers.files.key_files import KeyInput
    from stratolog.configuration.settings import Settings

STANDARD = "-"
"""Stands for standard input or output, in place of a local file."""

Key = Annotated[Address, typer.Argument(parser=addresses.key_address, metavar="/VOLUME/BUCKET/KEY")]
Bucket = Annotated[Address, typer.Argument(parser=addresses.bucket_address, metavar="/VOLUME/BUCKET")]
Source = Annotated[str, typer.Argument(metavar="FILE", help="A local file; '-' is standard input.")]
Target = Annotated[
    Path, typer.Argument(metavar="FILE", help="A local file, or a directory to put it into; '-' is standard output.")
]
Metadata = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Metadata; may be given several times.")]
Way = Annotated[
    int | None, typer.Option("--way", min=0, max=3, help="How blocks are committed (setting 'commit_way').")
]
Topology = Annotated[str | None, typer.Option(help="star, chain or tree: how datanodes forward (setting 'topology').")]
Offset = Annotated[int | None, typer.Option(parser=addresses.size_in_bytes, metavar="SIZE", help="Begin here.")]
Length = Annotated[
    int | None, typer.Option(parser=addresses.size_in_bytes, metavar="SIZE", help="At most so many bytes.")
]


def register(key: typer.Typer) -> None:
    """Add the commands to the group 'sh key'."""
    commands: dict[str, Callable[..., None]] = {"put": put, "get": get, "cat": cat, "cp": copy_key}
    for name, command in commands.items():
        key.command(name)(command)


def put(
    context: typer.Context, address: Key, file: Source, *, metadata: Metadata = None, way: Way = None,
    topology: Topology = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write a local file as a key.

    The key is there, whole, when the command ends with status 0; else there is none, or the one from before.
    """
    from producers.bulk.key_copy import copy, put_file

    given = dict(map(addresses.metadata_item, metadata or []))
    settings = _settings(context).with_values(commit_way=way, topology=topology)
    size = None if file == STANDARD else _size_of(file)
    begun_s = time.monotonic()
    with (
        _waiting(settings, f"put {address}", _AS_BEFORE.format(address), as_json) as moving,
        client_of(settings) as client,
        _progress(f"put {address}", size, moving, quiet=as_json) as on_progress,
    ):
        if file == STANDARD:
            with client.open(str(address), "wb", metadata=given) as key:
                copied = copy(sys.stdin.buffer, key, on_progress)
        else:
            with _local_errors(file):
                copied = put_file(client, str(address), file, metadata=given, progress=on_progress)
        _did("put", address, file, copied, time.monotonic() - begun_s, as_json, positions=_positions(client))


def get(
    context: typer.Context, address: Key, file: Target, *,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the file if it exists.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write a key into a local file; into a directory, under the last part of the key's name;
    '-' is standard output.
    """
    from producers.bulk.key_copy import get_file

    settings = _settings(context)
    if str(file) == STANDARD:
        _write_out(settings, address)
        return
    target = file / address.key.rstrip("/").rpartition("/")[2] if file.is_dir() else file
    if target.exists() and not force:
        raise UsageError(f"{target} exists; --force replaces it")
    begun_s = time.monotonic()
    with (
        _waiting(settings, f"get {address}", f"{target} is not written", as_json) as moving,
        _opened(settings, address) as key,
        _progress(f"get {address}", key.size, moving, quiet=as_json) as on_progress,
    ):
        with _local_errors(str(target)):
            copied = get_file(key, target, progress=on_progress)
        _did("get", address, str(target), copied, time.monotonic() - begun_s, as_json, failovers=key.failovers)


def cat(context: typer.Context, address: Key, *, offset: Offset = None, length: Length = None) -> None:
    """Write a key's bytes, or some of them, to standard output."""
    _write_out(_settings(context), address, offset or 0, length)


def _write_out(settings: Settings, address: Address, offset: int = 0, length: int | None = None) -> None:
    """Write a key's bytes, or some of them, to standard output."""
    from producers.bulk.key_copy import COPY_BYTES

    with _waiting(settings, f"cat {address}", "what was written is a part", quiet=False) as moving:
        with _opened(settings, address) as key:
            key.seek(offset)
            left = key.size if length is None else length
            while left and (data := key.read(min(left, COPY_BYTES))):
                sys.stdout.buffer.write(data)
                moving.bytes += len(data)
                left -= len(data)
            sys.stdout.buffer.flush()


def copy_key(
    context: typer.Context, address: Bucket, *,
    from_key: Annotated[str, typer.Argument(metavar="FROM_KEY", help="Name of a key in the bucket.")],
    to_key: Annotated[str, typer.Argument(metavar="TO_KEY", help="Name of the copy; a key of that name is replaced.")],
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Copy a key within its bucket, with its metadata: its bytes are read and written again."""
    from producers.bulk.key_copy import copy

    source, target = (Address(volume=address.volume, bucket=address.bucket, key=key) for key in (from_key, to_key))
    begun_s = time.monotonic()
    settings = _settings(context)
    with (
        _waiting(settings, f"cp {target}", _AS_BEFORE.format(target), as_json) as moving,
        client_of(settings) as client,
        client.open(str(source)) as old,
    ):
        metadata = {} if old.info is None else old.info.metadata
        with _progress(f"cp {target}", old.size, moving, quiet=as_json) as on_progress:
            with client.open(str(target), "wb", size=old.size, metadata=metadata) as new:
                copied = copy(old, new, on_progress)
        seconds = time.monotonic() - begun_s
        _did("cp", target, str(source), copied, seconds, as_json, positions=_positions(client))


# -- what they share ---------------------------------------------------------------------------------------------------


def _settings(context: typer.Context) -> Settings:
    """Return the settings that reach the running stack; raises UsageError if a state directory is to be read."""
    at = context.ensure_object(Invocation).at
    if at is not None:
        raise UsageError(f"the state in {at} is metadata: bytes are with the datanodes of the running stack")
    return connected_settings_of(context)


@contextmanager
def _opened(settings: Settings, address: Address) -> Iterator[KeyInput]:
    """Open a key for reading; no broker is needed."""
    from producers.files.key_files import open_file
    from producers.files.key_streams import KeyStreams

    check_log(settings)
    with reads_of(settings) as reads:
        streams = KeyStreams(reads, stream_options(settings), tls=settings.tls())
        try:
            with open_file(reads, streams, str(address)) as key:
                yield key
        finally:
            streams.close()


def _size_of(file: str) -> int:
    with _local_errors(file):
        if Path(file).is_dir():
            raise UsageError(f"{file} is a directory; 'stratolog ingest' takes trees")
        return Path(file).stat().st_size


@contextmanager
def _local_errors(file: str) -> Iterator[None]:
    """Raise UserError for what is wrong with a local file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error


@dataclass(slots=True)
class Moving:
    """How many bytes have gone through."""

    bytes: int = 0

    def add(self, count: int) -> None:
        """Count bytes."""
        self.bytes += count


_AS_BEFORE = "{} is as it was before, unless its commit was under way: 'stratolog sh key info' tells"


@contextmanager
def _waiting(settings: Settings, what: str, interrupted: str, quiet: bool) -> Iterator[Moving]:
    moving = Moving()
    with waiting(settings, what, interrupted, quiet=quiet, bytes_too=True, moving=lambda: moving.bytes):
        yield moving


@contextmanager
def _progress(what: str, size: int | None, moving: Moving, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, nothing elsewhere; count the bytes in any case."""
    if quiet or not notes.is_terminal:
        yield moving.add
        return
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True),
        TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task(what, total=size)

        def on_progress(count: int) -> None:
            moving.add(count)
            bar.advance(task, count)

        yield on_progress


def _positions(client: Client) -> dict[str, int]:
    return {str(shard): index for shard, index in client.positions.items()}


def _did(what: str, address: Address, file: str, copied: Copied, seconds: float, as_json: bool, **more: Any) -> None:
    """Say what was done: bytes, their SHA-256, how long it took."""
    rate = copied.bytes / max(seconds, 1e-9)
    if as_json:
        print_json({
            "done": what, "address": str(address), "file": file, "bytes": copied.bytes, "sha256": copied.sha256,
            "seconds": round(seconds, 3), "mb_per_second": round(rate / 1e6, 1), **more,
        })  # fmt: skip
        return
    way = {"put": f"{file} to {address}", "get": f"{address} to {file}", "cp": f"{file} to {address}"}[what]
    said = f"{what} {way}: {shown_size(copied.bytes)} in {seconds:.1f} s, {shown_size(int(rate))}/s"
    console.print(said, markup=False, highlight=False, soft_wrap=True)
