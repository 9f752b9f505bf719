"""`openai-chat:` models of any endpoint with OpenAI's Chat Completions: Ollama, vLLM, a proxy (AGT-4).

With the protocol `native` the model gets its tools through the API; with `text` it gets conversation and tools as one
text (`text_protocol.py`, CTX-13). The SDK is imported on first use. What it finds in the environment for OpenAI itself,
above all a key, is never sent to another endpoint.

Reading an answer of a Chat Completions endpoint from its stream (AGT-3, AGT-10).

Servers differ in what they omit and add, so little is required: chunks with a `delta` in their first choice, and a
`finish_reason`, which alone says whether an answer is complete. Texts are concatenated, whatever their field. Calls are
put together in `chat_calls.py`; if there are none, they may be written as text (`text/written_calls.py`). Fields of a
message or a call that we don't understand are kept in the state, to go back to the same model; so is thinking at the
beginning of the text, for templates that expect it there.
"""

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal

from pydantic import JsonValue

from turnkeeper.activities.providers.answer_fields import count_of, count_or_zero, counts_of, join_pieces, name_of
from turnkeeper.activities.providers.errors.vendor_errors import Vendor
from turnkeeper.activities.providers.finish_reasons import is_cut
from turnkeeper.activities.providers.openai.chat_calls import ChatCalls
from turnkeeper.activities.providers.openai.chat_request import (
    API,
    OmittedToolsLog,
    encode,
    encode_text,
    fields_in,
    is_telling,
    missing_in,
    tool_names,
)
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.redaction import redact
from turnkeeper.activities.providers.refused_parts.api import Body, Parts, RefusableApi
from turnkeeper.activities.providers.refused_parts.sending import RefusedParts
from turnkeeper.activities.providers.request_encoding import Block
from turnkeeper.activities.providers.text.leading_thought import LeadingThought
from turnkeeper.activities.providers.text.text_protocol import AnswerReader, parts_of, thinking_state
from turnkeeper.activities.providers.text.written_calls import split_calls
from turnkeeper.activities.providers.visible_request import FULL, TEXT_ONLY
from turnkeeper.activities.providers.wire.answer_stream import FieldAccumulator, stream_answer
from turnkeeper.activities.providers.wire.transport import Event, Transport
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

THOUGHTS = ("reasoning_content", "reasoning")
"""The fields with visible thinking. A server that uses both has the same text in them."""

_UNDERSTOOD = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio"})
VENDOR = "the endpoint"
"""The vendor's name in error messages."""


class ChatAccumulator:
    """An answer while it arrives. The caller converts what an event of an unexpected shape raises."""

    def __init__(self, name: str, *, request: int, tools: Collection[str] = ()) -> None:
        """Begin the answer of the model `name` to the session's model request number `request`, with these `tools`."""
        self.is_complete = False
        """The answer is complete, except for its usage."""
        self.failure: Event | None = None
        """The server's error."""
        self._name = name
        self._model = self._id = ""
        self._request = request
        self._content = LeadingThought()
        self._texts: dict[str, list[str]] = {"thought": [], "refusal": []}
        self._extra_fields = FieldAccumulator()
        self._tools = tools
        self._calls = ChatCalls(tools)
        self._finish = ""
        self._used: Mapping[str, object] = {}

    def add(self, event: Event) -> list[Delta]:
        if event.get("object") == "error" or event.get("error"):
            self.failure = event
            return []
        self._model, self._id = name_of(event.get("model")) or self._model, name_of(event.get("id")) or self._id
        self._used = counts_of(event.get("usage")) or self._used
        # Only one was requested, but some servers don't number it, or send more.
        first = [choice for choice in event.get("choices") or [] if choice.get("index") in (None, 0, "0", "")]
        return [delta for choice in first for delta in self._take_choice(choice)]

    def response(self, *, request_id: str | None) -> ModelResponse:
        self._content.finish(is_cut=self._is_cut())
        stop = self._stop_reason()
        calls = self._calls.complete(request=self._request) if stop == "tool_calls" else []
        text = self._content.text
        if stop == "end_turn":
            text, calls = self._written_calls(text)
        return ModelResponse(
            parts=[*self._text_parts(text), *(part for part, _ in calls)],
            stop="tool_calls" if calls else stop,
            usage=_usage(self._used),
            model=self._model or self._name,
            request_id=request_id or self._id or None,
            state=None if stop == "max_tokens" else self._state(calls),
        )

    @property
    def usage_so_far(self) -> Usage | None:
        return _usage(self._used)

    def _take_choice(self, choice: Event) -> Iterator[Delta]:
        delta = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        content = delta.get("content") or ""
        thought = next((delta[key] for key in THOUGHTS if delta.get(key)), None) or _thought_in(content)
        if isinstance(thought, str) and thought:
            yield self._add_text(Delta("think", thought), "thought")
        if text := _text_in(content):
            yield from self._content.add(text)
        if refusal := delta.get("refusal"):
            yield self._add_text(Delta("respond", refusal), "refusal")
        for call_name in self._calls.add(_calls_in(delta)):
            yield Delta("call", call_name)
        for key, piece in delta.items():
            if key not in _UNDERSTOOD:
                self._extra_fields.add(key, piece)
        self._finish = choice.get("finish_reason") or self._finish
        self.is_complete = bool(self._finish)

    def _add_text(self, delta: Delta, to: str) -> Delta:
        self._texts[to].append(delta.text)
        return delta

    def _written_calls(self, text: str) -> tuple[str, list[tuple[CallPart, Block]]]:
        """Return the text without calls that are written in it, and those calls."""
        text, text_calls = split_calls(text, self._tools)
        calls = [*(call for call in self._content.calls if call.name in self._tools), *text_calls]
        parts = (
            CallPart(kind="call", id=f"call_{self._request}_{number}", name=call.name, args=call.args)
            for number, call in enumerate(calls)
        )
        return text, [(part, {}) for part in parts]

    def _is_cut(self) -> bool:
        return is_cut(self._finish, vendor=VENDOR)

    def _stop_reason(self) -> StopReason:
        if self._is_cut():
            return "max_tokens"
        if self._texts["refusal"] and not self._content.text and not self._calls:
            raise ModelError("refusal", f"it says “{redact(join_pieces(self._texts['refusal']))}”")
        # The reason is not reliable: some servers say `stop` with calls.
        return "tool_calls" if self._calls else "end_turn"

    def _text_parts(self, text: str) -> Iterator[Part]:
        for thought in filter(None, (join_pieces(self._texts["thought"]), self._content.thought)):
            yield ThinkPart(kind="think", text=thought)
        if whole := text + join_pieces(self._texts["refusal"]):
            yield RespondPart(kind="respond", text=whole)

    def _state(self, calls: list[tuple[CallPart, Block]]) -> ProviderState | None:
        """Return what the parts don't contain, if anything: all else can be encoded from the parts."""
        lead: Block = {"content": self._content.lead} if self._content.lead.strip() else {}
        of_message = self._extra_fields.fields()
        if isinstance(details := of_message.get("reasoning_details"), list):
            of_message["reasoning_details"] = _merged_fragments(details)
        extra_fields = [of_message | lead, *(fields for _, fields in calls)]
        if not any(extra_fields) and not any(is_telling(part.id) for part, _ in calls):
            return None
        ids = [dict[str, JsonValue](), *(dict[str, JsonValue](type="function", id=part.id) for part, _ in calls)]
        items: list[JsonValue] = [id_fields | fields for id_fields, fields in zip(ids, extra_fields, strict=True)]
        return ProviderState(api=API, model=self._name, items=items)


class TextChatAccumulator(ChatAccumulator):
    """An answer by the protocol `text`, whose text is in the grammar of the replay text (CTX-13)."""

    def __init__(self, name: str, *, request: int, tools: Collection[str] = ()) -> None:
        super().__init__(name, request=request, tools=tools)
        self._reader = AnswerReader()

    def add(self, event: Event) -> list[Delta]:
        text_deltas: list[Delta] = []
        for delta in super().add(event):
            text_deltas += self._reader.read(delta.text) if delta.kind == "respond" else [delta]
        return text_deltas

    def response(self, *, request_id: str | None) -> ModelResponse:
        whole = super().response(request_id=request_id)
        reader = AnswerReader()
        reader.read(whole.text)
        reader.finish()
        parts: list[Part] = [part for part in whole.parts if isinstance(part, ThinkPart)]
        parts += parts_of(reader.events, request=self._request)
        if not any(isinstance(part, CallPart) for part in parts):
            parts += whole.calls  # a form of calls that the model knows better
        if whole.stop == "max_tokens":
            return whole.model_copy(update={"parts": [part for part in parts if not isinstance(part, CallPart)]})
        stop = "tool_calls" if any(isinstance(part, CallPart) for part in parts) else "end_turn"
        thinking = "\n\n".join(part.text for part in parts if isinstance(part, ThinkPart))
        state = thinking_state(thinking, model=self._name) if stop == "tool_calls" else None
        return whole.model_copy(update={"parts": parts, "stop": stop, "state": state})


def _text_in(content: Any) -> str:
    """Return the text of a delta's content, which some servers send as typed pieces."""
    if isinstance(content, str):
        return content
    return "".join(piece["text"] for piece in content if piece.get("type") == "text")


def _thought_in(content: Any) -> str:
    """Return the thinking in a delta's content, in Mistral's form.

    >>> _thought_in([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": ""}])
    'Hm.'
    """
    if isinstance(content, str):
        return ""
    return "".join(_text_in(piece["thinking"]) for piece in content if piece.get("type") == "thinking")


_GROWING = ("text", "summary")


def _merged_fragments(details: list[JsonValue]) -> list[JsonValue]:
    """Return OpenRouter's `reasoning_details` whole: it streams a block in fragments with the same `index`.

    >>> _merged_fragments([{"type": "reasoning.text", "index": 0, "text": "a"},
    ...     {"type": "reasoning.text", "index": 0, "text": "b", "signature": None},
    ...     {"type": "reasoning.text", "index": 0, "signature": "c2ln"}])
    [{'type': 'reasoning.text', 'index': 0, 'text': 'ab', 'signature': 'c2ln'}]
    """
    blocks: list[JsonValue] = []
    by_index: dict[tuple[str, str], Block] = {}
    for fragment in details:
        if not isinstance(fragment, dict) or fragment.get("type") not in ("reasoning.text", "reasoning.summary"):
            blocks.append(fragment)
            continue
        key = (str(fragment["type"]), str(fragment.get("index")))
        block = by_index.get(key)
        if block is None or (fragment.get("index") is None and block.get("signature")):
            by_index[key] = dict(fragment)
            blocks.append(by_index[key])
            continue
        for name, value in fragment.items():
            grown = block.get(name)
            if name in _GROWING and isinstance(value, str) and isinstance(grown, str):
                block[name] = grown + value
            elif value is not None:
                block[name] = value
    return blocks


def _calls_in(delta: Event) -> list[Event]:
    """Return the pieces of calls in a delta, including the deprecated `function_call`."""
    calls = [piece for piece in delta.get("tool_calls") or [] if piece is not None]
    return [*calls, {"index": 0, "function": delta["function_call"]}] if delta.get("function_call") else calls


def _usage(counts: Mapping[str, object]) -> Usage | None:
    """Return the usage; `None` if the server doesn't count.

    >>> _usage({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}).input_tokens
    9
    """
    read = counts_of(counts.get("prompt_tokens_details"))
    try:
        return Usage(
            input_tokens=count_of(counts, "prompt_tokens"),
            output_tokens=count_of(counts, "completion_tokens"),
            cached_tokens=count_or_zero(read, "cached_tokens") or count_or_zero(counts, "prompt_cache_hit_tokens"),
            cache_write_tokens=count_or_zero(read, "cache_write_tokens"),
            reasoning_tokens=count_or_zero(counts_of(counts.get("completion_tokens_details")), "reasoning_tokens"),
        )
    except ValueError:
        return None  # missing or invalid counts are no reason to retry


ENDPOINT = Vendor(name="the endpoint of openai_chat.base_url", key="openai_chat.api_key", package="openai")
PATH = "/chat/completions"

USAGE_WAIT = 5.0
"""Seconds to wait after the end of an answer: for the usage, in a chunk of its own, and the end of the stream."""

_API = RefusableApi(
    sight_of=lambda name: FULL,
    bounds=("max_tokens", "max_completion_tokens"),
    replacements={"max_tokens": "max_completion_tokens"},
    fields_in=fields_in,
    missing_in=missing_in,
    advice_without_tools="openai_chat.protocol='text' is for models without tool calling",
)


class OpenAIChatProvider:
    """The models of one endpoint."""

    def __init__(
        self,
        *,
        silence_timeout: float,
        base_url: str | None,
        api_key: str | None = None,
        protocol: Literal["native", "text"] = "native",
        images: Literal["auto", "yes", "no"] = "auto",
    ) -> None:
        """Send requests to `base_url`, which includes the API's version. Without `api_key` no key is sent.

        `silence_timeout`: for how many seconds the endpoint may send nothing. `images`: whether its models read images
        and PDFs; `auto`: all are sent them, and those that refuse are remembered; `yes`: a refusal is of that content.

        Raises `ModelError` without a `base_url`.
        """
        if base_url is None:
            raise ModelError("bad_request", "set openai_chat.base_url, as in 'http://127.0.0.1:11434/v1' for Ollama")
        self._address = {"base_url": base_url, "api_key": api_key or "none"}
        self._protocol = protocol
        self._omitted_tools = OmittedToolsLog()
        sight = TEXT_ONLY if images == "no" or protocol == "text" else FULL
        self.refused = RefusedParts(replace(_API, sight_of=lambda name: sight, learns_sight=images == "auto"))
        self._transport = Transport(ENDPOINT, self._client, silence_timeout=silence_timeout, sends_key=bool(api_key))

    async def stream(
        self, name: str, request: ModelRequest, info: CallInfo
    ) -> AsyncGenerator[Delta | ModelResponse, None]:
        if not name:
            raise ModelError("not_found", "write its name after the colon, as in 'openai-chat:qwen3'")
        is_native = self._protocol == "native"
        self._omitted_tools.warn_once(request.head.tools)

        def encode_trimmed(trimmed: ModelRequest, parts: Parts) -> Body:
            if not is_native:
                return encode_text(trimmed, name=name)
            return encode(trimmed, name=name, without=parts.omitted_fields, required=parts.required_fields)

        def send(body: Body) -> AsyncGenerator[Delta | ModelResponse, None]:
            answer = (ChatAccumulator if is_native else TextChatAccumulator)(
                name, request=info.request, tools=tool_names(request)
            )
            return stream_answer(self._transport.request(PATH, body), answer, run_out=USAGE_WAIT, meter=info.meter)

        async with aclosing(self.refused.answer(name, request, info, encode_trimmed, send)) as pieces:
            async for piece in pieces:
                yield piece

    def _client(self, sdk: ModuleType, http: Any) -> Any:
        nothing = sdk.Omit()
        client = sdk.AsyncOpenAI(**self._address, http_client=http, max_retries=0)
        # Overrides `OPENAI_CUSTOM_HEADERS`, which the SDK offers no other way to ignore.
        client._custom_headers = {"OpenAI-Organization": nothing, "OpenAI-Project": nothing}
        return client
