"""Large texts by reference: the store has the text, the session has an excerpt (SES-15).

Models and tools produce their output in activities. There, a text that is too long for the session goes to the store
under the hash of its content, and the session gets a reference and an excerpt. Two readers restore the whole text:
`call_model`, before it asks the model, and the gateway. These functions do no I/O: they collect the texts to store, and
put texts back that others have read.

A reference that can't be read (the store is down, or lost its data) leaves the excerpt, which is marked as one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from turnkeeper.models.texts import bound_json
from turnkeeper.models.transcript.conversation import (
    BlobRef,
    ConversationMessage,
    ReasoningTrajectory,
    Step,
    ToolCall,
    ToolResult,
    UserStep,
)
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    Part,
    RespondPart,
    ThinkPart,
)

EXCERPT_BYTES = 500
"""Maximum of an excerpt, as JSON."""

STATE_INLINE_BYTES = 2_048
"""Maximum of inline provider state, as JSON. It is lower, since the state is carried for every step in the view."""


@dataclass
class Texts:
    """Texts to store, by hash; opaque provider state (AGT-3) is separate, since nobody is shown it."""

    by_hash: dict[str, str] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)

    def add(self, text: str, *, opaque: bool = False) -> BlobRef:
        """Add `text` and return the reference to it."""
        encoded = text.encode()
        ref = BlobRef(hash=sha256(encoded).hexdigest(), chars=len(text), bytes=len(encoded))
        (self.opaque if opaque else self.by_hash)[ref.hash] = text
        return ref


def refer_result(result: ToolResult, *, inline_bytes: int, texts: Texts) -> ToolResult:
    """Return the result with its content by reference, if that has more than `inline_bytes` as JSON.

    >>> texts = Texts()
    >>> stored = refer_result(ToolResult(outcome="read", content="x" * 9_000), inline_bytes=8_192, texts=texts)
    >>> stored.blob.chars, len(stored.content) <= 500, [len(text) for text in texts.by_hash.values()]
    (9000, True, [9000])
    """
    if _fits(result.content, inline_bytes):
        return result
    return result.model_copy(
        update={"content": excerpt(result.content, inline_bytes), "blob": texts.add(result.content)}
    )


def fits_inline(result: ToolResult, inline_bytes: int) -> bool:
    """Return whether the result's content has at most `inline_bytes` as JSON."""
    return _fits(result.content, inline_bytes)


def cut_result(result: ToolResult, *, inline_bytes: int) -> ToolResult:
    """Return the result truncated to what fits inline, and marked: for when the store is down."""
    if _fits(result.content, inline_bytes):
        return result
    return result.model_copy(update={"content": bound_json(result.content, inline_bytes, inline_bytes), "cut": True})


def bound_result(result: ToolResult, *, max_bytes: int) -> ToolResult:
    """Return a result that no tool produced, with at most `max_bytes` of JSON in its outcome and in its content."""
    return result.model_copy(
        update={
            "outcome": bound_json(result.outcome, max_bytes, max_bytes),
            "content": bound_json(result.content, max_bytes, max_bytes),
        }
    )


def refer_response(response: ModelResponse, *, inline_bytes: int, texts: Texts) -> ModelResponse:
    """Return the response with every large text by reference: text, thinking, arguments, opaque state."""
    large = {
        kind: _large_part(kind, text, inline_bytes, texts)
        for kind, text in (("think", response.thinking), ("respond", response.text))
        if not _fits(text, inline_bytes)
    }
    parts: list[Part] = []
    for part in response.parts:
        if isinstance(part, CallPart):
            parts.append(_refer_call(part, inline_bytes, texts))
        elif part.kind not in large:
            parts.append(part)
        elif large[part.kind] not in parts:
            parts.append(large[part.kind])
    state = response.state
    if state and not _fits(state.items, min(STATE_INLINE_BYTES, inline_bytes)):
        state = state.model_copy(update={"items": [], "blob": texts.add(to_json(state.items).decode(), opaque=True)})
    return response.model_copy(update={"parts": parts, "state": state})


def cut_response(response: ModelResponse, *, answer_bytes: int) -> ModelResponse:
    """Return the response truncated to what a session can carry, and marked: for when the store is down.

    An answer can't be produced again like a tool's output, so each text may have a quarter of `answer_bytes`. Larger
    opaque state is dropped; the step is then rebuilt from its parts.
    """
    max_bytes = answer_bytes // 4
    parts = [
        part
        if isinstance(part, CallPart)
        else part.model_copy(update={"text": bound_json(part.text, max_bytes, max_bytes)})
        for part in response.parts
    ]
    state = response.state if response.state and _fits(response.state.items, max_bytes) else None
    return response.model_copy(update={"parts": parts, "state": state})


def refer_message(message: ModelMessage, content: str, *, inline_bytes: int, texts: Texts) -> ModelMessage:
    """Return a message of the model view with content and arguments over `inline_bytes` by reference.

    The message's own content ends with `content`; in a tool message, the outcome line comes before it.
    """
    if message.tool_calls:
        calls = [_refer_call(call, inline_bytes, texts) for call in message.tool_calls]
        message = message.model_copy(update={"tool_calls": calls})
    if message.blob is not None or _fits(content, inline_bytes):
        return message
    start = len(message.content) - len(content)
    shortened = message.content[:start] + excerpt(content, inline_bytes)
    return message.model_copy(update={"content": shortened, "blob": texts.add(content), "blob_start": start})


def excerpt(text: str, inline_bytes: int) -> str:
    """Return the head and the tail of a large text, and between them how much is left out."""
    max_bytes = min(EXCERPT_BYTES, inline_bytes // 2)
    return bound_json(text, max_bytes, max_bytes)


# ---- restoring


def hashes_in(request: ModelRequest) -> set[str]:
    """Return the hash of every text that `request` refers to, except opaque state."""
    messages = request.messages
    refs = (ref for message in messages for ref in (message.blob, *(call.blob for call in message.tool_calls)))
    return {ref.hash for ref in refs if ref}


def opaque_hashes_in(request: ModelRequest) -> set[str]:
    """Return the hash of every opaque state that `request` refers to."""
    return {message.state.blob.hash for message in request.messages if message.state and message.state.blob}


def resolve_request(request: ModelRequest, texts: Mapping[str, str]) -> ModelRequest:
    """Return the request with the references in `texts` replaced by their texts, also opaque state."""
    messages = [_resolve_message(message, texts) for message in request.messages]
    return request.model_copy(update={"messages": messages})


def resolve_args(args: dict[str, JsonValue] | str, ref: BlobRef | None, texts: Mapping[str, str]) -> object:
    """Return a call's arguments; `None` if they are by reference and `texts` does not have them."""
    if ref is None:
        return args
    return from_json(texts[ref.hash]) if ref.hash in texts else None


def resolve_answer(turn: ConversationMessage, texts: Mapping[str, str]) -> ConversationMessage:
    """Return the turn with its whole answer if `texts` has it, else with the excerpt and its reference."""
    ref = turn.agent_message_blob
    if ref is None or ref.hash not in texts:
        return turn
    return turn.model_copy(update={"agent_message": texts[ref.hash], "agent_message_blob": None})


def refs_in(turn: ConversationMessage) -> Iterator[BlobRef]:
    """Yield every reference in a turn: of its answer, and of its steps' texts, calls and results."""
    refs = [turn.agent_message_blob, *(ref for step in turn.steps for ref in _refs_in_step(step))]
    return (ref for ref in refs if ref)


def resolve_turn(turn: ConversationMessage, texts: Mapping[str, str]) -> ConversationMessage:
    """Return the turn with the references in `texts` replaced by their texts; the others stay excerpts."""
    if not any(ref.hash in texts for ref in refs_in(turn)):
        return turn
    steps = ReasoningTrajectory(steps=[_resolve_step(step, texts) for step in turn.steps])
    return resolve_answer(turn.model_copy(update={"reasoning_trajectory": steps}), texts)


def _refs_in_step(step: Step) -> Iterator[BlobRef | None]:
    if isinstance(step, UserStep):
        return
    yield from (step.thinking_blob, step.text_blob)
    for call in step.tool_calls:
        yield from (call.args_blob, call.result.blob if call.result else None)


def _resolve_step(step: Step, texts: Mapping[str, str]) -> Step:
    if isinstance(step, UserStep):
        return step
    update: dict[str, object] = {"tool_calls": [_resolve_tool_call(call, texts) for call in step.tool_calls]}
    if step.thinking_blob and step.thinking_blob.hash in texts:
        update |= {"thinking": texts[step.thinking_blob.hash], "thinking_blob": None}
    if step.text_blob and step.text_blob.hash in texts:
        update |= {"text": texts[step.text_blob.hash], "text_blob": None}
    return step.model_copy(update=update)


def _resolve_tool_call(call: ToolCall, texts: Mapping[str, str]) -> ToolCall:
    update: dict[str, object] = {}
    if call.args_blob and call.args_blob.hash in texts:
        update = {"args": resolve_args(call.args, call.args_blob, texts), "args_blob": None}
    if call.result and call.result.blob and call.result.blob.hash in texts:
        whole = {"content": texts[call.result.blob.hash], "blob": None}
        update["result"] = call.result.model_copy(update=whole)
    return call.model_copy(update=update) if update else call


def _resolve_message(message: ModelMessage, texts: Mapping[str, str]) -> ModelMessage:
    update: dict[str, object] = {}
    if message.blob and message.blob.hash in texts:
        update = {"content": message.content[: message.blob_start] + texts[message.blob.hash]}
        update |= {"blob": None, "blob_start": 0}
    if any(call.blob for call in message.tool_calls):
        update["tool_calls"] = [_resolve_call(call, texts) for call in message.tool_calls]
    if message.state and message.state.blob:
        text = texts.get(message.state.blob.hash)
        # State without its items is useless: drop it, and the step is rebuilt from its parts.
        update["state"] = text and message.state.model_copy(update={"items": from_json(text), "blob": None})
    return message.model_copy(update=update) if update else message


def _resolve_call(call: CallPart, texts: Mapping[str, str]) -> CallPart:
    args = resolve_args(call.args, call.blob, texts)
    return call if args is None else call.model_copy(update={"args": args, "blob": None})


def _large_part(kind: str, text: str, inline_bytes: int, texts: Texts) -> Part:
    """Return the one part that replaces all parts of a kind when their text goes by reference."""
    shortened, ref = excerpt(text, inline_bytes), texts.add(text)
    return (
        ThinkPart(kind="think", text=shortened, blob=ref)
        if kind == "think"
        else RespondPart(kind="respond", text=shortened, blob=ref)
    )


def _refer_call(call: CallPart, inline_bytes: int, texts: Texts) -> CallPart:
    if _fits(call.args, inline_bytes):
        return call
    if isinstance(call.args, str):  # not a JSON object, so no tool runs with it
        return call.model_copy(update={"args": excerpt(call.args, inline_bytes)})
    return call.model_copy(update={"args": {}, "blob": texts.add(to_json(call.args).decode())})


def _fits(value: JsonValue, max_bytes: int) -> bool:
    # A character has at most six bytes of JSON, so most texts need no encoding to be measured.
    return (isinstance(value, str) and len(value) * 6 <= max_bytes) or len(to_json(value)) <= max_bytes
