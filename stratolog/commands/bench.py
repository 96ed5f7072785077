"""``stratolog bench``: the load generator (``producers.bulk.load``) against a running stack.

``make bench`` is something else: ``benchmarks.om_write`` starts a stack of its own and also measures its processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from producers.bulk.load import LoadResult, LoadSpec, run_load
from producers.client import Client
from producers.requests.keys import ensure_places
from schemas.codecs.decimals import decimal_of
from schemas.records.log import LEADER_MODE, REQUEST_MODES
from schemas.sharding import shard_of
from stratolog.cluster.connection import client_of
from stratolog.cluster.request_modes import set_modes
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import print_json, print_table, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.errors import EXIT_FAILED, UsageError

MAX_IN_FLIGHT = 100_000
MEASURED = ("CreateKey", "CommitKey")
DEFAULT_VOLUME = "bench"
DEFAULT_IN_FLIGHT = "1,50,500,4000"
LESS = ("max ms", "requests", "mode", "p99 ms")
"""Columns that are left out where there is no room, the first one first."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(command)


def command(
    context: typer.Context,
    *,
    in_flight: Annotated[str, typer.Option(help="Requests in flight, one run for each number.")] = DEFAULT_IN_FLIGHT,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each run.")] = 10.0,
    warm_up_seconds: Annotated[float, typer.Option(min=0.0, help="Not counted, at the begin of each run.")] = 2.0,
    size: Annotated[int, typer.Option(min=0, help="Size of each key in bytes.")] = 4096,
    volume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=(
                "Volume, made if need be; it decides the shard. Given several times, requests are spread over them. "
                "bench without."
            ),
        ),
    ] = None,
    bucket: Annotated[str, typer.Option(help="Bucket, made if need be.")] = "bench",
    mode: Annotated[
        list[str] | None,
        typer.Option(
            metavar="leader|late",
            help=(
                "leader or late; given twice, both run in turn at each level. Left as it is without; leader afterwards."
            ),
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure createKey + commitKey on the running stack; the keys stay there. One volume is one shard, and one
    leader's thread.

    Requests go straight to the leaders, and through the brokers where no leader is reached, as those of every command.
    Each key is two requests, each with its own latency. With --json: one object a line. Exit status 1 if a request
    failed.
    """
    levels = _levels(in_flight)
    volumes = [*dict.fromkeys(volume or [DEFAULT_VOLUME])]
    modes = _modes(mode)
    results: list[tuple[str | None, LoadResult]] = []
    settings = connected_settings_of(context)
    operator = modes != [None]  # only an operator may set modes

    def so_far() -> str:
        if results and not as_json:
            _print(volumes, bucket, results)
        return (
            f"{len(results)} of {len(levels) * len(modes)} runs are done; the keys stay in {_places(volumes, bucket)}"
        )

    with (
        interruptible(so_far),
        client_of(settings, in_flight=max(levels), operator=operator) as client,
        progress(as_json) as report,
    ):
        ensure_places(client, [(one, bucket) for one in volumes])
        for level, chosen in itertools.product(levels, modes):
            report(f"{level} in flight, {seconds + warm_up_seconds:g} s{f', {chosen} mode' if chosen else ''}")
            _set_mode(client, volumes, chosen)
            spec = LoadSpec(
                volume=volumes[0],
                more_volumes=tuple(volumes[1:]),
                bucket=bucket,
                in_flight=level,
                seconds=seconds,
                warm_up_seconds=warm_up_seconds,
                size=size,
            )
            try:
                result = run_load(client, spec)
            finally:
                _set_mode(client, volumes, chosen and LEADER_MODE)
            results.append((chosen, result))
            if as_json:
                print_json(asdict(result) | ({"mode": chosen} if chosen else {}))
    if not as_json:
        _print(volumes, bucket, results)
    if any(result.failures for _, result in results):
        raise typer.Exit(EXIT_FAILED)


def _places(volumes: Sequence[str], bucket: str) -> str:
    return ", ".join(f"/{volume}/{bucket}" for volume in volumes)


def _print(volumes: Sequence[str], bucket: str, results: list[tuple[str | None, LoadResult]]) -> None:
    columns = ("mode", "in flight", "requests/s", "p50 ms", "p99 ms", "max ms", "requests", "failed")
    print_table(
        f"createKey + commitKey in {_places(volumes, bucket)}", columns, [_row(*result) for result in results], LESS
    )


def _modes(given: list[str] | None) -> list[str | None]:
    """Return the modes to run in; None = leave the mode as it is."""
    for name in given or []:
        if name not in REQUEST_MODES:
            raise UsageError(f"--mode {name!r} is none of {', '.join(REQUEST_MODES)}")
    return [*given] if given else [None]


def _set_mode(client: Client, volumes: Sequence[str], mode: str | None) -> None:
    """Set the mode of the measured request types on the measured shards."""
    if mode is not None:
        set_modes(client, sorted({shard_of(volume, client.shards) for volume in volumes}), MEASURED, mode)


def _row(mode: str | None, result: LoadResult) -> tuple[str | None, ...]:
    failures = ", ".join(f"{count} {status}" for status, count in sorted(result.failures.items()))
    return (
        mode, f"{result.in_flight:,}", f"{result.requests_per_second:,.0f}", f"{result.p50_ms:.2f}",
        f"{result.p99_ms:.2f}", f"{result.max_ms:.1f}", f"{result.requests:,}", failures or "0",
    )  # fmt: skip


def _levels(text: str) -> list[int]:
    """Read numbers with commas between them."""
    found = [decimal_of(part.strip(), MAX_IN_FLIGHT) for part in text.split(",")]
    levels = [number for number in found if number]
    if len(levels) < len(found):
        raise UsageError(
            f"--in-flight {text!r} is not a list of numbers in 1..{MAX_IN_FLIGHT}, as in {DEFAULT_IN_FLIGHT}"
        )
    return levels
