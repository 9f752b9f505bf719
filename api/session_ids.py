"""The mapping of session ids to workflow ids (API-4)."""

DEFAULT_TENANT = ""


def workflow_id(session_id: str, *, tenant: str = DEFAULT_TENANT) -> str:
    """Return the workflow id. The default tenant has no prefix.

    >>> workflow_id("chat-1"), workflow_id("chat-1", tenant="acme")
    ('chat-1', 'acme:chat-1')
    """
    return f"{tenant}:{session_id}" if tenant else session_id
