"""`turnkeeper doctor`: checks the installation, one line per check, with the fix if it fails (OPS-3)."""

import asyncio
import http
import importlib.util
import os
import platform
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from sqlalchemy import URL, Connection, make_url
from temporalio.client import Client
from temporalio.service import RPCError

from turnkeeper.activities.providers.provider import provider_class
from turnkeeper.clients.terminal.command_options import Gateway
from turnkeeper.features import enabled
from turnkeeper.features.feature import Finding
from turnkeeper.models.command_line import command_line
from turnkeeper.models.ids import split_model
from turnkeeper.models.settings.mcp_config import DEFAULT_FILE as MCP_FILE
from turnkeeper.models.settings.mcp_config import load_foreign_servers
from turnkeeper.models.settings.origins import is_ip_address, parse_origin
from turnkeeper.models.settings.settings import (
    VENDORS_MODELS,
    Settings,
    SettingsError,
    is_loopback,
    load_settings,
    settings_file,
)
from turnkeeper.models.texts import counted
from turnkeeper.ops.local.dev_server import INSTALL, NoBinaryError, find_binary, is_in_use, server_version
from turnkeeper.ops.local.processes import is_free
from turnkeeper.ops.local.worker_process import WorkerReport
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.database.rows import insert_missing
from turnkeeper.stores.database.tables import BLOBS
from turnkeeper.stores.partials.over_sockets import FOLDER, SocketCarrier
from turnkeeper.stores.stores import Stores
from turnkeeper.stores.temporal.connection import (
    RETENTION_DAYS,
    connect,
    missing_search_attributes,
    polling_workers,
    retention,
)
from turnkeeper.stores.temporal.endpoint import EmbeddedServer, Endpoint, TemporalAccessError, find_endpoint

if TYPE_CHECKING:
    from turnkeeper.activities.toolbox.tool_server import ToolServer

MIN_PYTHON = (3, 11)

TOOL_SERVER_SECONDS = 20.0
"""How long a tool server may take to start and to list its tools."""

OPEN_TO_THIS_MACHINE = (
    "the embedded server has no authentication: every user of this machine who finds its ports can read and change all "
    "sessions, also with auth.keys; web pages can't"
)

REDIS_PORT = 6379
"""Redis's port if `redis_url` has none."""


async def examine() -> AsyncIterator[Finding]:
    """Yield the result of each check; what others depend on comes first."""
    yield _python()
    try:
        settings = load_settings()
        endpoint, features = find_endpoint(settings), enabled(settings)
    except (SettingsError, TemporalAccessError) as error:
        yield _broken("settings", str(error))
        return
    yield _good("settings", f"from {settings_file()}" if settings_file().exists() else "the defaults and TURNKEEPER_*")
    yield await _binary(settings, endpoint)
    yield _state_dir(settings)
    yield _workspace(settings)
    yield await _archive(settings)
    for feature in features:
        if feature.commands and (finding := await feature.commands.check(settings)):
            yield finding
    yield await _partial_output(settings, endpoint)
    yield _model(settings)
    for finding in _refused_parts(settings):
        yield finding
    yield _costs(settings)
    for finding in await _tool_servers(settings):
        yield finding
    yield _ports(settings, endpoint)
    if endpoint.embedded:
        yield _good("access to Temporal", OPEN_TO_THIS_MACHINE)
    async for finding in _temporal(settings, endpoint):
        yield finding
    yield await _gateway(settings, endpoint)


def _good(subject: str, message: str) -> Finding:
    return Finding(subject, "good", message)


def _broken(subject: str, message: str, fix: str = "") -> Finding:
    return Finding(subject, "broken", message, fix)


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        return _broken("python", f"{version} is too old", "install Python 3.11 or newer")
    return _good("python", version)


async def _binary(settings: Settings, endpoint: Endpoint) -> Finding:
    if not endpoint.embedded:
        return _good("temporal program", f"not needed, since {endpoint.address} is set")
    binary = find_binary(settings.state_dir)
    if binary is None:
        return _broken("temporal program", "not found", INSTALL)
    try:
        return _good("temporal program", f"{binary}, server {await server_version(binary)}")
    except NoBinaryError as error:
        return _broken("temporal program", str(error).removesuffix(f": {INSTALL}."), INSTALL)


def _state_dir(settings: Settings) -> Finding:
    folder = settings.state_dir.resolve()
    if obstacle := _obstacle(folder):
        return _broken("state folder", obstacle.message, f"{obstacle.fix}, or set state_dir")
    if not folder.exists():
        return _good("state folder", f"{folder}, created at the first start")
    in_use = is_in_use(folder / "temporal.db")
    return _good("state folder", f"{folder}, {'in use by a running server' if in_use else 'not in use'}")


def _workspace(settings: Settings) -> Finding:
    folder = settings.workspace_root.resolve()
    if obstacle := _obstacle(folder):
        return _broken("workspace", obstacle.message, f"{obstacle.fix}, or set workspace_root")
    return _good("workspace", f"{folder}{'' if folder.exists() else ', created at the first start'}")


class Obstacle(NamedTuple):
    """Obstacles to writing to a folder."""

    message: str
    fix: str


def _obstacle(folder: Path) -> Obstacle | None:
    """Return what prevents writing to `folder`, which may not exist yet; None if nothing does."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir():
        return Obstacle(f"{existing} is not a folder", "move it")
    if not os.access(existing, os.W_OK | os.X_OK):
        return Obstacle(f"{existing} is not writable", "change its owner")
    return None


async def _archive(settings: Settings) -> Finding:
    """Write to the archive as a worker does, and roll back; like any first use, this creates the tables."""
    url = _archive_url(settings)
    file = _sqlite_file(url)
    if file and not file.exists():
        return _new_archive(file)
    address = str(file or url.render_as_string(hide_password=True))
    try:
        async with Stores.of(settings) as stores:
            await stores.database.write(_write_and_roll_back)
    except SettingsError as error:
        message, _, fix = str(error).removeprefix("archive_url: ").removesuffix(".").partition(": ")
        return _broken("archive", message, fix)
    except StoreUnavailableError as error:
        fix = "repair or move the file" if file else "check that PostgreSQL runs and has this database and user"
        return _broken("archive", f"{str(error).removesuffix('.')}, at {address}", f"{fix}, or set archive_url")
    return _good("archive", address)


def _archive_url(settings: Settings) -> URL:
    if settings.archive_url:
        return make_url(settings.archive_url)
    return URL.create("sqlite", database=str(settings.state_dir / "archive.db"))


def _sqlite_file(url: URL) -> Path | None:
    return Path(url.database or "").resolve() if url.get_backend_name() == "sqlite" else None


def _new_archive(file: Path) -> Finding:
    if obstacle := _obstacle(file.parent):
        message = f"{file} cannot be created, since {obstacle.message}"
        return _broken("archive", message, f"{obstacle.fix}, or set archive_url")
    return _good("archive", f"{file}, created at the first use")


def _write_and_roll_back(connection: Connection) -> None:
    insert_missing(connection, BLOBS, [{"session_id": "doctor", "hash": "", "content": b"?"}])
    connection.rollback()


async def _partial_output(settings: Settings, endpoint: Endpoint) -> Finding:
    """Look for the sockets of workers, or publish and delete something through Redis, as a worker does."""
    if settings.partials == "heartbeats":
        return _good("partial output", "through heartbeats, once a second")
    if settings.redis_url is None:
        folder = settings.state_dir.resolve()
        sockets = SocketCarrier(folder, namespace=endpoint.namespace, task_queue=settings.task_queue)
        if not endpoint.embedded and sockets.obstacle():
            elsewhere = "for workers on other machines, set redis_url or partials=heartbeats"
            return _good("partial output", f"none: no worker has a socket in {folder / FOLDER}; {elsewhere}")
        return _good("partial output", f"through sockets in {folder / FOLDER}")
    if not _is_installed("redis"):
        return _broken("partial output", "redis_url is set, but the package redis is not installed", _install("redis"))
    # Imported here: only an installation with redis_url needs the package.
    from turnkeeper.stores.partials.over_redis import FAILURES, RedisCarrier, reason_of

    url = urlsplit(settings.redis_url)
    address = f"{url.hostname}:{url.port or REDIS_PORT}"
    async with RedisCarrier(settings.redis_url, namespace=endpoint.namespace, task_queue=settings.task_queue) as redis:
        try:
            await redis.check()
        except FAILURES as error:
            fix = "check that Redis runs and accepts this user, or unset redis_url"
            return _broken("partial output", f"{reason_of(error)}, at {address}", fix)
    return _good("partial output", f"through Redis at {address}")


def _model(settings: Settings) -> Finding:
    """Check that a worker can call the model of new sessions, without calling it."""
    model = settings.first_model
    message = f"{model} for new sessions ({_reason(settings)})"
    if missing := provider_class(split_model(model)[0]).missing(settings):
        what, fix = missing
        return _broken("model", f"{message}, but {what}", fix)
    return _good("model", message)


def _reason(settings: Settings) -> str:
    if settings.model:
        return "the setting model"
    chosen = (variable for variable, model in VENDORS_MODELS.items() if model == settings.first_model)
    return next((f"{variable} is set" for variable in chosen), f"neither {' nor '.join(VENDORS_MODELS)} is set")


def _costs(settings: Settings) -> Finding:
    """Check that costs are known if a setting limits them."""
    vendor = provider_class(split_model(settings.first_model)[0]).vendor
    limit = settings.limits.max_cost_per_turn
    if vendor.prices == "":
        return _good("costs", f"none: {vendor.title} is free")
    if vendor.prices is None:
        message, fix = f"unknown for {settings.first_model}", "set limits.max_tokens_per_turn instead"
    elif _is_installed("genai_prices"):
        return _good("costs", "known, if genai-prices lists the model")
    else:
        message, fix = "unknown without the package genai-prices", _install("prices")
    if limit is not None:
        return _broken("costs", f"{message}, so limits.max_cost_per_turn ({limit:g}) cannot be enforced", fix)
    return _good("costs", message)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _install(extra: str) -> str:
    return f"run `pip install 'turnkeeper[{extra}]'`"


def _refused_parts(settings: Settings) -> list[Finding]:
    """Return what the worker leaves out of all requests to a model, since its vendor refused it."""
    report = WorkerReport.read(settings.state_dir)
    models = report.refused_parts if report else {}
    return [_good(model, f"left out of its requests: {'; '.join(texts)}") for model, texts in models.items()]


async def _tool_servers(settings: Settings) -> list[Finding]:
    """Start or call every foreign tool server as a worker does, all concurrently."""
    # Imported here: the tools' SDK takes a second to load, and no other command needs it.
    from turnkeeper.activities.toolbox.toolbox import foreign_tool_servers

    try:
        config = load_foreign_servers(settings)
    except SettingsError as error:
        return [_broken("tool servers", str(error))]
    file = str(settings.mcp_config or MCP_FILE)
    findings = [_broken(f"tools of {name}", problem, f"correct {file}") for name, problem in config.problems.items()]
    if file in config.notes:
        findings.append(_good(file, "; ".join(config.notes[file])))
    servers = list(foreign_tool_servers(config, settings))
    findings += await asyncio.gather(*(_tool_server(server, config.notes.get(server.name, [])) for server in servers))
    return findings or [_good("tool servers", "only the built-in one")]


async def _tool_server(server: "ToolServer", notes: list[str]) -> Finding:
    from turnkeeper.activities.toolbox.server_connection import ServerConnection
    from turnkeeper.activities.toolbox.tool_names import NamedTool
    from turnkeeper.activities.toolbox.transports import StdioServer

    subject = f"tools of {server.name}"
    log = server.target.log if isinstance(server.target, StdioServer) else None
    connection = ServerConnection(server)
    try:
        await connection.refresh(seconds=TOOL_SERVER_SECONDS)
    finally:
        await connection.aclose()
    if connection.problem or not connection.is_known:
        fix = f"see {log}" if log else "check that it runs, and its url and headers"
        message = connection.problem or f"no answer within {TOOL_SERVER_SECONDS:.0f} s"
        return _broken(subject, message, f'{fix}; or set "disabled": true')
    rejected = [tool.name for tool in connection.tools if NamedTool(tool.name, connection, tool).schema_problem]
    if rejected:
        notes = [f"vendors reject the schema of {', '.join(rejected)}, so the model gets it as text", *notes]
    return _good(subject, "; ".join([counted(len(connection.tools), "tool"), *notes]))


def _ports(settings: Settings, endpoint: Endpoint) -> Finding:
    """List busy ports. They are no fault: `turnkeeper up` uses others."""
    ports = [settings.api_port]
    if endpoint.embedded:
        ports += [settings.temporal_port]
    busy = [str(port) for port in ports if port and not is_free(port)]
    is_ours = EmbeddedServer.recorded(settings.state_dir) or Gateway.file(settings.state_dir).exists()
    if not busy:
        return _good("ports", "free: " + ", ".join(map(str, ports)))
    user = "by the stack of this state folder" if is_ours else f"`{command_line('up')}` will use others"
    return _good("ports", f"in use: {', '.join(busy)} ({user})")


async def _temporal(settings: Settings, endpoint: Endpoint) -> AsyncIterator[Finding]:
    try:
        client = await connect(settings)
    except TemporalAccessError as error:
        yield _broken("Temporal server", str(error))
        for subject in ("search attributes", "retention", "worker"):
            yield Finding(subject, "unknown", "needs the Temporal server")
        return
    yield _good("Temporal server", f"{endpoint.address}, namespace {endpoint.namespace}")
    yield await _search_attributes(client)
    yield await _retention(client, endpoint)
    yield await _worker(client, settings.task_queue)


async def _search_attributes(client: Client) -> Finding:
    try:
        missing = await missing_search_attributes(client)
    except TemporalAccessError as error:
        return _broken("search attributes", str(error))
    if missing:
        names = ", ".join(key.name for key in missing)
        fix = f"start a worker with `{command_line('worker')}`, which adds them"
        return _broken("search attributes", f"missing: {names}", fix)
    return _good("search attributes", "registered")


async def _retention(client: Client, endpoint: Endpoint) -> Finding:
    try:
        days = (await retention(client)).days
    except RPCError as error:
        return _broken("retention", error.message, f"check the namespace {client.namespace!r}")
    message = f"ended sessions are kept for {days} days"
    if endpoint.embedded and days < RETENTION_DAYS:
        return _broken("retention", message, f"restart `{command_line('up')}`, which sets {RETENTION_DAYS} days")
    return _good("retention", message)


async def _worker(client: Client, task_queue: str) -> Finding:
    try:
        workers = await polling_workers(client, task_queue)
    except RPCError as error:
        return _broken("worker", error.message, f"check the namespace {client.namespace!r}")
    if not workers:
        message = f"no worker polls the task queue {task_queue!r}"
        return _broken("worker", message, f"start one with `{command_line('worker')}`")
    return _good("worker", f"{len(workers)} on the task queue {task_queue!r}")


async def _gateway(settings: Settings, endpoint: Endpoint) -> Finding:
    gateway = Gateway.find(settings)
    status = await gateway.status("/healthz")
    if status is None and not endpoint.embedded:  # it may run elsewhere, as the server does
        return _good("gateway", f"none at {gateway.url}; `{command_line('api')}` starts one on this machine")
    if status is None:
        return _broken("gateway", f"no answer at {gateway.url}", f"start it with `{command_line('up')}`")
    if status != http.HTTPStatus.OK:
        message = f"{gateway.url} answers {status}, so it is another program"
        return _broken("gateway", message, "stop that program, or set api_port")
    return _good("gateway", f"{gateway.url}{_host_names(settings)}")


def _host_names(settings: Settings) -> str:
    """Return by which names other machines can call the gateway; empty if it listens on loopback only (API-4)."""
    if is_loopback(settings.api_host):
        return ""
    public = parse_origin(settings.public_url) if settings.public_url else None
    names = [*([public.host] if public else []), *settings.allowed_hosts]
    if not is_ip_address(settings.api_host):
        names.insert(0, settings.api_host)
    if not names:
        return "; other machines reach it only by IP address: set allowed_hosts or public_url for names"
    return f"; other machines reach it by IP address or as {', '.join(names)}"
