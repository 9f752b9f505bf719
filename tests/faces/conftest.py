"""The gateway's own fixtures: faces are routes of it."""

from tests.gateway.conftest import http, http_alone, http_nowhere, on, url

__all__ = ["http", "http_alone", "http_nowhere", "on", "url"]
