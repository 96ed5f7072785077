"""``stratolog ui``: the dashboard in the browser (docs/dashboard.md): where it is, or one of one's own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import typer

from schemas.security.certificates import ExpectedPeer, Role
from schemas.security.tls import scheme_of, verify_of
from stratolog.cluster.reach import check_brokers
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json
from stratolog.errors import Unavailable, UserError
from stratolog.extras import libraries_of
from stratolog.local import state
from stratolog.local.ports import UI_PORT, free_ports, is_port_free
from stratolog.ui.serving.operator_key import operator_link

if TYPE_CHECKING:
    from stratolog.configuration.settings import Settings

LOOPBACK = "127.0.0.1"
A_DASHBOARD = ExpectedPeer(roles=frozenset({Role.DASHBOARD, Role.ADMIN}))
"""Who serves a dashboard: a process of its own role, or an operator."""
NUMBER_TIMEOUT_S = 3.0
STACK_CHECK_S = 2.0
MISSED_CHECKS = 5
"""So often in a row the stack's state must not name its dashboard before that ends itself."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ui")(command)


def command(
    context: typer.Context,
    *,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Run one at this port, whether or not the stack has one.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at. Whoever reaches it may look; the loopback by default.")
    ] = LOOPBACK,
    of_stack: Annotated[bool, typer.Option("--of-stack", hidden=True)] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the cluster in a browser: verdicts, rates, lag, events, datanodes, the log, drills.

    Prints the address of the stack's dashboard. If none runs, or with --port, it runs one until interrupted. The link
    that ends in #operator=... lets the browser start drills: it is made with the cluster's secret, so keep it to
    yourself. It ends with its dashboard.
    """
    settings = connected_settings_of(context)
    running = None if port is not None or host != LOOPBACK else _running(settings)
    if running is not None:
        _show(_url(settings, running), _link_of(settings, running), as_json=as_json)
        return
    check_brokers(settings)
    with libraries_of("ui"):
        _serve(context, settings, host, port or _free_port(), of_stack=of_stack, as_json=as_json)


def _running(settings: Settings) -> str | None:
    """Return the address of the dashboard of the local stack, None if it has none that runs."""
    known = state.read_state(settings.data_dir)
    members = () if known is None else known.of(state.UI)
    return next((member.address for member in members if member.process.is_running()), None)


def _link_of(settings: Settings, address: str) -> str | None:
    """Return an operator's link to a running dashboard, None without a secret; raises Unavailable."""
    try:
        url, verify = _url(settings, address), verify_of(settings.tls(), A_DASHBOARD)
        answer = httpx.get(f"{url}number", timeout=NUMBER_TIMEOUT_S, trust_env=False, verify=verify).raise_for_status()
        number = str(answer.json()["number"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise Unavailable(f"the dashboard at {address} does not answer: {error}") from error
    try:
        return operator_link(url, settings.secret().link_key(number))
    except UserError:
        return None


def _free_port() -> int:
    return UI_PORT if is_port_free(UI_PORT) else free_ports(1)[0]


def _url(settings: Settings, address: str) -> str:
    """Return the URL of a dashboard of these settings."""
    return f"{scheme_of(settings.tls())}://{address}/"


def _show(url: str, link: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"address": url, "operator_link": link})
        return
    _say(f"dashboard: {url}")
    # The link is as good as the secret for drills: it goes to a person's terminal, never into a log.
    if link is not None and console.is_terminal:
        _say(f"to start drills from it: {link}")


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _serve(
    context: typer.Context, settings: Settings, host: str, port: int, *, of_stack: bool, as_json: bool
) -> None:  # fmt: skip
    from stratolog.ui.serving.drill_runs import DrillRuns
    from stratolog.ui.serving.server import DashboardServer, serve
    from stratolog.ui.watching.watch import ClusterWatch

    watch = ClusterWatch(lambda: connected_settings_of(context))
    drills = DrillRuns(settings.data_dir.absolute())
    address = f"{f'[{host}]' if ':' in host else host}:{port}"

    async def run() -> None:
        server = DashboardServer(watch, drills, _secret(settings))

        def ready() -> None:
            link = None if server.key is None else operator_link(_url(settings, address), server.key)
            _show(_url(settings, address), link, as_json=as_json)
            if host != LOOPBACK and server.tls is None:
                _say("whoever reaches this address may look at the cluster")
            if of_stack:
                threading.Thread(target=_end_with_stack, args=(settings,), name="ui-stack", daemon=True).start()

        await serve(server, host, port, ready)

    try:
        asyncio.run(run())
    finally:
        drills.close()
        watch.close()


def _secret(settings: Settings) -> Any:
    try:
        return settings.secret()
    except UserError:
        return None


def _end_with_stack(settings: Settings) -> None:
    """End this process once the stack's state no longer names it: an older 'down' does not know dashboards."""
    missed = 0
    pause = threading.Event()
    while missed < MISSED_CHECKS:
        pause.wait(STACK_CHECK_S)
        try:
            known = state.read_state(settings.data_dir)
        except UserError:
            known = None
        members = () if known is None else known.of(state.UI)
        missed = 0 if any(member.process.pid == os.getpid() for member in members) else missed + 1
    os.kill(os.getpid(), signal.SIGTERM)
