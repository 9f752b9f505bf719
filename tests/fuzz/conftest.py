"""A gateway that really listens, and the programs that are let loose on it."""

from tests.api.conftest import on, session_requests, url

__all__ = ["on", "session_requests", "url"]
