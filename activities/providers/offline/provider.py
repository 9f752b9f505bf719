"""The provider `offline`: a model with real behaviour (`model.py`), and scripts (AGT-4).

A script plays back responses, delays and faults, for tests and demos.

A script is a JSON file in the worker's script folder. The session's first model request gets the first response, the
second the second, and so on, including requests for summaries. The response depends only on the request's number, so a
retry after a crash, even by another worker, gets the same response. Whether its fault still occurs depends on the
number of attempts and waits in the `CallInfo`, so nothing is counted here.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, ValidationError

from turnkeeper.activities.providers.offline.model import OfflineModel, deltas_of, respond
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Provider, Vendor
from turnkeeper.models.errors import ErrorType
from turnkeeper.models.session.queue.prompts import sentence_for
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelRequest,
    ModelResponse,
    Part,
    RespondPart,
    ThinkPart,
)
from turnkeeper.models.wire import Strict

Seconds = Annotated[float, Field(ge=0, le=3_600)]


class ScriptedCall(Strict):
    """A tool call. `args` is a string if the arguments are not a JSON object; without an `id`, one is generated."""

    name: str
    args: dict[str, JsonValue] | str = {}
    id: str | None = None


class ScriptedFault(Strict):
    """A failure of the first `times` attempts, after `after_chunks` pieces of the answer.

    After the workflow has waited, the activity's attempts start at 1 again, and each wait counts as an attempt.
    """

    error_type: Literal[ErrorType, "stale_reasoning"]
    times: int = Field(1, ge=1)
    message: str = "the script says so"
    retry_after: Seconds | None = None
    after_chunks: int = Field(0, ge=0)

    def fails(self, *, attempt: int, waits: int) -> bool:
        """Return whether the attempt (from 1) fails, after `waits` waits of the workflow.

        >>> fault = ScriptedFault(error_type="overloaded", times=2)
        >>> [fault.fails(attempt=attempt, waits=waits) for attempt, waits in [(2, 0), (3, 0), (1, 1), (1, 2)]]
        [True, False, True, False]
        """
        return attempt + waits <= self.times


class ScriptedResponse(Strict):
    """One answer; `{request}` and `{last_user}` in its texts become the request's number and the newest user message.

    `delay` is the pause before the answer, `chunk_delay` that after each piece, both in seconds. `cut`: the stream ends
    before its final event.
    """

    think: str | None = None
    text: str | None = None
    calls: list[ScriptedCall] = []
    delay: Seconds = 0
    chunk_delay: Seconds = 0
    fault: ScriptedFault | None = None
    cut: bool = False


class Script(Strict):
    """The responses of a session, in order. With `repeat` the first follows the last."""

    responses: list[ScriptedResponse] = Field(min_length=1)
    repeat: bool = False

    def response_to(self, request: int) -> ScriptedResponse | None:
        """Return the response to the session's model request number `request` (from 1); `None` after the end."""
        index = (request - 1) % len(self.responses) if self.repeat else request - 1
        return self.responses[index] if index < len(self.responses) else None


class ScriptedModel:
    """Plays `folder`/NAME.json for the model `script/NAME`, and `folder`/default.json for `script`."""

    def __init__(self, folder: Path) -> None:
        """Play the scripts in `folder`. A script is loaded again when its file has changed."""
        self._folder = folder
        self._cache: dict[Path, tuple[tuple[int, int] | None, Script]] = {}

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Play the response to this request. Raises `ModelError` if the script says so, or there is no response."""
        path = self._path_of(name)
        script = await self._script(path)
        response = script.response_to(info.request)
        if response is None:
            raise ModelError("bad_request", f"the script {path.name!r} is at its end after {len(script.responses)}")
        await asyncio.sleep(response.delay)
        parts = _parts_of(response, request, info)
        fault = response.fault
        if fault and not fault.fails(attempt=info.attempt, waits=info.waits):
            fault = None
        chunks = 0
        async for delta in deltas_of(parts, pause=response.chunk_delay):
            if fault and chunks >= fault.after_chunks:
                break
            yield delta
            chunks += 1
        if fault:
            raise ModelError(fault.error_type, fault.message, retry_after=fault.retry_after)
        if not response.cut:
            yield respond(request, parts, model=name, number=info.request)

    def _path_of(self, name: str) -> Path:
        # The pattern also prevents access to files outside the folder.
        match = re.fullmatch(r"script(?:/([A-Za-z0-9_-]{1,64}))?", name)
        if not match:
            raise ModelError("bad_request", f"{name!r} is not script/NAME, the NAME 1 to 64 letters, digits, _ or -")
        return self._folder / f"{match[1] or 'default'}.json"

    async def _script(self, path: Path) -> Script:
        version = _version_of(path)  # before reading, so that a change meanwhile is seen the next time
        cached_version, script = self._cache.get(path, (None, None))
        if script is None or version is None or version != cached_version:
            # A thread only for reading: it costs more than a whole answer, while `stat` costs next to nothing.
            script = await asyncio.to_thread(_load, path)
            self._cache[path] = version, script
        return script


def _version_of(path: Path) -> tuple[int, int] | None:
    """Return a value that differs after every change of the file; `None` if the file can't be accessed."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _load(path: Path) -> Script:
    try:
        return Script.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelError("not_found", f"there is no offline script {path.stem!r} in the script folder") from error
    except OSError as error:
        raise ModelError("bad_request", f"the script {path.name!r} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ModelError("bad_request", f"the script {path.name!r} is malformed: {sentence_for(error)}") from error


def _parts_of(response: ScriptedResponse, request: ModelRequest, info: CallInfo) -> list[Part]:
    newest = next((message.content for message in reversed(request.messages) if message.role == "user"), "")

    def fill(text: str) -> str:
        # The user's words are filled in last, so that a placeholder in them is not replaced.
        return text.replace("{request}", str(info.request)).replace("{last_user}", newest)

    parts: list[Part] = []
    if response.think is not None:
        parts.append(ThinkPart(kind="think", text=fill(response.think)))
    if response.text is not None:
        parts.append(RespondPart(kind="respond", text=fill(response.text)))
    for index, call in enumerate(response.calls):
        call_id = call.id or f"call_{info.request}_{index}"
        parts.append(CallPart(kind="call", id=call_id, name=call.name, args=call.args))
    return parts


class OfflineProvider(Provider):
    """`offline:` is the offline model; `offline:script` and `offline:script/NAME` play a script."""

    vendor = Vendor(name="offline", title="the offline model", prices="")

    def __init__(self, model: OfflineModel, scripted: ScriptedModel) -> None:
        self._model = model
        self._scripted = scripted

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        model = OfflineModel(words_per_second=settings.offline_words_per_second)
        return cls(model, ScriptedModel(settings.scripts_dir))

    def stream(self, name: str, request: ModelRequest, info: CallInfo) -> AsyncGenerator[Delta | ModelResponse, None]:
        if not name:
            return self._model.stream(name, request, info)
        if name.partition("/")[0] == "script":
            return self._scripted.stream(name, request, info)
        raise ModelError("not_found", f"there is no offline model {name!r}; there are '', 'script' and 'script/NAME'")
