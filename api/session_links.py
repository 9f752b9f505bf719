"""What a new session is started with by default, and where it can be seen."""

from typing import Any

from turnkeeper.api.bodies import StartSession
from turnkeeper.api.callers import Caller
from turnkeeper.models.http_responses import SessionLinks
from turnkeeper.models.ids import DEFAULT_TENANT, WorkflowId, session_id_of, tenant_of
from turnkeeper.models.session.messages import Configure, SessionInput, configured
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.tasks.history_policy import HandOffPresets
from turnkeeper.workflows.hosting.endpoint import WEB_UI_PATH, web_ui_origin


def session_path(workflow_id: WorkflowId) -> str:
    """Return the path of a session's routes.

    >>> session_path(WorkflowId("acme:support-42"))
    '/workflow/support-42'
    """
    return f"/workflow/{session_id_of(workflow_id)}"


def chat_page(workflow_id: WorkflowId) -> str:
    """Return the path of the chat page that shows a session.

    >>> chat_page(WorkflowId("acme:support-42"))
    '/?session=support-42'
    """
    return f"/?session={session_id_of(workflow_id)}"


def chat_url(settings: Settings, workflow_id: WorkflowId) -> str:
    """Return the address of the chat page that shows a session."""
    return f"{settings.gateway_url}{chat_page(workflow_id)}"


def default_input(settings: Settings, workflow_id: WorkflowId, *, user: str | None) -> SessionInput:
    """Return what a session is started with where nothing else is said: the settings, frozen into its history.

    `user` is the person whose session it is: the one that the request names, otherwise the caller's.
    """
    return SessionInput(
        user=user,
        model=settings.first_model,
        system_prompt=settings.system_prompt,
        limits=settings.limits,
        history=settings.history,
        hand_off=None if settings.hand_off == HandOffPresets() else settings.hand_off,
        chat_url=chat_url(settings, workflow_id),
    )


def requested_input(options: StartSession, settings: Settings, workflow_id: WorkflowId, caller: Caller) -> SessionInput:
    """Return what a session is started with that a caller has described. Raises `RejectedError`."""
    base = default_input(settings, workflow_id, user=options.user or caller.user)
    change = Configure(
        title=options.title,
        model=options.model,
        limits=options.limits,
        history=options.history,
        tool_policy=options.tool_policy,
    )
    fields: dict[str, Any] = {
        "workspace": options.workspace,
        "unattended": options.unattended,
    }
    if options.system_prompt is not None:
        fields["system_prompt"] = options.system_prompt
    return configured(base, change).model_copy(update=fields)


def session_links(settings: Settings, workflow_id: WorkflowId, *, namespace: str) -> SessionLinks:
    """Return where a session can be seen. The gateway's own Web UI is for the default tenant alone (OPS-2)."""
    ui_url = settings.temporal_ui_url
    if ui_url is None and tenant_of(workflow_id) == DEFAULT_TENANT and web_ui_origin(settings) is not None:
        ui_url = f"{settings.gateway_url}{WEB_UI_PATH}"
    path = f"/namespaces/{namespace}/workflows/{workflow_id}"
    return SessionLinks(
        conversation=f"{session_path(workflow_id)}/conversation",
        chat=chat_page(workflow_id),
        temporal=f"{ui_url}{path}" if ui_url else None,
    )
