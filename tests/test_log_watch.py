"""Tests of the watch over all tests' logs."""

import logging

import pytest

from tests.log_watch import LogWatch

TEXT = "where is the treasure?"


@pytest.mark.parametrize(
    ("message", "leaks"),
    [
        ("a prompt was received", False),
        ("short", False),
        (f"received {TEXT}", True),
        ("denied tk_abc_" + 32 * "x", True),
        ("sent Authorization: Bearer 0123456789", True),
        ("a token was rejected: eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.x", True),
    ],
)
def test_api_4_ops_6_a_log_line_with_a_text_or_a_key_is_found(message, leaks):
    watch = LogWatch()
    watch.forbid([TEXT, "short"])
    # Not logged, since this test is watched too.
    watch.handle(logging.LogRecord("turnkeeper.api", logging.DEBUG, "api.py", 1, message, (), None))
    assert len(watch.leaks()) == leaks


def test_api_4_ops_6_our_code_is_watched_at_debug_and_libraries_at_their_usual_level():
    with LogWatch().watching():
        assert logging.getLogger("turnkeeper.api").isEnabledFor(logging.DEBUG)
        assert logging.getLogger("uvicorn.error").isEnabledFor(logging.INFO)
        assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
