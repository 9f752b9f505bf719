"""The gateway's own fixtures: the client is tested against it."""

from tests.api.conftest import env, http, http_alone, http_nowhere, session_requests, url

__all__ = ["env", "http", "http_alone", "http_nowhere", "session_requests", "url"]
