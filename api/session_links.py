"""What a new session is started with by default, and where it can be seen."""

from turnkeeper.api.session_ids import workflow_id
from turnkeeper.models.http_responses import SessionLinks
from turnkeeper.models.session.messages import SessionInput
from turnkeeper.models.settings.settings import Settings
from turnkeeper.workflows.hosting.connection import EmbeddedServer


def chat_page(session_id: str) -> str:
    """Return the path of the chat page that shows a session.

    >>> chat_page("support-42")
    '/?session=support-42'
    """
    return f"/?session={session_id}"


def chat_url(settings: Settings, session_id: str) -> str:
    """Return the address of the chat page that shows a session."""
    return f"{settings.gateway_url}{chat_page(session_id)}"


def default_input(settings: Settings, session_id: str, *, user: str | None = None) -> SessionInput:
    """Return what a session is started with where nothing else is said: the settings, frozen into its history."""
    return SessionInput(
        user=user,
        model=settings.first_model,
        system_prompt=settings.system_prompt,
        limits=settings.limits,
        history=settings.history,
        chat_url=chat_url(settings, session_id),
    )


def session_links(settings: Settings, session_id: str, *, namespace: str) -> SessionLinks:
    embedded = EmbeddedServer.recorded(settings.state_dir)
    ui_url = settings.temporal_ui_url or (embedded.ui_url if embedded else None)
    path = f"/namespaces/{namespace}/workflows/{workflow_id(session_id)}"
    return SessionLinks(
        conversation=f"/workflow/{session_id}/conversation",
        chat=chat_page(session_id),
        temporal=f"{ui_url}{path}" if ui_url else None,
    )
