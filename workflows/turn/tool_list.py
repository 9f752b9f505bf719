"""Which tools the model is offered: frozen for a segment at least (AGT-6).

A list that changed within a segment would change the prefix of every request, and with it the vendor's cache and its
reasoning. So what servers offer anew, or no longer, is taken up where the prefix changes anyway, once in ten turns at
most; and where the session is known to be wrong: a call met another tool than it knows, or a server could not be asked.
Of such a server it keeps what it knew, and asks again in its next turn.
"""

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from turnkeeper.activities.tools import ToolActivities
    from turnkeeper.models.session.tool_list import digest_of, with_known
    from turnkeeper.models.transcript.model_call import ToolList as ReadTools
    from turnkeeper.models.transcript.model_call import ToolListCall
    from turnkeeper.workflows import activity_options
    from turnkeeper.workflows.turn.turn_context import TurnContext, check_cancelled


class ToolList:
    """The tools of a turn's session."""

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._session = context.session

    async def load(self) -> None:
        """Read the tools if they were never read. Raises `TurnFailed`."""
        if self._session.tools.specs is not None:
            return
        try:
            listed = await self._read(activity_options.TOOL_LIST_RETRIES)
        except ActivityError as error:
            self._context.fail_by(error, sentence="The session's tools could not be read.")
        self._offer(listed)

    async def renew(self) -> None:
        """Read the tools again if they are due, as in a new segment; where that fails, those of before stay."""
        # Runs from before keep the tools they began with, or read them in every segment.
        session, segment, turn = self._session, self._session.view.segment, self._session.turn_count
        if not session.tools.are_due(segment=segment, turn=turn) or not workflow.patched("tools-per-segment"):
            return
        if session.tools.are_fresh(turn=turn) and workflow.patched("tools-fresh-for-turns"):
            session.tools.keep(segment=segment)
            return
        try:
            self._offer(await self._read(activity_options.TOOL_RENEWAL_RETRIES))
        except ActivityError as error:
            check_cancelled(error)
            workflow.logger.warning("the tools could not be read again; those of before stay")
            self._session.offer_tools(self._session.tools.specs or [])

    def _offer(self, listed: ReadTools) -> None:
        # Runs from before took a list for whole in any case.
        if listed.unchanged:
            self._session.offer_tools(self._session.tools.specs or [])
        elif listed.unread and workflow.patched("tools-of-servers-unread"):
            self._session.offer_tools(with_known(listed, self._session.tools.specs or []), is_whole=False)
        else:
            self._session.offer_tools(listed.tools)

    async def _read(self, retries: RetryPolicy) -> ReadTools:
        return await workflow.execute_activity_method(
            ToolActivities.list_tools,
            ToolListCall(known=digest_of(self._session.tools.specs or [])),
            start_to_close_timeout=activity_options.TOOL_LIST_TIMEOUT,
            schedule_to_close_timeout=self._context.time_left(),
            heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
            retry_policy=retries,
            summary="tools of this session",
        )
