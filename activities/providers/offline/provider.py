"""The offline model: real behaviour without a key and without a network (AGT-4).

Theory of operation. The model is a function of the request and keeps nothing between two calls. It holds the newest
user message against a table of phrases; what it recognises becomes a list of *wishes*. A wish has a plan, a generator
that yields the tool calls it needs, is sent their outcomes, and returns what to say. At every step of a turn all plans
are replayed from their beginning against the results the turn already holds, as Temporal replays a workflow:

    a call that has its result        the plan goes on with it
    a call that has none              is asked for now, together with those of the other wishes
    every plan has come to its end    what they returned is the answer

Plans are finite and a failed call is an outcome like any other, so a turn always ends. What a plan says about a file
or a fact is taken from a tool's result or from the conversation, never made up.

The chapters, each of which only knows those above it:

    offline_text       how text is shortened, quoted and searched
    offline_scene      what the model looks at: the conversation, and what came of its calls
    offline_answers    the words of its answers
    offline_wishes     what a user can want
    offline_phrases    how wishes are found in a text
    offline_plans      how wishes are fulfilled
    offline_summary    what is worth remembering of a conversation
    offline            (this file) the model: one call, its response, and how that is streamed
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

from turnkeeper.activities.providers.offline.answers import tell_abilities, tell_closing_thought
from turnkeeper.activities.providers.offline.phrases import wishes_in
from turnkeeper.activities.providers.offline.plans import play
from turnkeeper.activities.providers.offline.scene import Scene
from turnkeeper.activities.providers.offline.summary import summary_of
from turnkeeper.activities.providers.offline.text import short
from turnkeeper.activities.providers.protocol import CallContext, Delta
from turnkeeper.models.context.summary import INSTRUCTION
from turnkeeper.models.tokens import CHARS_PER_TOKEN, estimate_tokens, tokens_of
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelRequest,
    ModelResponse,
    Part,
    ProviderState,
    RespondPart,
    ThinkPart,
)
from turnkeeper.models.transcript.trajectory import StopReason, Usage


class OfflineModel:
    """The model behind `offline:`."""

    def __init__(self, *, words_per_second: float = 0.0) -> None:
        """Write at `words_per_second`; 0 writes everything at once."""
        self._pause = 1 / words_per_second if words_per_second > 0 else 0.0

    async def stream(
        self, name: str, request: ModelRequest, context: CallContext
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Write the answer word by word, thinking first, then yield the whole of it."""
        response = answer(request, number=context.request)
        async for delta in deltas_of(response.parts, pause=self._pause):
            yield delta
        yield response


def answer(request: ModelRequest, *, number: int = 1) -> ModelResponse:
    """Answer the newest user message, or ask for the calls its answer needs; `number`, the request's, makes the ids.

    >>> from turnkeeper.models.transcript.model_call import ModelMessage, RequestHead
    >>> said = ["Remember that the code is 4711.", "What is the code?"]
    >>> messages = [ModelMessage(role="user", content=text) for text in said]
    >>> answer(ModelRequest(head=RequestHead(), messages=messages)).text
    'You told me: the code is 4711.'
    """
    if request.head.system == INSTRUCTION:
        return respond(request, [RespondPart(kind="respond", text=summary_of(request))], number=number)
    scene = Scene(request)
    wishes = wishes_in(scene.asked)
    said, needed = play(wishes, scene)
    if needed:
        aims = ", ".join(use.aim for use in needed)
        thought = f"I was asked: “{short(scene.asked, 80)}”. Before I can answer, I have to {short(aims, 200)}."
        calls = [
            CallPart(kind="call", id=f"call_{number}_{index}", name=use.tool, args=dict(use.args))
            for index, use in enumerate(needed)
        ]
        return respond(request, [ThinkPart(kind="think", text=thought), *calls], number=number)
    thought = tell_closing_thought(scene, understood=bool(wishes))
    text = "\n\n".join(said) or tell_abilities(scene)
    return respond(
        request, [ThinkPart(kind="think", text=thought), RespondPart(kind="respond", text=text)], number=number
    )


def respond(
    request: ModelRequest,
    parts: Sequence[Part],
    *,
    number: int,
    model: str = "offline",
    stop: StopReason | None = None,
    state: ProviderState | None = None,
) -> ModelResponse:
    """Make the whole response of `parts`, with estimated usage; without `stop`, that follows from the calls.

    Input tokens are estimated from the characters of the system prompt and of the messages' text alone: tools and calls
    would have to be written as JSON, which for a long context at every call costs more than all else here.
    """
    parts, is_cut = _within(parts, request.head.max_tokens)
    response = ModelResponse(parts=parts, model=model, request_id=f"offline_{number}", state=state)
    reasoning = estimate_tokens([{"content": response.thinking}])
    spoken = estimate_tokens([{"content": response.text, "tool_calls": response.calls}])
    usage = Usage(
        input_tokens=_estimate_input_tokens(request),
        output_tokens=reasoning + spoken,
        reasoning_tokens=reasoning,
        cost=0.0,  # nobody is to be paid
    )
    stop = "max_tokens" if is_cut else stop or ("tool_calls" if response.calls else "end_turn")
    return response.model_copy(update={"usage": usage, "stop": stop})


def _within(parts: Sequence[Part], max_tokens: int | None) -> tuple[list[Part], bool]:
    """Cut the texts for the user to `max_tokens`, as a vendor does; say whether anything was cut."""
    if max_tokens is None:
        return list(parts), False
    room, kept, is_cut = max_tokens * CHARS_PER_TOKEN, list[Part](), False
    for part in parts:
        if isinstance(part, RespondPart):
            is_cut |= len(part.text) > room
            part = part.model_copy(update={"text": part.text[:room]})
            room -= len(part.text)
        kept.append(part)
    return kept, is_cut


def _estimate_input_tokens(request: ModelRequest) -> int:
    chars = len(request.head.system) + sum(len(message.content) for message in request.messages)
    return tokens_of(chars)


async def deltas_of(parts: Iterable[Part], *, pause: float) -> AsyncIterator[Delta]:
    """Write `parts` word by word, with `pause` seconds after each word; a call is announced by its name."""
    for part in parts:
        for piece in [part.name] if isinstance(part, CallPart) else re.findall(r"\S+\s*|\s+", part.text):
            yield Delta(part.kind, piece)
            if pause:
                await asyncio.sleep(pause)
