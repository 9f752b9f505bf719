"""The offline model: real behaviour without a key and without a network (AGT-4).

The model is a function of the request and has no state. At every step of a turn the handlers of all intents in the
newest user message run from their beginning, as Temporal replays a workflow: a call that already has its result returns
it, any other is made now. Once every handler has returned, the answer is complete. Handlers are finite and a failed
call is an outcome like any other, so a turn always ends.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

from turnkeeper.activities.providers.offline.condensing import condensed_of
from turnkeeper.activities.providers.offline.conversation import Conversation
from turnkeeper.activities.providers.offline.handlers import run_intents
from turnkeeper.activities.providers.offline.intents import find_intents
from turnkeeper.activities.providers.offline.summary import summary_of
from turnkeeper.activities.providers.offline.text import shorten
from turnkeeper.activities.providers.protocol import CallInfo, Delta
from turnkeeper.models.context.summary import INSTRUCTION
from turnkeeper.models.tasks.condensing import INSTRUCTION as CONDENSE_INSTRUCTION
from turnkeeper.models.tokens import CHARS_PER_TOKEN, estimate_tokens, tokens_of, weighted_chars
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelRequest,
    ModelResponse,
    Part,
    RespondPart,
    ThinkPart,
)
from turnkeeper.models.transcript.trajectory import Usage

ABILITIES = (
    "I am the built-in demo model: I can read, list, search and write files, tell the time and remember facts. "
    "Try “write hello to greeting.txt”, “read greeting.txt” or “what time is it?”."
)
"""The answer if no phrase matches."""

ATTACHED = "You attached {names}. I can name attachments, but I can't look into them."
"""Follows the answer, or comes before what the model can do."""


class OfflineModel:
    """The model behind `offline:`."""

    def __init__(self, *, words_per_second: float = 0.0) -> None:
        """Write at `words_per_second`; 0 writes everything at once."""
        self._pause = 1 / words_per_second if words_per_second > 0 else 0.0

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        """Yield the answer word by word, thinking first, then the whole response."""
        response = answer(request, number=info.request)
        async for delta in deltas_of(response.parts, pause=self._pause):
            yield delta
        yield response


def answer(request: ModelRequest, *, number: int = 1) -> ModelResponse:
    """Answer the newest user message, or make the calls that the answer needs. Ids are made from `number`.

    >>> from turnkeeper.models.transcript.model_call import ModelMessage, RequestHead
    >>> texts = ["Remember that the code is 4711.", "What is the code?"]
    >>> messages = [ModelMessage(role="user", content=text) for text in texts]
    >>> answer(ModelRequest(head=RequestHead(), messages=messages)).text
    'You told me: the code is 4711.'
    """
    if request.head.system == INSTRUCTION:
        return respond(request, [RespondPart(kind="respond", text=summary_of(request))], number=number)
    if request.head.system == CONDENSE_INSTRUCTION:
        return respond(request, [RespondPart(kind="respond", text=condensed_of(request))], number=number)
    conversation = Conversation(request)
    intents = find_intents(conversation.request)
    texts, uses = run_intents(intents, conversation)
    if uses:
        purposes = shorten(", ".join(use.purpose for use in uses), 200)
        thought = f"I was asked: “{shorten(conversation.request, 80)}”. Before I can answer, I have to {purposes}."
    elif intents:
        thought = "I have all that I need. I answer with what I was shown, and nothing beyond it."
    else:
        thought = "I do not understand this. I say what I can do."
    parts: list[Part] = [ThinkPart(kind="think", text=thought)]
    for index, use in enumerate(uses):
        parts.append(CallPart(kind="call", id=f"call_{number}_{index}", name=use.tool, args=dict(use.args)))
    if not uses:
        if conversation.attachments:
            texts.append(ATTACHED.format(names=", ".join(conversation.attachments)))
        if not intents:
            texts.append(ABILITIES)
        parts.append(RespondPart(kind="respond", text="\n\n".join(texts) or ABILITIES))
    return respond(request, parts, number=number)


def respond(request: ModelRequest, parts: Sequence[Part], *, number: int, model: str = "offline") -> ModelResponse:
    """Return the response with `parts`, with estimated usage.

    Input tokens are estimated only from the system prompt and the text of messages: encoding tools and calls as JSON
    would cost more than everything else here.
    """
    max_chars = None if request.head.max_tokens is None else request.head.max_tokens * CHARS_PER_TOKEN
    allowed_parts = [  # cut to what was allowed, as a vendor does
        part.model_copy(update={"text": part.text[:max_chars]}) if isinstance(part, RespondPart) else part
        for part in parts
    ]
    texts = [request.head.system, *(message.content for message in request.messages)]
    response = ModelResponse(parts=allowed_parts, model=model, request_id=f"offline_{number}")
    reasoning = estimate_tokens([{"content": response.thinking}])
    usage = Usage(
        input_tokens=tokens_of(sum(map(weighted_chars, texts))),
        output_tokens=reasoning + estimate_tokens([{"content": response.text, "tool_calls": response.calls}]),
        reasoning_tokens=reasoning,
        cost=0.0,  # free
    )
    stop = "max_tokens" if allowed_parts != list(parts) else "tool_calls" if response.calls else "end_turn"
    return response.model_copy(update={"usage": usage, "stop": stop})


async def deltas_of(parts: Iterable[Part], *, pause: float) -> AsyncIterator[Delta]:
    """Yield `parts` word by word, with `pause` seconds after each word; of a call, its name."""
    for part in parts:
        for piece in [part.name] if isinstance(part, CallPart) else re.findall(r"\S+\s*|\s+", part.text):
            yield Delta(part.kind, piece)
            if pause:
                await asyncio.sleep(pause)
