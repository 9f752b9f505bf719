"""Where a session's opaque vendor state is kept: with its other texts, but out of reach of whoever reads those."""


def opaque_owner(session_id: str) -> str:
    """Name the owner of a session's opaque state; no session has that id, since none has a slash (AGT-3).

    >>> opaque_owner("s1")
    's1/opaque'
    """
    return f"{session_id}/opaque"
