"""Sending a request, and sending it again without the part that the vendor refuses (AGT-9).

That is not a retry: a refused request was not processed, and the same one is never sent twice. Nothing is sent again
once the answer has begun, since a part of it is published. What the vendor names is left out and remembered at once.
Where it names nothing, one more class of parts is left out in each try; if that passes, only the last class was the
reason, so only that is remembered, and the others are sent again.
"""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.refused_parts.api import Body, Encode, Parts, RefusableApi, SentRequest
from turnkeeper.activities.providers.refused_parts.blame import blamed_parts, is_refusal, suspects
from turnkeeper.activities.providers.refused_parts.memory import RefusalMemory
from turnkeeper.activities.providers.refused_parts.trimming import sent_request
from turnkeeper.activities.providers.visible_request import Medium, media_in
from turnkeeper.models.transcript.model_call import ModelRequest, ModelResponse
from turnkeeper.models.transcript.refused_parts import RefusedPart

MAX_TRIES = 8
"""Requests of one call, the first included."""

Send = Callable[[Body], AsyncGenerator[Delta | ModelResponse, None]]
"""Sends a body once; yields deltas, then the whole response. Raises `ModelError`."""


class RefusedParts:
    """The parts that one endpoint's models refuse."""

    def __init__(self, api: RefusableApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._memory = RefusalMemory(clock)

    def texts(self) -> dict[str, list[str]]:
        """Return what is left out of all requests to each model, for people."""
        return self._memory.texts()

    async def answer(
        self, name: str, request: ModelRequest, info: CallInfo, encode: Encode, send: Send
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Ask the model `name`, without what it refuses; yield deltas, then the whole response.

        The response says what was left out that `info` does not know. Raises `ModelError`.
        """
        tries = _Tries(self._api, self._memory, name, request, info, encode)
        while True:
            has_begun = False
            try:
                async with aclosing(send(tries.current.body)) as pieces:
                    async for piece in pieces:
                        if not has_begun:
                            has_begun = True
                            tries.note_accepted()
                        yield tries.with_left_out(piece) if isinstance(piece, ModelResponse) else piece
            except ModelError as error:
                if has_begun or not tries.change(error):
                    raise _final(error) from None
            else:
                return


class _Tries:
    """The requests of one call: `current` is the present one."""

    def __init__(
        self,
        api: RefusableApi,
        memory: RefusalMemory,
        name: str,
        request: ModelRequest,
        info: CallInfo,
        encode: Encode,
    ) -> None:
        self._api = api
        self._memory = memory
        self._name = name
        self._request = request
        self._info = info
        self._encode = encode
        self._named: list[RefusedPart] = []
        self._suspected: list[Sequence[RefusedPart]] = []
        """The classes that are left out without a name, in the order in which they were."""
        self._remembered = Parts([*memory.parts_of(name, info.session_id), *info.left_out])
        self.current = self._without(self._remembered)
        self._refused: list[Body] = []

    def _without(self, parts: Parts) -> SentRequest:
        return sent_request(self._name, self._request, parts, self._api, self._encode)

    def note_accepted(self) -> None:
        """Remember what the vendor has read, and the last class that was left out without a name."""
        self._memory.note_read(self._name, media_in(self.current.request))
        self._memory.learn(self._name, self._info.session_id, self._guessed)

    def with_left_out(self, response: ModelResponse) -> ModelResponse:
        """Return the response with the parts that the session does not know yet."""
        carried = {part.key for part in self._info.left_out}
        remembered = [part for part in self._remembered if part.key not in carried and self._has_effect(part)]
        left_out = Parts([*remembered, *self._named, *self._guessed])
        return response.model_copy(update={"left_out": list(left_out)}) if list(left_out) else response

    def change(self, error: ModelError) -> bool:
        """Change the request because of the error; return whether there is one to send that was not sent before."""
        if not is_refusal(error):
            return False
        self._refused.append(self.current.body)
        if len(self._refused) >= MAX_TRIES:
            return False
        blamed = list(blamed_parts(error, self.current, self._request, self._api, has_read=self._has_read))
        for parts in blamed:
            if self._leave_out(parts):
                lasting = [part for part in parts if part.reason]
                self._named += lasting
                self._memory.learn(self._name, self._info.session_id, lasting)
                return True
        error.is_unexplained = error.error_type == "bad_request" and not any(blamed)
        return error.error_type == "bad_request" and self._leave_out_a_class()

    def _leave_out_a_class(self) -> bool:
        classes = suspects(
            self.current,
            self._request,
            self._api,
            has_read=self._has_read,
            is_head_accepted=self._info.may_be_too_long,
        )
        for parts in classes:
            if self._leave_out(parts):
                self._suspected.append(parts)
                return True
        return False

    def _leave_out(self, parts: Sequence[RefusedPart]) -> bool:
        """Leave out more parts; return whether the request has not been sent like this."""
        if not parts:
            return False
        changed = self._without(self.current.parts.with_more(parts))
        if changed.body in self._refused:
            return False
        self.current = changed
        return True

    @property
    def _guessed(self) -> Sequence[RefusedPart]:
        return self._suspected[-1] if self._suspected else ()

    def _has_effect(self, part: RefusedPart) -> bool:
        others = Parts([other for other in self.current.parts if other.key != part.key])
        return self._without(others).body != self.current.body

    def _has_read(self, medium: Medium) -> bool:
        return self._memory.has_read(self._name, medium)


def _final(error: ModelError) -> ModelError:
    """Return the error for the turn: reasoning that is refused with and without its blocks is a bad request."""
    if error.error_type == "stale_reasoning":
        error.error_type = "bad_request"
    return error
