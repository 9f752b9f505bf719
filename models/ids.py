"""Ids of sessions, prompts and tool calls (SES-6), and names of models with their providers (AGT-4).

Ids are safe in URLs, in file names and in Temporal's visibility filters.

A session's id is unique in its tenant. Its workflow id is unique in Temporal and in the stores, since it begins with
the tenant: `acme:chat-1`. The default tenant has no name and adds nothing (API-4). Clients only ever see ids of
sessions; the types make mypy find a place that mixes the two up.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import NewType

from turnkeeper.models.errors import RejectedError

WorkflowId = NewType("WorkflowId", str)
"""The id of a session's workflow, with the tenant: for Temporal and the stores."""

PublicId = NewType("PublicId", str)
"""The id of a session as clients know it, without the tenant."""

ID_PATTERN = r"^[A-Za-z0-9._~-]{1,128}$"
CALL_ID_PATTERN = r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$"
TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}$"
AGENT_NAME_PATTERN = r"[a-z0-9][a-z0-9_-]{0,63}"
AGENT_PATTERN = rf"^{AGENT_NAME_PATTERN}(@[1-9][0-9]{{0,8}})?$"
"""An agent's name, or its name and version: `weather@2`."""
_ID = re.compile(ID_PATTERN[1:-1])
_TENANT = re.compile(TENANT_PATTERN[1:-1])
_PREFIX = re.compile(f"({TENANT_PATTERN[1:-1]}):")

DEFAULT_TENANT = ""

SESSION_TYPE = "AgenticAIWorkflow"
DELETION_TYPE = "DeleteSession"
"""The types of our workflows, by which Temporal's clients name them: only a worker has their code."""

ID_RULE = "1 to 128 letters, digits or . _ ~ -"


def is_id(value: object) -> bool:
    r"""Return whether `value` is a valid id of a session or a prompt.

    >>> is_id("a-1"), is_id(""), is_id("a/b"), is_id("a\n"), is_id(7)
    (True, False, False, False, False)
    """
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def is_tenant(name: str) -> bool:
    r"""Return whether `name` is a valid tenant; the empty name is the default tenant.

    >>> is_tenant(""), is_tenant("acme-2"), is_tenant("Acme"), is_tenant("a' OR '"), is_tenant("a\n")
    (True, True, False, False, False)
    """
    return name == DEFAULT_TENANT or _TENANT.fullmatch(name) is not None


def workflow_id(session_id: str, *, tenant: str) -> WorkflowId:
    """Return the workflow id of a tenant's session.

    Raises `ValueError` for a name that no tenant can have, and for an id that would be another tenant's.

    >>> workflow_id("chat-1", tenant=""), workflow_id("chat-1", tenant="acme")
    ('chat-1', 'acme:chat-1')
    """
    if not is_tenant(tenant):
        raise ValueError(f"{tenant!r} is not a valid tenant: it must match {TENANT_PATTERN}")
    if not is_id(session_id):
        raise ValueError(f"{session_id!r} is not a valid id: {ID_RULE}")
    return WorkflowId(f"{tenant}:{session_id}" if tenant else session_id)


def session_id_of(workflow_id: WorkflowId) -> PublicId:
    """Return the id of a workflow's session, as the tenant's clients know it.

    >>> session_id_of(WorkflowId("chat-1")), session_id_of(WorkflowId("acme:chat-1"))
    ('chat-1', 'chat-1')
    """
    prefix = _PREFIX.match(workflow_id)
    return PublicId(workflow_id[prefix.end() :] if prefix else workflow_id)


def tenant_of(workflow_id: WorkflowId) -> str:
    """Return the tenant that a workflow's session belongs to.

    >>> tenant_of(WorkflowId("chat-1")), tenant_of(WorkflowId("acme:chat-1"))
    ('', 'acme')
    """
    prefix = _PREFIX.match(workflow_id)
    return prefix[1] if prefix else DEFAULT_TENANT


def sibling_id(session_id: str, *, of: WorkflowId) -> WorkflowId:
    """Return the workflow id of another session of the same tenant, such as a task's or a parent's.

    >>> sibling_id("chat-1.task-1", of=WorkflowId("acme:chat-1"))
    'acme:chat-1.task-1'
    """
    return workflow_id(session_id, tenant=tenant_of(of))


def sibling_url(url: str | None, session_id: PublicId, sibling: PublicId) -> str | None:
    """Return the URL of another session's page from that of `session_id`; `None` if that has none.

    >>> sibling_url("https://agents.example/chat/s1", PublicId("s1"), PublicId("s1.task-1"))
    'https://agents.example/chat/s1.task-1'
    """
    return url and sibling.join(url.rsplit(session_id, 1))


def call_id(turn: int, step: int, index: int) -> str:
    """Return our id of a tool call, unique in its session; turns and steps count from 1, calls from 0 (SES-6).

    >>> call_id(3, 2, 0)
    '3.2.0'
    """
    return f"{turn}.{step}.{index}"


BUILT_IN_PROVIDERS = {
    "anthropic": "turnkeeper.activities.providers.anthropic.provider:AnthropicProvider",
    "openai": "turnkeeper.activities.providers.openai.responses:OpenAIProvider",
    "openai-chat": "turnkeeper.activities.providers.openai.chat:OpenAIChatProvider",
    "offline": "turnkeeper.activities.providers.offline.provider:OfflineProvider",
}
"""The class of each provider, written as an entry point: only workers and `doctor` load it."""

PROVIDERS = "turnkeeper.providers"
"""The group of entry points by which other packages add providers: name and class, as in the table above."""

_PROVIDER = re.compile(r"[a-z][a-z0-9-]{0,31}")
_NAME = re.compile(r"[!-~]{0,128}")


@cache
def providers() -> Mapping[str, str]:
    """Return the providers of this installation: the built-in ones, and those of other packages (AGN-8).

    All workers and gateways have the same ones. A worker calls this before it runs a session, since it reads files.
    """
    from importlib.metadata import entry_points  # slow to load, and seldom needed

    others = {one.name: one.value for one in entry_points(group=PROVIDERS) if _PROVIDER.fullmatch(one.name)}
    return {**BUILT_IN_PROVIDERS, **{name: path for name, path in others.items() if name not in BUILT_IN_PROVIDERS}}


def model_pattern() -> str:
    """Return the pattern of model names, for clients that check one before they send it."""
    return f"^({'|'.join(providers())}):[!-~]{{0,128}}$"


def split_model(model: str) -> tuple[str, str]:
    """Return the provider and the name, which may be empty. Raises `RejectedError` naming what is allowed.

    >>> split_model("offline:script/demo"), split_model("offline:")
    (('offline', 'script/demo'), ('offline', ''))
    """
    provider, colon, name = model.partition(":")
    if not colon or (provider not in BUILT_IN_PROVIDERS and provider not in providers()):
        allowed = ", ".join(providers())
        raise RejectedError(
            "invalid",
            f"model: {model[:60]!a} names none of the providers {allowed}; write it as openai:gpt-5.5.",
            field="model",
        )
    if not _NAME.fullmatch(name):
        raise RejectedError(
            "invalid",
            f"model: the name in {model[:60]!a} is not of 0 to 128 printable ASCII characters without spaces.",
            field="model",
        )
    return provider, name


def checked_model(model: str) -> str:
    """Return `model`, for validators. Raises `ValueError` naming what is allowed."""
    try:
        split_model(model)
    except RejectedError as rejection:
        raise ValueError(rejection.message.removeprefix("model: ").removesuffix(".")) from rejection
    return model
