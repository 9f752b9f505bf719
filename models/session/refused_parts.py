"""The parts that a session's model has refused, and its longest accepted request (AGT-9)."""

from typing import Annotated

from pydantic import Field
from pydantic_core import to_json

from turnkeeper.models.session.tools.session_tools import tools_digest
from turnkeeper.models.transcript.model_call import RequestHead
from turnkeeper.models.transcript.refused_parts import RefusedPart
from turnkeeper.models.wire import Compact, Items

MAX_PARTS = 50
"""Parts that a session carries; beyond that, the oldest is forgotten, and learned again at the cost of a request."""


class RefusalState(Compact):
    """The carried part: it is about this `model` with the list of `tools` of this digest."""

    model: str = ""
    tools: str = ""
    parts: Annotated[Items[RefusedPart], Field(max_length=MAX_PARTS)] = []
    accepted_tokens: int = 0
    """The estimated size of the largest request that was answered; 0: none was."""
    state_was_refused: bool = False
    """Whether the vendor has refused its own blocks of earlier steps."""
    was_reset: bool = False
    """Whether the tools were listed again because of a refusal, and no request was answered since."""


class SessionRefusals:
    """The parts that a session's model has refused; forgotten when the model or the tools change.

    Its methods are called before and after a request, in a change of the session that raises its revision.
    """

    def __init__(self, state: RefusalState) -> None:
        self.state = state
        """The carried state; replaced with every change."""
        self._head: RequestHead | None = None

    @property
    def carried_bytes(self) -> int:
        """JSON bytes of the carried state; without refused parts it is part of the envelope."""
        return len(to_json(self.state.parts)) if self.state.parts else 0

    def parts_of(self, model: str, head: RequestHead) -> list[RefusedPart]:
        """Return what to leave out of a request to the `model`."""
        self._begin(model, head)
        return self.state.parts

    def is_largest(self, model: str, head: RequestHead, *, tokens: int) -> bool:
        """Return whether the model has answered shorter requests, but none of `tokens`.

        >>> refusals, head = SessionRefusals(RefusalState()), RequestHead()
        >>> refusals.is_largest("m", head, tokens=5)
        False
        >>> refusals.note_answer("m", head, tokens=5, left_out=[])
        >>> [refusals.is_largest("m", head, tokens=tokens) for tokens in (5, 6)]
        [False, True]
        """
        self._begin(model, head)
        return 0 < self.state.accepted_tokens < tokens

    def note_answer(self, model: str, head: RequestHead, *, tokens: int, left_out: list[RefusedPart]) -> None:
        """Note that a request was answered, and what was left out of it for the first time.

        State that is refused is gone, since a segment without it begins. It is left out from now on if the vendor
        refuses state again: some take none back.
        """
        self._begin(model, head)
        is_state_refused = any(part.kind == "state" for part in left_out)
        lasting = [part for part in left_out if part.kind != "state" or self.state.state_was_refused]
        parts = {part.key: part for part in [*self.state.parts, *lasting]}
        self._update(
            parts=list(parts.values())[-MAX_PARTS:],
            accepted_tokens=max(self.state.accepted_tokens, tokens),
            state_was_refused=is_state_refused or self.state.state_was_refused,
            was_reset=False,
        )

    def note_reset(self) -> bool:
        """Note that tools and state are renewed because of a refusal; return whether that is due: it is once."""
        is_due = not self.state.was_reset
        self._update(was_reset=True)
        return is_due

    def _begin(self, model: str, head: RequestHead) -> None:
        """Forget what is about another model or other tools."""
        if head is self._head and model == self.state.model:
            return
        self._head = head
        tools = tools_digest(head.tools)
        if (model, tools) != (self.state.model, self.state.tools):
            self.state = RefusalState(model=model, tools=tools, was_reset=self.state.was_reset)

    def _update(self, **update: object) -> None:
        self.state = self.state.model_copy(update=update)
