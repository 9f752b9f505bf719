"""The operator's settings, where they are read from, and one sentence that says what is wrong (OPS-4).

A value given in code beats an environment variable `TURNKEEPER_*`, which beats `turnkeeper.toml` in the working
directory (or the file named by `TURNKEEPER_CONFIG`), which beats the default. Nested settings are tables in the file
and double underscores in the environment: `limits.max_steps`, `TURNKEEPER_LIMITS__MAX_STEPS`. The tables of
`docs/settings.md` are made from the docstrings here (`python -m docs.reference`). A Temporal server other than the
embedded one is configured in Temporal's own way: `TEMPORAL_*` and `temporal.toml` (`stores/temporal/connection.py`).
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from turnkeeper.models.context.window import BOTH_FORMS, ConversationHistoryConfig, history_config
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.ids import AGENT_PATTERN, checked_model
from turnkeeper.models.limits import DEFAULT_MODEL, DEFAULT_SYSTEM_PROMPT, Limits, SystemPrompt
from turnkeeper.models.settings.history_policy import HandOffPresets
from turnkeeper.models.settings.origins import normal_host, parse_origin
from turnkeeper.models.wire import FeatureData, Strict, reason_of

ENV_PREFIX = "TURNKEEPER_"
CONFIG_VARIABLE = "TURNKEEPER_CONFIG"
API_KEY_VARIABLE = "TURNKEEPER_API_KEY"
"""The key of the terminal and the Python client; no setting of a process."""
DEFAULT_FILE = "turnkeeper.toml"

VENDORS_MODELS = {"ANTHROPIC_API_KEY": "anthropic:claude-sonnet-5-5", "OPENAI_API_KEY": "openai:gpt-5.5"}
"""The default model when a vendor's key is set, the first vendor first; the SDKs read the same variables (AGT-4)."""

_SQLITE_URL = re.compile(r"sqlite(\+aiosqlite)?:///(?!:memory:$)[^?\n]+")
"""A file, without options: they could make the database one in memory, or read-only."""

_POSTGRESQL_URL = re.compile(
    r"postgresql(\+asyncpg)?://"
    r"([^:/@?#\s]*(:[^:/@?#\s]*)?@)?"
    r"(\[[0-9A-Fa-f:.]+\]|[^:/@?#\s\[\]]+)?(:(?P<port>[0-9]{1,5}))?"
    r"/[^/@?#\s]+"
    r"(\?sslmode=(disable|allow|prefer|require|verify-ca|verify-full))?"
)
"""User and password, host and port, database, and libpq's values of `sslmode`."""

_REDIS_URL = re.compile(
    r"rediss?://"
    r"([^:/@?#\s]*(:[^:/@?#\s]*)?@)?"
    r"(\[[0-9A-Fa-f:.]+\]|[^:/@?#\s\[\]]+)(:(?P<port>[0-9]{1,5}))?"
    r"(/[0-9]{0,4})?"
)
"""User and password, host and port, and the number of the database."""

Folder = Annotated[Path, AfterValidator(Path.expanduser)]
File = Annotated[Path, AfterValidator(Path.expanduser)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class SettingsError(TurnkeeperError):
    """The process can't start. The message names the setting, where it was set and what is allowed, in one sentence."""


class OpenAIChatSettings(Strict):
    """An endpoint that speaks OpenAI's Chat Completions: Ollama, vLLM, LM Studio, a proxy (AGT-4)."""

    base_url: str | None = Field(None, pattern=r"^https?://[^\s/]+[^\s]*$")
    """The endpoint for `openai-chat:`, with its version: `http://127.0.0.1:11434/v1` for Ollama."""
    api_key: SecretStr | None = Field(None, repr=False)
    """The endpoint's key; None: none is sent."""
    protocol: Literal["native", "text"] = "native"
    """`text`: for models without tool calling, which get the conversation as replay text."""
    images: Literal["auto", "yes", "no"] = "auto"
    """Whether its models read images and PDFs. `auto`: they are sent, and what a model refuses is named in text.
    `yes`: a refusal counts for those files only."""


class OidcSettings(Strict):
    """An issuer whose tokens are accepted, as in OpenID Connect (API-4)."""

    issuer: str | None = None
    """An OpenID Connect issuer whose tokens are accepted, exactly as their `iss` has it:
    `https://login.example.org/realms/team`. With `auth.keys` both are accepted; None: no tokens are."""
    audience: str | None = Field(None, min_length=1)
    """The `aud` of these tokens."""
    tenant_claim: str = Field("tenant", min_length=1)
    """The claim with the caller's tenant; a token without it belongs to the default tenant. A token with anything else
    than a tenant's name is refused."""
    user_claim: str = Field("sub", min_length=1)
    """The claim with the caller's name, shown with what the caller does."""
    role_claim: str = Field("role", min_length=1)
    """The claim with the caller's role: `reader`, `writer`, `approver` or `admin`, or a list with at least one of
    them, of which the highest counts. A token without it is a reader's."""

    @field_validator("issuer")
    @classmethod
    def _check_issuer(cls, issuer: str | None) -> str | None:
        origin = parse_origin(issuer) if issuer else None
        if issuer is None or (origin and (origin.scheme == "https" or is_loopback(origin.host))):
            return issuer
        raise ValueError("write https://HOST or https://HOST/PATH, as the tokens' iss has it; http on loopback only")

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        if (self.issuer is None) != (self.audience is None):
            raise ValueError("set both issuer and audience, or neither")
        return self


class AuthSettings(Strict):
    """Who may use the gateway. Without keys and issuer: everyone on this machine (API-4)."""

    keys: bool = False
    """Whether every caller needs a key, which `turnkeeper keys create` makes. Without keys and issuer, everyone on
    this machine is an admin."""
    oidc: OidcSettings = OidcSettings()
    """The issuer whose tokens are accepted too, or instead."""

    @property
    def is_on(self) -> bool:
        """Whether a request needs a credential."""
        return self.keys or self.oidc.issuer is not None


class Settings(BaseSettings):
    """Everything an operator may set. Times are in seconds; relative paths start at the working directory."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        # `TURNKEEPER_MODEL=` in a container's environment means "not set", not "the empty model".
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        # A traceback also shows the exception behind our sentence; values can be passwords.
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    state_dir: Folder = Path(".turnkeeper")
    """Folder of all data: the embedded server's database and address, the archive, logs, offline scripts. One stack
    per folder; two stacks run side by side with two folders. Copy it while the stack is stopped. At every start the
    folder and our files in it are closed to other users of the machine (modes 700 and 600)."""
    features: Annotated[tuple[str, ...] | None, NoDecode] = None
    """What worker, gateway and command line have besides the core: names from `features/`, in the environment with
    commas between them; None: all. Worker and gateway must have the same. The settings `auth.…` need `access`."""
    agents: File | None = None
    """A Python file with agents and their tools (`turnkeeper up FILE`); None: sessions have no agents of code."""
    agents_reload: bool = False
    """Whether that file is reloaded when it is saved, and sessions become the newest version of their agent at their
    next turn (`turnkeeper dev FILE`)."""
    agent: str | None = Field(None, pattern=AGENT_PATTERN)
    """The agent of sessions that name none, as `weather` or `weather@2`; None: they have the settings below."""
    tool_memory: int = Field(1_000_000_000, ge=100_000_000)
    """How many bytes of memory the process with an agent's own tools may have."""
    archive_url: str | None = Field(None, repr=False)
    """The database of archived turns, large texts and parked prompts, the same for every worker and gateway:
    `sqlite:///PATH`, or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, see below; None: the file `archive.db` in
    `state_dir`. No message repeats the value."""
    workspace_root: Folder = Path("turnkeeper-workspace")
    """Folder in which the sessions' tools work; a session never gets above it. `.` is the worker's start folder,
    without its hidden files. `turnkeeper up` creates the folder and prints its path; otherwise the first write creates
    it. The files of a tenant are below `.tenants/<tenant>` in it."""
    mcp_config: File | None = None
    """File that lists MCP servers, see below. A named file must exist; None: `mcp.json` in the working directory, if
    there is one."""
    offline_scripts: Folder | None = None
    """Folder of the scripts that the model `offline:script/<name>` plays; None: `scripts` in `state_dir`."""

    auth: AuthSettings = AuthSettings()
    """Who may use the gateway."""
    api_host: str = "127.0.0.1"
    """Address that the gateway listens on. Any address but loopback needs `auth.keys` or `auth.oidc.issuer`."""
    api_port: Port = 8080
    """Port of the gateway; 0: any free one. If it is in use, `turnkeeper up` takes another one and says so;
    `turnkeeper api` does not start."""
    public_url: str | None = Field(None, pattern=r"^https?://[^\s/]+[^\s]*[^\s/]$")
    """Where people reach the gateway, for links in the Temporal Web UI. Pages of its origin may send what the
    gateway's own page may; None: `http://<api_host>:<api_port>`."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Further names of the gateway, without scheme and port, beyond loopback, `api_host` and the host of `public_url`
    (API-4); in the environment with commas between them."""

    api_head_timeout: float = Field(10.0, ge=0.1, le=3_600)
    """Seconds for the head of a request, from the start of the connection to the head's last byte. Then the connection
    is closed, with a 408 if anything had arrived."""
    api_body_timeout: float = Field(60.0, ge=0.1, le=3_600)
    """Seconds for the body of a request; then the connection is closed with a 408. Raise it for large histories over
    slow lines: 10 MiB in 60 seconds need 1.4 Mbit/s."""
    api_max_import_bytes: int = Field(64 * 1024 * 1024, ge=1024 * 1024, le=1024 * 1024 * 1024)
    """Largest document that `POST /workflow/import` takes. It may have a JSON value for every 64 of these bytes. While
    it is read, first the gateway and then a worker need about four times as much memory; each reads one at a time."""
    api_max_connections: int = Field(1_000, ge=1, le=100_000)
    """Connections at once, including those that watch sessions. One more replaces one that waits for its client; if
    all are being answered, it gets a 503 and is closed."""

    rate_limit: float | None = Field(None, gt=0, le=1_000_000)
    """Requests a second of one key or person, at one gateway; after a pause, four seconds' requests may come at once.
    One more is answered 429 with `Retry-After`. `/login`, `/logout` and `/me` without a valid credential are counted
    by the client's address; None: 50 where callers need a credential, else no limit."""
    prompt_rate_limit: float | None = Field(None, gt=0, le=1_000_000)
    """Prompts a minute in one session, from everybody, at one gateway; after a pause, a minute's prompts may come at
    once; None: 120 where callers need a credential, else no limit."""
    max_streams_per_key: int | None = Field(None, ge=1, le=100_000)
    """Event streams, waiting requests and calls of `/mcp` of one key or person at once, at one gateway; None: 100
    where callers need a credential, else no limit."""
    max_open_sessions: int | None = Field(None, ge=1, le=10_000_000)
    """Open sessions of one tenant, tasks included. Temporal counts them every 10 seconds; None: 10,000 where callers
    need a credential, else no limit."""

    temporal_port: Port = 7233
    """Port of the embedded Temporal server; 0: any free one. If it is in use, another one is taken and printed."""
    temporal_ui_port: Port = 0
    """Port on which the gateway reaches the embedded server's Web UI; people open it at the gateway's `/temporal`. 0:
    a port that browsers block for web pages. If it is in use, another one is taken and printed."""
    temporal_ui_proxy: str | None = Field(None, pattern=r"^https?://[^\s/]+$")
    """Where the gateway reaches the Web UI that it serves at `/temporal`, without a path: `http://temporal-ui:8080`.
    Its public path must be `/temporal`; None: the embedded server's."""
    temporal_ui_url: str | None = Field(None, pattern=r"^https?://[^\s/]+[^\s]*[^\s/]$")
    """Where people reach Temporal's Web UI, for links to a session there; None: the gateway's `/temporal`, for
    sessions of the default tenant."""
    task_queue: str = Field("turnkeeper", min_length=1, max_length=200)
    """The task queue that workers poll. Workers and gateways of one installation share it."""
    grpc_compression: Literal["none", "gzip"] = "none"
    """Compression between us and Temporal. `none` is up to 8 times faster for large sessions (OPS-8); `gzip` pays off
    on slow or metered networks."""

    redis_url: str | None = Field(None, repr=False)
    """A Redis server that carries partial output from workers to gateways: `redis://USER:PASSWORD@HOST:PORT/NUMBER`,
    or `rediss:` with TLS. It needs `pip install 'turnkeeper[redis]'`. Percent-encode special characters, such as `%40`
    for `@`. Every worker and gateway must use the same one. If Redis fails, only partial output is lost. No message
    repeats the value."""
    partials: Literal["auto", "heartbeats"] = "auto"
    """What carries partial output. `auto`: Redis if `redis_url` is set, else sockets in the folder `partials` of
    `state_dir`. `heartbeats`: those of the model calls, once a second, for those who have neither a shared folder nor
    Redis; each is an action at Temporal, watched or not. It excludes `redis_url`."""

    max_cached_workflows: int = Field(1_000, ge=1, le=1_000_000)
    """Sessions that a worker holds in memory. One beyond them is replayed from its history for every workflow task,
    which is 17 times slower. At least `max_concurrent_workflow_tasks` + `max_concurrent_replays`: with fewer, the
    SDK's worker can stop polling."""
    max_concurrent_workflow_tasks: int = Field(8, ge=1, le=1_000)
    """Tasks at once, for sessions in memory. Further tasks wait in Temporal, where their `task_timeout` does not run.
    They share one processor."""
    max_concurrent_replays: int = Field(2, ge=1, le=1_000)
    """Tasks at once, for all other sessions, which are replayed first. More at once make each slower, and on a busy
    machine too slow for `task_timeout`."""
    sticky_timeout: float = Field(1.0, ge=0.1, le=60)
    """Seconds: if a worker does not answer for this long, its session's next task goes to another worker."""
    task_timeout: float = Field(3.5, ge=1, le=120)
    """The workflow task timeout in seconds: a task that its worker has not finished by then goes to another worker.
    Stored in a session when it is created."""
    shutdown_grace: float = Field(20.0, ge=0, le=3_600)
    """Seconds that a stopping worker gives to running model and tool calls. Calls that it cuts off run again
    elsewhere, except at-most-once tools, whose outcome is then unknown. 0: all are cut off."""

    model: str | None = None
    """Model of new sessions: `anthropic:`, `openai:` or `openai-chat:` with a model's name, or `offline:`, which needs
    no key and no network; None: the first of Anthropic and OpenAI whose key is set (`anthropic:claude-sonnet-5-5` with
    `ANTHROPIC_API_KEY`, `openai:gpt-5.5` with `OPENAI_API_KEY`), else `offline:`."""
    system_prompt: SystemPrompt = DEFAULT_SYSTEM_PROMPT
    """The model's instructions before the conversation; may be empty."""
    offline_words_per_second: float = Field(40.0, ge=0, le=10_000)
    """Speed of the offline model, for all sessions. 0: all at once."""
    max_conversation_messages: int | None = Field(None, ge=0)
    """Short for `conversation.max_messages`; set only one of the two."""
    conversation: ConversationHistoryConfig = ConversationHistoryConfig()
    """How much of a conversation the model sees, in new sessions (CTX-1)."""

    model_silence_timeout: float = Field(300.0, ge=1, le=3_600)
    """Seconds that a vendor may send nothing during an answer; then it is asked again."""
    openai_chat: OpenAIChatSettings = OpenAIChatSettings()
    """The endpoint behind `openai-chat:`."""

    limits: Limits = Limits()
    """Limits of new sessions."""
    hand_off: HandOffPresets = HandOffPresets()
    """Which part of a conversation a task gets, by the presets `keep_user` and `keep_assistant` (CTX-9)."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least urgent messages that are logged. Below `info` only our own code is logged, because libraries log what
    they send and receive."""
    log_format: Literal["json", "text"] = "text"
    """`json`: one object per line. Neither format ever contains prompts, answers, keys or headers."""

    @property
    def first_model(self) -> str:
        """Model of new sessions: the one that is set, or that of the first vendor with a key (AGT-4)."""
        vendors = (model for variable, model in VENDORS_MODELS.items() if os.environ.get(variable))
        return self.model or next(vendors, DEFAULT_MODEL)

    @property
    def session_features(self) -> FeatureData:
        """What the input of new sessions has for features."""
        if self.hand_off == HandOffPresets() or not (self.features is None or "tasks" in self.features):
            return {}
        return {"tasks": {"presets": self.hand_off.model_dump(mode="json")}}

    @property
    def gateway_url(self) -> str:
        return self.public_url or f"http://{self.api_host}:{self.api_port}"

    @property
    def scripts_dir(self) -> Path:
        return self.offline_scripts or self.state_dir / "scripts"

    @property
    def history(self) -> ConversationHistoryConfig:
        return history_config(
            self.model_dump(include={"max_conversation_messages", "conversation"} & self.model_fields_set)
        )

    @field_validator("archive_url")
    @classmethod
    def _check_archive_url(cls, archive_url: str | None) -> str | None:
        if archive_url is not None and not is_store_url(archive_url):
            raise ValueError(
                "write sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, special characters as %40 for "
                "@, and no option but sslmode"
            )
        return archive_url

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, public_url: str | None) -> str | None:
        if public_url is not None and parse_origin(public_url) is None:
            raise ValueError("write https://HOST, https://HOST:PORT or either with a path")
        return public_url

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _normalise_hosts(cls, allowed_hosts: object) -> tuple[str, ...]:
        """Read a list, or one string with commas as an environment variable has it."""
        listed = allowed_hosts.split(",") if isinstance(allowed_hosts, str) else allowed_hosts
        if isinstance(listed, list | tuple) and all(isinstance(host, str) for host in listed):
            hosts = [normal_host(host.strip()) for host in listed]
            if None not in hosts:
                return tuple(host for host in hosts if host)
        raise ValueError("list host names or IP addresses, without scheme, port or path")

    @field_validator("features", mode="before")
    @classmethod
    def _split_features(cls, features: object) -> object:
        """Read a list, or one string with commas as an environment variable has it."""
        return [name.strip() for name in features.split(",") if name.strip()] if isinstance(features, str) else features

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, redis_url: str | None) -> str | None:
        if redis_url is not None and not is_redis_url(redis_url):
            raise ValueError(
                "write redis://USER:PASSWORD@HOST:PORT/NUMBER, or rediss: with TLS, special characters as %40 for @"
            )
        return redis_url

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: str | None) -> str | None:
        return None if model is None else checked_model(model)

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.max_conversation_messages is not None and "conversation" in self.model_fields_set:
            raise ValueError(BOTH_FORMS)
        return self

    @model_validator(mode="after")
    def _check_partials(self) -> Self:
        if self.partials == "heartbeats" and self.redis_url is not None:
            raise ValueError("partials=heartbeats excludes redis_url: leave one of them out")
        return self

    @model_validator(mode="after")
    def _check_cache_size(self) -> Self:
        tasks = self.max_concurrent_workflow_tasks + self.max_concurrent_replays
        if self.max_cached_workflows < tasks:
            minimum = f"max_concurrent_workflow_tasks + max_concurrent_replays = {tasks}"
            raise ValueError(f"max_cached_workflows must be at least {minimum}")
        return self

    @field_validator("api_host")
    @classmethod
    def _check_api_host(cls, api_host: str, info: ValidationInfo) -> str:
        auth = info.data.get("auth")
        if not is_loopback(api_host) and auth is not None and not auth.is_on:
            raise ValueError(
                "other machines can reach it, and no key is needed; keep 127.0.0.1, or set auth.keys=true and create "
                "keys with `turnkeeper keys create`, or set auth.oidc.issuer"
            )
        return api_host

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read code, environment and settings file, in this order; no `.env` and no secrets folder."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=settings_file())


def load_settings() -> Settings:
    """Return the settings of this process.

    Raises:
        SettingsError: An unknown key, a bad value or an unreadable file.
    """
    if os.environ.get(CONFIG_VARIABLE) and not settings_file().is_file():  # pydantic would ignore that
        raise SettingsError(f"{CONFIG_VARIABLE} names {str(settings_file())!r}, which does not exist.")
    _check_variables()
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError(_sentence(error.errors()[0])) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"{settings_file()} cannot be read as TOML: {error}.") from error


def settings_file() -> Path:
    """Return the path of the settings file, which may not exist."""
    return Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_FILE).expanduser()


def setting_names(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every setting.

    >>> names = list(setting_names())
    >>> "state_dir" in names, "limits.max_steps" in names, "limits" in names
    (True, True, False)
    """
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from setting_names(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`; a name other than localhost may be anywhere.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_store_url(url: str) -> bool:
    """Return whether `stores/database/` accepts `url`. Host, port and password default to libpq's variables.

    >>> is_store_url("sqlite:////var/lib/archive.db"), is_store_url("postgresql://me:p%40ss@db:5432/archive")
    (True, True)
    >>> is_store_url("sqlite:///:memory:"), is_store_url("postgresql://me:p@ss@db/archive"), is_store_url("archive.db")
    (False, False, False)
    """
    if _SQLITE_URL.fullmatch(url):
        return True
    parts = _POSTGRESQL_URL.fullmatch(url)
    return parts is not None and int(parts["port"] or 0) < 1 << 16


def is_redis_url(url: str) -> bool:
    """Return whether `stores/partials/over_redis.py` accepts `url`.

    >>> is_redis_url("redis://cache:6379/0"), is_redis_url("rediss://:p%40ss@cache"), is_redis_url("redis://:p@ss@c")
    (True, True, False)
    """
    parts = _REDIS_URL.fullmatch(url)
    return parts is not None and int(parts["port"] or 0) < 1 << 16


def _check_variables() -> None:
    """Raise `SettingsError` for unknown `TURNKEEPER_*` variables, which pydantic would ignore."""
    variables = {CONFIG_VARIABLE, API_KEY_VARIABLE, *map(_variable, setting_names())}
    for variable in sorted(os.environ):
        if variable.upper().startswith(ENV_PREFIX) and variable.upper() not in variables:
            raise SettingsError(
                f"The environment variable {variable} is not a setting{_suggestion(variable.upper(), variables)}"
            )


def _variable(name: str) -> str:
    return ENV_PREFIX + name.replace(".", "__").upper()


def _suggestion(name: str, allowed: set[str]) -> str:
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.85)
    return f". Did you mean {close[0]}?" if close else ". docs/settings.md lists all settings."


def _sentence(problem: ErrorDetails) -> str:
    name = ".".join(map(str, problem["loc"]))
    if not name:
        return problem["msg"].removeprefix("Value error, ") + "."
    if problem["type"] == "extra_forbidden":
        return f"{name!r} ({_place(name)}) is not a setting{_suggestion(name, set(setting_names()))}"
    setting = f"{name}={problem['input']!r:.80}" if _is_printable(name) else name
    return f"{setting} ({_place(name)}) is not allowed: {reason_of(problem)}."


def _is_printable(name: str) -> bool:
    """Return whether a message may have the setting's value: those with `repr=False` may contain a password."""
    model: type[BaseModel] = Settings
    for part in name.split("."):
        field = model.model_fields.get(part)
        if field is None:
            return True
        if not field.repr:
            return False
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
    return True


def _place(name: str) -> str:
    names = (variable for variable, value in os.environ.items() if value and variable.upper() == _variable(name))
    return next((f"environment variable {variable}" for variable in names), f"in {settings_file()}")
