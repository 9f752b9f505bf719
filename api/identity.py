"""Whose credential it is, and until when."""

from dataclasses import dataclass

from turnkeeper.api.callers import LOCAL, Caller


@dataclass(frozen=True)
class Identity:
    """A caller, and what ends the caller's credential."""

    caller: Caller
    key_id: str | None = None
    """The key, which can be revoked; None: a token, or no authentication."""
    login: str | None = None
    """The digest of the browser's login, which can be ended; None: the request has its credential itself."""
    expires_at: float | None = None
    """From when on the credential is refused, in seconds since 1970; None: it does not expire."""


LOCAL_IDENTITY = Identity(LOCAL)
