"""One line a message, to stderr: for people, or as JSON for machines (OPS-6).

No line ever holds a prompt, an answer, a key or a header, whatever `log_level` is. Three things would bring them in.
The texts of exceptions quote what they are about, and the fields of the SDK's own messages hold failures: both are left
out, and of an exception types and places are told. And what libraries say at `debug` is what they send and receive:
below `info` only our own code is heard, so that a library that nobody has looked at is silent too.
"""

import json
import logging
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from turnkeeper.models.settings.settings import Settings

IDS = {"workflow_id": "session", "activity_type": "activity", "activity_id": "activity_id", "attempt": "attempt"}
"""What Temporal's LoggerAdapters know of a message's origin, and what we call it."""

OUR_PACKAGE = "turnkeeper"
"""Its loggers, which are named like the modules, obey `log_level` below `info`."""

TALKATIVE = ("httpx", "httpx2", "httpcore", "httpcore2", "mcp")
"""Libraries that tell, below a warning, addresses, which may hold keys, and the ids of others' sessions."""

PLACES = ("turn", "step")
"""What our own code may add, as `extra`."""


def set_up_logging(settings: Settings) -> None:
    """Have this process log as the settings ask. Once, before the first Temporal client."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    logging.basicConfig(handlers=[handler], force=True)
    set_levels(logging.getLevelNamesMapping()[settings.log_level.upper()])
    # The ids go into fields of their own.
    workflow.logger.workflow_info_on_message = False
    activity.logger.activity_info_on_message = False
    forwarding = LogForwardingConfig(
        logging.getLogger("temporalio"), prepend_target_on_message=False, append_log_fields_to_message=False
    )
    core = LoggingConfig(TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=core)))


def set_levels(level: int) -> None:
    """Log our own messages from `level` on, those of libraries from `INFO` or `level` on, whichever is higher."""
    logging.getLogger().setLevel(max(level, logging.INFO))
    logging.getLogger(OUR_PACKAGE).setLevel(level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


class JsonLines(logging.Formatter):
    """A message as one JSON object on one line."""

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
    """A message as one line to read."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        origin = "".join(f" {name}={value}" for name, value in _origin(record).items())
        exceptions = "".join(f" | {told}" for told in _exceptions(record))
        message = " ".join(_message(record).splitlines())
        return f"{time} {record.levelname:<7} {record.name}: {message}{origin}{exceptions}"


def _message(record: logging.LogRecord) -> str:
    """Return the message; of asyncio's own the first line, the others show a task with its exception's text."""
    message = record.getMessage()
    return message.partition("\n")[0] if record.name == "asyncio" else message


def _origin(record: logging.LogRecord) -> dict[str, Any]:
    known = {**getattr(record, "temporal_workflow", {}), **getattr(record, "temporal_activity", {})}
    ids = {ours: known[theirs] for theirs, ours in IDS.items() if theirs in known}
    return ids | {name: getattr(record, name) for name in PLACES if hasattr(record, name)}


def _exceptions(record: logging.LogRecord) -> list[str]:
    error = record.exc_info[1] if record.exc_info else None
    return [_place(link) for link in _chain(error)]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _place(error: BaseException) -> str:
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return " < ".join([type(error).__qualname__, *places])
