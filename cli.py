"""The `turnkeeper` command.

Each command imports what only it needs, so that a worker restarts fast after a crash.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import platform
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from turnkeeper.clients.terminal.command_options import (
    UrlOption,
    check_session_id,
    exit_with,
    gateway_url,
    settings_or_exit,
)
from turnkeeper.features import all_features, enable_in_workflows, enabled
from turnkeeper.features.feature import Feature, Finding
from turnkeeper.models.settings.mcp_config import load_foreign_servers
from turnkeeper.models.settings.settings import ENV_PREFIX, Settings, SettingsError, load_settings
from turnkeeper.ops.local.logs import set_up_logging
from turnkeeper.ops.local.process import (
    loop_watchdog,
    missing_extra_explained,
    paused_collector,
    run_fast,
    run_to_end,
)
from turnkeeper.ops.local.processes import free_port, is_free
from turnkeeper.stores.private_files import close_to_others
from turnkeeper.stores.temporal.endpoint import TemporalAccessError

WORKER_PATIENCE_SECONDS = 30.0
"""How long a worker waits for a Temporal server that is starting."""

NOT_CHECKED = 2
"""Exit code of `replay-check` and `demo` if they could not check; 1 means that something is wrong."""

MARKS = {"good": "ok    ", "broken": "BROKEN", "unknown": "  ?   "}

commands = typer.Typer(
    name="turnkeeper",
    help="Durable AI-agent sessions on Temporal. Settings: turnkeeper.toml and TURNKEEPER_*, see docs/settings.md.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Only Markdown paragraphs are wrapped to the terminal's width.
    rich_markup_mode="markdown",
)


def _enabled_features() -> Sequence[Feature]:
    """Return those whose commands are there: with wrong settings all, and `doctor` says what is wrong."""
    try:
        return enabled(load_settings())
    except SettingsError:
        return all_features()


for _feature in _enabled_features():
    if _feature.commands and _feature.commands.commands:
        commands.add_typer(_feature.commands.commands)


AgentsArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="A Python file with agents; its first one is chosen.")
]


@commands.command()
def up(file: AgentsArgument = None) -> None:
    """Start Temporal, a worker and the gateway on this machine. Ctrl-C stops them."""
    _use_agents(file)
    _run_stack()


@commands.command()
def dev(file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python file with agents.")]) -> None:
    """Do what `up` does, and reload the file whenever it is saved.

    Calls that run finish in the old code. Sessions continue with the new agent at their next turn.
    """
    os.environ[f"{ENV_PREFIX}AGENTS_RELOAD"] = "true"
    _use_agents(file)
    _run_stack()


def _use_agents(file: Path | None) -> None:
    """Set the file with agents, also for the processes that this one starts."""
    if file is not None:
        os.environ[f"{ENV_PREFIX}AGENTS"] = str(file.resolve())


def _run_stack() -> None:
    from turnkeeper.ops.local.dev_server import DevServerError
    from turnkeeper.ops.local.supervisor import check_state_folder, run_stack, run_until_signalled

    settings = settings_or_exit()
    set_up_logging(settings.model_copy(update={"log_level": "warning"}), has_sdk=False)
    try:
        # Checked here, since a worker that can't use a file would restart again and again.
        check_state_folder(settings.state_dir)
        load_foreign_servers(settings)
        _make_workspace(settings.workspace_root)
        run_until_signalled(run_stack(settings, _print_line))
    except (DevServerError, SettingsError, TemporalAccessError) as error:
        exit_with(error)


@commands.command()
def worker(
    file: AgentsArgument = None,
    activity_reports: Annotated[
        int | None, typer.Option(metavar="FD", hidden=True, help="Used by `turnkeeper up`.")
    ] = None,
) -> None:
    """Run a worker, which executes sessions. You can run any number."""
    _use_agents(file)
    settings = settings_or_exit()
    set_up_logging(settings)
    close_to_others(settings.state_dir)
    try:
        run_fast(_run_worker(settings, activity_reports))
    except (TemporalAccessError, SettingsError) as error:
        exit_with(error)


@commands.command()
def api() -> None:
    """Run a gateway, which serves the HTTP API and the chat page."""
    with paused_collector():
        from turnkeeper.api.app import create_app
        from turnkeeper.api.http.server import ConnectionBounds, GatewayServer
        from turnkeeper.stores.stores import check_stores

    settings = settings_or_exit()
    set_up_logging(settings)
    close_to_others(settings.state_dir)
    port = settings.api_port or free_port(settings.api_host)
    if not is_free(port, settings.api_host):
        exit_with(f"Port {port} on {settings.api_host} is in use. Stop that program or set api_port.")
    try:
        asyncio.run(check_stores(settings))
        gateway = create_app(settings)
    except SettingsError as error:
        exit_with(error)
    # After its shutdown uvicorn raises the signal again, which is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with contextlib.suppress(KeyboardInterrupt):
        bounds = ConnectionBounds.of(settings)
        GatewayServer(gateway, host=settings.api_host, port=port, bounds=bounds, watchdog=loop_watchdog).run()


@commands.command()
def chat(
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="The first prompt. Default: stdin, or what you type.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", callback=check_session_id, help="Continue this session. Default: a new one."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The agent of the new session, such as weather or weather@2."),
    ] = None,
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
    attach: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Send this file with the first prompt. Can be repeated."),
    ] = None,
) -> None:
    """Chat with a session in the terminal.

    MESSAGE is sent first; then you can continue. You can type while an answer is being written. Ctrl-C stops a turn
    that you started here; press it twice to leave. The session continues without you. /help lists the commands.

    In a pipe, it sends one prompt and prints only the answer. Exit code 1: no answer; 2: the gateway can't be reached;
    3: a tool call needs your approval, and stderr says how to decide.

    With --json and no MESSAGE, it prints the session's events until the session ends. Each line of stdin is sent as a
    prompt; a rejected one is printed as an event. The end of stdin changes nothing. Ctrl-C leaves; at a terminal,
    Ctrl-D too.
    """
    if agent is not None and session is not None:
        exit_with("--agent is for a new session; --session continues one.")
    from turnkeeper.clients.terminal.chat import ChatCommand

    command = ChatCommand(
        url=gateway_url(url),
        url_option=url,
        as_json=as_json,
        message=message,
        session=session,
        agent=agent,
        attach=attach or (),
    )
    raise typer.Exit(command.chat())


@commands.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running afterwards, until Ctrl-C.")] = False,
) -> None:
    """Play a short demo: prompts, tools, an approval, a queue and two crashes. It takes about 20 s.

    It runs offline, in a temporary folder and on free ports, and touches none of your files or sessions. Exit code 1:
    a promise was broken, and the output says which; 2: the demo could not run.
    """
    from turnkeeper.ops.demo.scenario import STOPPED, DemoError, run_demo
    from turnkeeper.ops.local.dev_server import DevServerError

    logging.basicConfig(handlers=[logging.NullHandler()])
    try:
        code = run_demo(keep=keep)
    except (DevServerError, DemoError) as error:
        exit_with(error, code=NOT_CHECKED)
    if code == STOPPED:
        _print_line("Demo stopped. Everything was removed.")
    raise typer.Exit(code)


@commands.command()
def doctor() -> None:
    """Check the installation and print a fix for each problem. Exit code 1: something is broken."""
    # Our own lines replace what libraries log about a failing server.
    logging.basicConfig(handlers=[logging.NullHandler()])
    if asyncio.run(_run_doctor()):
        raise typer.Exit(1)


@commands.command()
def health() -> None:
    """Check the worker that runs with this state folder, as its container's health check. Exit code 1: it is not well.

    A worker is well while Temporal has it among those that poll, and its process answers.
    """
    from turnkeeper.ops.local.worker_process import find_trouble

    if trouble := find_trouble(settings_or_exit()):
        exit_with(trouble)


@commands.command()
def replay_check(
    histories: Annotated[
        list[Path] | None, typer.Argument(metavar="[PATH]...", help="Exported histories, or folders with them.")
    ] = None,
    session: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this session; repeatable.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also ended sessions that Temporal still retains.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Check at most N sessions, newest first.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each result as a line of JSON.")] = False,
) -> None:
    """Replay sessions with this code before you deploy it: from files, or all open sessions.

    Exit code 1: a run differs; 2: something could not be checked. See docs/replay-check.md.
    """
    if sum(map(bool, (histories, session, every or limit))) > 1:
        raise typer.BadParameter("Use only one of: PATHs, --session, or --all and --limit.")
    try:
        code = asyncio.run(_replay_check(histories, session, every=every, limit=limit, as_json=as_json))
    except TemporalAccessError as error:
        exit_with(error, code=NOT_CHECKED)
    raise typer.Exit(code)


@commands.command()
def version() -> None:
    """Print the versions that a bug report needs."""
    print(f"turnkeeper {_version_of('turnkeeper')}")
    print(f"temporalio {_version_of('temporalio')}, {asyncio.run(_embedded_server())}")
    print(f"Python {platform.python_version()}, {platform.platform()}")


def app() -> NoReturn:
    """Run the command line, and end the process."""
    run_to_end(missing_extra_explained()(commands))


def _make_workspace(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        exit_with(f"workspace_root={str(folder)!r} cannot be created: {error.strerror}.")


def _print_line(line: str) -> None:
    # The supervisor continues after its terminal was closed.
    with contextlib.suppress(OSError):
        print(line, flush=True)


async def _run_worker(settings: Settings, activity_reports: int | None) -> None:
    with paused_collector():
        # Only the worker loads the SDKs of tools and vendors.
        from turnkeeper.stores.stores import check_stores
        from turnkeeper.stores.temporal.connection import connect
        from turnkeeper.worker import run_worker

    await check_stores(settings)
    client = await connect(settings, patience=WORKER_PATIENCE_SECONDS)
    await run_worker(settings, client, activity_reports=activity_reports)


async def _replay_check(
    histories: list[Path] | None, sessions: list[str] | None, *, every: bool, limit: int | None, as_json: bool
) -> int:
    """Print each problem, then the totals; return the exit code."""
    from turnkeeper.ops.replay_check import Tally, check_files, check_sessions, silence_sdk

    silence_sdk()
    if histories:
        enable_in_workflows(all_features())
        findings = check_files(histories)
    else:
        from turnkeeper.stores.temporal.connection import connect

        settings = settings_or_exit(code=NOT_CHECKED)
        enable_in_workflows(enabled(settings))
        client = await connect(settings)
        findings = check_sessions(client, ids=sessions or (), closed=every, limit=limit)
    tally = Tally()
    async for finding in findings:
        tally.add(finding)
        if finding.is_problem:
            _print_line(finding.to_json() if as_json else finding.line())
    _print_line(tally.to_json() if as_json else tally.line())
    return tally.exit_code


async def _run_doctor() -> bool:
    """Print every finding; return whether something is broken."""
    from turnkeeper.ops.doctor import examine

    is_broken = False
    async for finding in examine():
        print(_line(finding), flush=True)
        is_broken = is_broken or finding.state == "broken"
    return is_broken


def _line(finding: Finding) -> str:
    line = f"{MARKS[finding.state]}  {finding.subject:<20}{finding.message}"
    if not finding.fix:
        return line
    return f"{line}{'' if line.endswith(('.', '?', '!')) else '.'} Fix: {finding.fix}."


async def _embedded_server() -> str:
    from turnkeeper.ops.local.dev_server import NoBinaryError, find_binary, server_version

    try:
        binary = find_binary(load_settings().state_dir)
        return f"embedded Temporal server {await server_version(binary)}" if binary else "no embedded Temporal server"
    except (SettingsError, NoBinaryError) as error:
        return str(error)


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(run from its source folder)"


if __name__ == "__main__":
    app()
