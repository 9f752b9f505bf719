"""A gateway that listens on a port, and the programs that send it requests."""

from tests.api.conftest import on, session_requests, url

__all__ = ["on", "session_requests", "url"]
