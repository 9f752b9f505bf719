"""Log lines, and texts that are never logged (OPS-6)."""

import asyncio
import gc
import json
import logging

import pytest

from turnkeeper.ops.local.logs import OUR_PACKAGE, VERBOSE_LIBRARIES, JsonLines, TextLines, set_levels


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


def test_ops_6_a_json_line_has_time_level_logger_message_and_location(record):
    line = json.loads(JsonLines().format(record))
    assert line.pop("time").endswith("+00:00")
    assert [text.split(":")[0] for text in line.pop("exception")] == [
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
def test_ops_6_both_formats_hide_exception_texts_and_stay_on_one_line(formatter, record):
    record.msg = "two\nlines of %s"
    line = formatter.format(record)
    assert "\n" not in line
    assert "my prompt" not in line
    assert "sk-secret" not in line
    assert "ValueError" in line


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
def test_ops_6_an_error_among_its_own_causes_is_logged_once(formatter, record):
    error = record.exc_info[1]
    error.__cause__.__cause__ = error
    line = formatter.format(record)
    assert (line.count("ValueError"), line.count("KeyError")) == (1, 1)


@pytest.fixture
def levels():
    """Restore the log levels after the test."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in [OUR_PACKAGE, *VERBOSE_LIBRARIES])]
    before = [(logger, logger.level) for logger in loggers]
    yield
    for logger, level in before:
        logger.setLevel(level)


def test_ops_6_below_info_only_our_own_code_is_logged(levels):
    set_levels(logging.DEBUG)
    for ours in (
        "turnkeeper.workflows.turn.turn",
        "turnkeeper.api.temporal.session_reader",
        "turnkeeper.stores.database.database",
    ):
        assert logging.getLogger(ours).isEnabledFor(logging.DEBUG)
    for theirs in ("temporalio.activity", "temporalio.worker._activity", "openai._base_client", "anthropic._client"):
        assert not logging.getLogger(theirs).isEnabledFor(logging.DEBUG)
    for theirs in ("httpx", "httpcore.http11", "httpx2", "mcp.client.session", "alembic.runtime.migration"):
        assert not logging.getLogger(theirs).isEnabledFor(logging.INFO)
    for theirs in ("sqlalchemy.engine", "uvicorn.error", "aiosqlite", "redis", "a library of tomorrow"):
        assert not logging.getLogger(theirs).isEnabledFor(logging.DEBUG)


def test_ops_6_a_level_above_info_applies_to_libraries_too(levels):
    set_levels(logging.ERROR)
    assert not logging.getLogger("turnkeeper.workflows.turn.turn").isEnabledFor(logging.WARNING)
    assert not logging.getLogger("httpx").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
async def test_ops_6_asyncios_messages_are_logged_without_the_text_of_the_exception(formatter, caplog):
    gc.collect()  # what other tests have left
    caplog.clear()
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("my prompt"))
    del failed
    gc.collect()
    (message,) = [formatter.format(record) for record in caplog.records if record.name == "asyncio"]
    assert "exception was never retrieved" in message
    assert "ValueError" in message
    assert "my prompt" not in message
