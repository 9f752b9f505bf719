"""Large texts of tasks: the activities `read_large_text` and `keep_large_result`."""

from temporalio import activity

from turnkeeper.activities.model_request.large_texts import LargeTexts
from turnkeeper.activities.own_workflow import current_session_id
from turnkeeper.models.bounds import bound_json
from turnkeeper.models.limits import LARGE_RESULT_BYTES
from turnkeeper.models.transcript.trajectory import BlobRef, ToolResult
from turnkeeper.models.wire import Frozen


class KeepResult(Frozen):
    """A tool result that the workflow made; over `inline_bytes` of JSON its content is stored by reference."""

    result: ToolResult
    inline_bytes: int


class TaskTextActivities:
    """Activities for the texts of tasks. A second attempt of either changes nothing."""

    def __init__(self, texts: LargeTexts) -> None:
        self._texts = texts

    @activity.defn
    async def read_large_text(self, ref: BlobRef) -> str | None:
        """Return a text that is stored by reference, cut to fit a payload; `None` if it can't be read."""
        text = await self._texts.read(current_session_id(), ref)
        return text and bound_json(text, LARGE_RESULT_BYTES, LARGE_RESULT_BYTES)

    @activity.defn
    async def keep_large_result(self, request: KeepResult) -> ToolResult:
        """Return the result, with large content by reference. While the store is down, content is cut and marked."""
        return await self._texts.keep_result(current_session_id(), request.result, request.inline_bytes)
