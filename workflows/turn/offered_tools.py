"""The tools that the model is offered; they do not change within a segment (AGT-6).

A changed list would change the prefix of every request, and invalidate the vendor's cache and reasoning. So the tools
are reloaded when a new segment changes the prefix anyway, at most once in ten turns. They are reloaded earlier after a
call has met a changed tool, or a server was unreachable. Such a server's earlier tools stay until it is asked again in
the next turn.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.tools import ToolActivities
    from turnkeeper.models.backoff import growing_pauses
    from turnkeeper.models.session.tools.session_tools import merge_instructions, merge_tools, tools_digest
    from turnkeeper.models.session.tools.tool_policy import missing_tools
    from turnkeeper.models.transcript.model_call import ToolList, ToolListCall, ToolSpec
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.turn_scope import TurnScope, check_cancelled


FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
"""Between two looks at whether a worker offers the tools of an agent."""


class OfferedTools:
    """Loads and reloads the tools of a turn's session."""

    def __init__(self, scope: TurnScope) -> None:
        self._scope = scope
        self._session = scope.session

    async def load_if_due(self) -> None:
        """Load the tools if the session has none yet, or reload them if they are due, as in a new segment.

        Then offer those that the turn's policy does not deny. If a reload fails, the earlier tools stay. Raises
        `TurnFailedError` if there are none.
        """
        session, tools = self._session, self._session.tools
        is_first = tools.specs is None
        if tools.state.is_reload_due(segment=session.context.view.segment, turn=session.transcript.count):
            await self._load(turn=session.transcript.count)
        await self._wait_for_agents_tools()
        tools.deny([tool.name for tool in tools.all if self._scope.decide(tool) == "deny"], is_first=is_first)

    async def _wait_for_agents_tools(self) -> None:
        """Wait while no worker offers a tool that the session's agent names, visibly: it would answer without it.

        Raises `TurnFailedError` once the turn's time is over.
        """
        turn, tools, slot = self._scope.turn, self._session.tools, self._session.turn_slot
        names = turn.tools if turn.message.agent and turn.tools else []
        pauses = growing_pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while missing := missing_tools(names, tools.all):
            pause = min(timedelta(seconds=next(pauses)), self._scope.time_left())
            reason = f"No worker offers the tool {missing[0]} of the agent {turn.message.agent}."
            slot.wait_until(workflow.now() + pause, reason=reason)
            self._scope.refresh_ui()
            try:
                await workflow.sleep(pause, summary="for the agent's tools")
            finally:
                slot.stop_waiting()  # also when this worker evicts the workflow: no Temporal API may be used here
            self._scope.refresh_ui()
            tools.invalidate()
            await self._load(turn=self._session.transcript.count)

    async def _load(self, *, turn: int) -> None:
        tools = self._session.tools
        if tools.state.is_fresh(turn=turn):
            tools.keep_for_segment()
            return
        specs = tools.specs
        try:
            self._offer(await self._list(specs), turn=turn)
        except ActivityError as error:
            if specs is None:
                self._scope.fail_with(error, sentence="The session's tools could not be read.")
            check_cancelled(error)
            workflow.logger.warning("the tools could not be reloaded; the earlier ones stay")
            tools.offer(specs, turn=turn)

    def _offer(self, listed: ToolList, *, turn: int) -> None:
        tools, state = self._session.tools, self._session.tools.state
        tools.note_absent(listed.absent)
        if listed.unchanged:
            tools.offer(state.specs or [], turn=turn)
        elif listed.unread:
            specs, instructions = merge_tools(listed, state.specs or []), merge_instructions(listed, state.instructions)
            tools.offer(specs, instructions=instructions, turn=turn, is_complete=False)
        else:
            tools.offer(listed.tools, instructions=listed.instructions, turn=turn)

    async def _list(self, specs: list[ToolSpec] | None) -> ToolList:
        return await workflow.execute_activity_method(
            ToolActivities.list_tools,
            ToolListCall(known=tools_digest(specs or [], self._session.tools.state.instructions)),
            start_to_close_timeout=activity_options.TOOL_LIST_TIMEOUT,
            schedule_to_close_timeout=self._scope.time_left(),
            heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
            retry_policy=activity_options.TOOL_LIST_RETRIES if specs is None else activity_options.TOOL_RELOAD_RETRIES,
            summary="tools of this session",
        )
