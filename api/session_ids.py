"""The one function that makes a workflow id of a session's id (API-4)."""

DEFAULT_TENANT = ""


def workflow_id(session_id: str, *, tenant: str = DEFAULT_TENANT) -> str:
    """Return the workflow id; the default tenant adds nothing.

    >>> workflow_id("chat-1"), workflow_id("chat-1", tenant="acme")
    ('chat-1', 'acme:chat-1')
    """
    return f"{tenant}:{session_id}" if tenant else session_id
