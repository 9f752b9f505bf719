"""The gateway's own fixtures: faces are routes of it."""

from tests.api.conftest import asked, http, http_alone, http_nowhere, on, url

__all__ = ["asked", "http", "http_alone", "http_nowhere", "on", "url"]
