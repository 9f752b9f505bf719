"""A gateway that listens on a port, and the programs that send it requests."""

from tests.api.conftest import env, session_requests, url

__all__ = ["env", "session_requests", "url"]
