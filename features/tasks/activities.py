"""Activities for tasks (CTX-15, TSK-5).

`condense_history` and `prepare_sub_task` hand off a conversation with a model's or an index's help. `read_large_text`
and `keep_large_result` move large texts.
"""

from pydantic import ValidationError
from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from turnkeeper.activities.activity_context import (
    WorkflowSilentError,
    current_session_id,
    heartbeating,
    query_own_workflow,
)
from turnkeeper.activities.failures import raise_if_retried_soon, reason_of, with_details
from turnkeeper.activities.large_texts import LargeTexts
from turnkeeper.activities.model_client import ModelClient
from turnkeeper.activities.providers.protocol import ModelError
from turnkeeper.activities.spending import Spending
from turnkeeper.features.tasks.histories import rank, store_hand_off
from turnkeeper.features.tasks.rules.enrichment import LongTexts, batches, condensed_prompt, read_answer
from turnkeeper.features.tasks.rules.hand_off import MAX_PAGES, Inheritance
from turnkeeper.features.tasks.session.new_sub_task import (
    CondenseCall,
    CondenseOutcome,
    PreparedSubTask,
    PrepareSubTask,
)
from turnkeeper.features.tasks.session.task import TaskRequest, policy_of, prepare_task, read_run_task
from turnkeeper.models.errors import TaskValidationError
from turnkeeper.models.ids import sibling_id
from turnkeeper.models.limits import LARGE_RESULT_BYTES
from turnkeeper.models.session.messages import StateRequest
from turnkeeper.models.settings.history_policy import HandOffPresets
from turnkeeper.models.texts import bound_json
from turnkeeper.models.transcript.conversation import BlobRef, ConversationState, ToolResult, Usage
from turnkeeper.models.wire import Frozen
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.blobs import Blobs
from turnkeeper.stores.database.database import StoreUnavailableError

PAGE_BYTES = 1_000_000
"""Maximum of a page of the archive, as JSON."""

ARCHIVE_IS_DOWN = "Earlier turns are in the archive, which could not be read."

OVER_BUDGET = "The turn's budget is used up."


class HandOffActivities:
    """The activities that hand off a conversation, where that needs more than the session's own state."""

    def __init__(
        self, model_client: ModelClient, texts: LargeTexts, blobs: Blobs, archive: Archive, client: Client
    ) -> None:
        self._model_client = model_client
        self._texts = texts
        self._blobs = blobs
        self._archive = archive
        self._client = client

    @activity.defn
    async def condense_history(self, call: CondenseCall) -> CondenseOutcome:
        """Return the first prompt of a task with its long texts condensed by the model; those that fail stay cut.

        A second attempt asks the model again: it may be billed twice, it is recorded once.
        """
        stored = await self._texts.read(current_session_id(), call.texts)
        try:
            long = LongTexts.model_validate_json(stored) if stored is not None else None
        except ValidationError:  # of a later version
            long = None
        if long is None:
            return CondenseOutcome(trouble="The texts can't be read from the store.")
        spending = self._model_client.spending(call.model)
        async with heartbeating(lambda: spending.heartbeat_details(())):
            try:
                condensed, usage, trouble = await self._condense(call, long, spending)
            except ApplicationError as failure:
                activity.heartbeat(*spending.heartbeat_details(()))
                raise with_details(failure, spending.heartbeat_details(())) from None
        prompt = condensed_prompt(long, condensed) if condensed else None
        if condensed and (prompt is None or len(prompt.encode()) > call.max_bytes):
            condensed, prompt, trouble = {}, None, "With the condensed texts, the prompt would be too long."
        if len(condensed) == len(long.texts):
            trouble = None
        elif trouble is None:
            trouble = "The model gave no condensed text."
        return CondenseOutcome(
            prompt=prompt,
            condensed=len(condensed),
            trouble=trouble,
            usage=usage,
            spent=spending.total,
        )

    async def _condense(
        self, call: CondenseCall, long: LongTexts, spending: Spending
    ) -> tuple[dict[int, str], Usage | None, str | None]:
        """Return the condensed texts by their message's index, their usage, and why others are missing."""
        condensed, usage = dict[int, str](), Usage()
        for batch in batches(long):
            if spending.is_over(tokens_left=call.tokens_left, cost_left=call.cost_left, besides=usage):
                return condensed, usage, OVER_BUDGET
            try:
                response = await self._model_client.answer(
                    call.model, batch.request, number=call.request, spending=spending
                )
            except ModelError as error:
                same = spending.times_failed(error)
                raise_if_retried_soon(error, attempt=activity.info().attempt, same=same)
                return condensed, usage, reason_of(error)
            usage += response.usage or Usage()
            condensed |= read_answer(response.text, batch.texts)
        return condensed, usage, None

    @activity.defn
    async def prepare_sub_task(self, call: PrepareSubTask) -> PreparedSubTask:
        """Return the context of a task of this session, from the conversation as it is now.

        A second attempt reads the conversation again, and stores the same texts again.
        """
        request, presets = read_run_task(call.args), call.presets or HandOffPresets()
        try:
            inherited, trouble = None, list[str]()
            if request.inherits_history:
                inherited, trouble = await self._inheritance(request, presets)
            prepared = prepare_task(request, now=call.now, inherited=inherited, presets=presets, rank=rank)
        except TaskValidationError as error:
            return PreparedSubTask(error=f"{error} (got {error.value})")
        except (WorkflowSilentError, WorkflowQueryFailedError, RPCError) as error:
            raise ApplicationError("the conversation could not be read", type="internal") from error
        session_id = current_session_id()
        task_id = sibling_id(call.task_id, of=session_id)
        prepared, to_condense = await store_hand_off(self._blobs, prepared, task_id=task_id, parent_id=session_id)
        return PreparedSubTask(task=prepared.input(to_condense=to_condense), notes=[*prepared.notes, *trouble])

    async def _inheritance(self, request: TaskRequest, presets: HandOffPresets) -> tuple[Inheritance, list[str]]:
        """Return what the task inherits, from session and archive, and a note if the archive could not be read."""
        inherited = Inheritance(policy_of(request, presets, inherits=True))
        before: str | None = None
        number = 0
        for _ in range(MAX_PAGES):
            page = StateRequest(before=before, limit=inherited.policy.max_read)
            state = await query_own_workflow(self._client, "get_conversation_state", page, ConversationState)
            turns = await self._texts.resolve_answers(current_session_id(), state.messages)
            inherited = inherited.with_older(turns, has_older=state.has_more)
            number = state.first_number or state.archived_count + 1
            if inherited.is_enough:
                return inherited, []
            if number <= state.archived_count + 1:
                break
            before = state.messages[0].id
        return await self._with_archived(inherited, before=number)

    async def _with_archived(self, inherited: Inheritance, *, before: int) -> tuple[Inheritance, list[str]]:
        """Add archived turns with numbers below `before`, the newest first."""
        session_id = current_session_id()
        for _ in range(MAX_PAGES):
            try:
                rows = await self._archive.page(
                    session_id, before=before, limit=inherited.policy.max_read, max_bytes=PAGE_BYTES
                )
            except StoreUnavailableError:
                return inherited, [ARCHIVE_IS_DOWN]
            if [row.number for row in rows] != list(range(before - len(rows), before)) or not rows:
                return inherited, [ARCHIVE_IS_DOWN]
            turns = await self._texts.resolve_answers(session_id, [row.turn for row in rows])
            before = rows[0].number
            inherited = inherited.with_older(turns, has_older=before > 1)
            if inherited.is_enough:
                break
        return inherited, []


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
