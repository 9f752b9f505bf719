"""The gateway of `tests/api`, for the features that have routes."""

from tests.api.conftest import (
    api_document,
    env,
    http,
    http_alone,
    http_nowhere,
    long_chat,
    session_requests,
    shared_env,
    shared_http,
    unchanged,
    url,
)

__all__ = [
    "api_document",
    "env",
    "http",
    "http_alone",
    "http_nowhere",
    "long_chat",
    "session_requests",
    "shared_env",
    "shared_http",
    "unchanged",
    "url",
]
