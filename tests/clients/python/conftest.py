"""The gateway's own fixtures: the client is tested against it."""

from tests.api.conftest import asked, http, http_alone, http_nowhere, on, url

__all__ = ["asked", "http", "http_alone", "http_nowhere", "on", "url"]
