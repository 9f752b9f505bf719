"""The gateway's own fixtures: the client is tested against it."""

from tests.api.conftest import http, http_alone, http_nowhere, on, session_requests, url

__all__ = ["http", "http_alone", "http_nowhere", "on", "session_requests", "url"]
