"""Log lines on stderr, one a message: as text, or as JSON (OPS-6).

No line contains a prompt, an answer, a key or a header, at any `log_level`:

- The message of an exception may quote them, so only its type and the code locations are logged.
- The SDK's own fields contain failures, so they are left out.
- Formatters of libraries (python-json-logger, structlog) print exceptions with their messages and all extra fields.
- Libraries log at `debug` what they send and receive, so below `info` only our own code is logged.
"""

import json
import logging
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from turnkeeper.models.settings.settings import Settings

IDS = {"workflow_id": "session", "activity_type": "activity", "activity_id": "activity_id", "attempt": "attempt"}
"""Fields that Temporal's LoggerAdapters add, with the names that we log them under."""

OUR_PACKAGE = "turnkeeper"
"""The only loggers that log below `info`."""

VERBOSE_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "mcp", "alembic")
"""Below a warning they log addresses, which may contain keys, the ids of other people's sessions, or their set-up."""

EXTRA_FIELDS = ("turn", "step")
"""Fields that our own code may add, as `extra`."""


def set_up_logging(settings: Settings, *, has_sdk: bool = True) -> None:
    """Set up the logging of this process. Call it once, before the first Temporal client is made.

    `has_sdk` False: the SDK is not loaded. If it is later, call `set_up_sdk_logging` before the first client.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    logging.basicConfig(handlers=[handler], force=True)
    set_levels(logging.getLevelNamesMapping()[settings.log_level.upper()])
    if has_sdk:
        set_up_sdk_logging()


@cache
def set_up_sdk_logging() -> None:
    """Set up the SDK's logging like ours; only the first call has an effect."""
    from temporalio import activity, workflow
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    # The ids have their own fields.
    workflow.logger.workflow_info_on_message = False
    activity.logger.activity_info_on_message = False
    forwarding = LogForwardingConfig(
        logging.getLogger("temporalio"), prepend_target_on_message=False, append_log_fields_to_message=False
    )
    core = LoggingConfig(TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=core)))


def set_levels(level: int) -> None:
    """Log our own messages from `level`, those of libraries from the higher of `level` and `INFO`."""
    logging.getLogger().setLevel(max(level, logging.INFO))
    logging.getLogger(OUR_PACKAGE).setLevel(level)
    for name in VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


class JsonLines(logging.Formatter):
    """Formats a message as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **_origin(record),
            **({"exception": _exceptions(record)} if record.exc_info else {}),
        }
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """Formats a message as one line of text."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        origin = "".join(f" {name}={value}" for name, value in _origin(record).items())
        exceptions = "".join(f" | {exception}" for exception in _exceptions(record))
        message = " ".join(_message(record).splitlines())
        return f"{time} {record.levelname:<7} {record.name}: {message}{origin}{exceptions}"


def _message(record: logging.LogRecord) -> str:
    """Return the message; of asyncio's, only the first line, since the others quote a task's exception."""
    message = record.getMessage()
    return message.partition("\n")[0] if record.name == "asyncio" else message


def _origin(record: logging.LogRecord) -> dict[str, Any]:
    fields = {**getattr(record, "temporal_workflow", {}), **getattr(record, "temporal_activity", {})}
    ids = {ours: fields[theirs] for theirs, ours in IDS.items() if theirs in fields}
    return ids | {name: getattr(record, name) for name in EXTRA_FIELDS if hasattr(record, name)}


def _exceptions(record: logging.LogRecord) -> list[str]:
    error = record.exc_info[1] if record.exc_info else None
    return [_locations(link) for link in _chain(error)]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and what has caused it, each once: `raise error from error` makes a circle."""
    links = list[BaseException]()
    while error is not None and not any(error is link for link in links):
        yield error
        links.append(error)
        error = error.__cause__ or error.__context__


def _locations(error: BaseException) -> str:
    """Return the type of an exception and its traceback's locations, innermost first."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    locations = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return " < ".join([type(error).__qualname__, *locations])
