"""What is logged, and what never is (OPS-6)."""

import json
import logging

import pytest

from stack.logs import JsonLines, TextLines


@pytest.fixture
def record() -> logging.LogRecord:
    """Return a message as Temporal's adapters make it, about an error that quotes a prompt."""
    try:
        _fail()
    except ValueError as error:
        return logging.getLogger("temporalio.activity").makeRecord(
            *("temporalio.activity", logging.WARNING, "a.py", 1, "Completing %s as failed", ("activity",)),
            (ValueError, error, error.__traceback__),
            extra={
                "temporal_activity": {"workflow_id": "session-1", "activity_type": "call_model", "attempt": 2},
                "turn": 3,
                "step": 1,
            },
        )


def _fail() -> None:
    try:
        {}["sk-secret"]
    except KeyError as error:
        raise ValueError("my prompt") from error


def test_ops_6_a_json_line_tells_time_level_logger_message_and_where_it_comes_from(record):
    line = json.loads(JsonLines().format(record))
    assert line.pop("time").endswith("+00:00")
    assert [told.split(":")[0] for told in line.pop("exception")] == [
        "ValueError < test_logs.py",
        "KeyError < test_logs.py",
    ]
    assert line == {
        "level": "warning",
        "logger": "temporalio.activity",
        "message": "Completing activity as failed",
        "session": "session-1",
        "activity": "call_model",
        "attempt": 2,
        "turn": 3,
        "step": 1,
    }


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
def test_ops_6_neither_form_repeats_what_an_exception_quotes_nor_breaks_the_line(formatter, record):
    record.msg = "two\nlines of %s"
    line = formatter.format(record)
    assert "\n" not in line
    assert "my prompt" not in line
    assert "sk-secret" not in line
    assert "ValueError" in line
