"""`openai-chat:` models of any endpoint with OpenAI's Chat Completions: Ollama, vLLM, a proxy (AGT-4).

With the protocol `native` the model gets its tools through the API; with `text` it gets conversation and tools as one
text (`text_protocol.py`, CTX-13). What the SDK finds in the environment for OpenAI itself, above all a key, is never
sent to another endpoint.

**Reading** (AGT-3, AGT-10). Servers differ in what they omit and add, so little is required: chunks with a `delta` in
their first choice, and a `finish_reason`, which alone says whether an answer is complete. Texts are concatenated,
whatever their field. If there are no calls, they may be written as text (`written_answer.py`). Fields of a message or a
call that we don't understand are kept in the state, to go back to the same model; so is thinking at the beginning of
the text, for templates that expect it there.

An honest server numbers its calls, names each once, and sends its arguments in pieces. Others number all calls 0, omit
ids, repeat name or id in every piece, or send arguments again as a whole. So a piece belongs to the latest call of its
`index`, or to the latest of all without one, unless it begins another call:

- it has another id and a name,
- or a name, and the arguments before it are complete (the same name and arguments again are a repetition),
- or the name of another tool that is no continuation of the latest name,
- or a name, in the chunk in which the latest call began, and that has no id.

Arguments that are no JSON object at the end may be one that was resent, or several of one tool (`objects_in`). Those of
an honest server are one object, so nothing of this concerns it.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Literal, Self

from pydantic import JsonValue

from turnkeeper.activities.providers.answer_fields import (
    FieldAccumulator,
    arguments_of,
    count_of,
    count_or_zero,
    counts_of,
    is_length_limit,
    join_pieces,
    name_of,
    objects_in,
)
from turnkeeper.activities.providers.openai.chat_request import (
    API,
    encode,
    encode_text,
    fields_in,
    is_telling,
    missing_in,
    tool_names,
)
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Vendor
from turnkeeper.activities.providers.redaction import redact
from turnkeeper.activities.providers.refused_parts import Body, Parts, RefusableApi
from turnkeeper.activities.providers.request_encoding import FULL, TEXT_ONLY, Block
from turnkeeper.activities.providers.text_protocol import AnswerReader, parts_of, thinking_state
from turnkeeper.activities.providers.transport import Event
from turnkeeper.activities.providers.vendor_provider import AnswerAccumulator, VendorProvider
from turnkeeper.activities.providers.written_answer import LeadingThought, split_calls
from turnkeeper.models.settings.settings import Settings
from turnkeeper.models.transcript.conversation import StopReason, Usage
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelRequest,
    ModelResponse,
    Part,
    ProviderState,
    RespondPart,
    ThinkPart,
)

THOUGHTS = ("reasoning_content", "reasoning")
"""The fields with visible thinking. A server that uses both has the same text in them."""

_UNDERSTOOD = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio"})


class ChatAccumulator(AnswerAccumulator):
    """An answer while it arrives. It may be complete before its usage."""

    def __init__(self, name: str, *, request: int, tools: Collection[str] = ()) -> None:
        """Begin the answer of the model `name` to the session's model request number `request`, with these `tools`."""
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
        thoughts = [
            ThinkPart(kind="think", text=thought)
            for thought in (join_pieces(self._texts["thought"]), self._content.thought)
            if thought
        ]
        whole = text + join_pieces(self._texts["refusal"])
        responds = [RespondPart(kind="respond", text=whole)] if whole else []
        return ModelResponse(
            parts=[*thoughts, *responds, *(part for part, _ in calls)],
            stop="tool_calls" if calls else stop,
            usage=_usage(self._used),
            model=self._model or self._name,
            request_id=request_id or self._id or None,
            state=None if stop == "max_tokens" else self._state(calls),
        )

    @property
    def usage_so_far(self) -> Usage | None:
        return _usage(self._used)

    def arguments_in(self, event: Event) -> Iterable[str]:
        match event:
            case {"choices": [{"delta": {"tool_calls": [*calls]}}, *_]}:
                for call in calls:
                    match call:
                        case {"function": {"arguments": str(text)}}:
                            yield text

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
        return is_length_limit(self._finish, vendor="the endpoint")

    def _stop_reason(self) -> StopReason:
        if self._is_cut():
            return "max_tokens"
        if self._texts["refusal"] and not self._content.text and not self._calls:
            raise ModelError("refusal", f"it says “{redact(join_pieces(self._texts['refusal']))}”")
        # The reason is not reliable: some servers say `stop` with calls.
        return "tool_calls" if self._calls else "end_turn"

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
        self._unseen: list[str] = []
        """Text of the newest event that is in no delta: of a call's arguments."""

    def add(self, event: Event) -> list[Delta]:
        text_deltas: list[Delta] = []
        self._unseen = []
        for delta in super().add(event):
            visible = self._reader.read(delta.text) if delta.kind == "respond" else [delta]
            text_deltas += visible
            is_of_call = all(piece.kind == "call" for piece in visible)
            self._unseen += [delta.text] if is_of_call else []
        return text_deltas

    def arguments_in(self, event: Event) -> Iterable[str]:
        return self._unseen

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


# ---- calls


_OF_A_CALL = frozenset({"index", "id", "type", "function"})


@dataclass
class _Call:
    """A call while it arrives."""

    index: int | None
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra_fields: FieldAccumulator = field(default_factory=FieldAccumulator)

    @property
    def is_complete(self) -> bool:
        """Return whether its arguments seem complete."""
        return self.has_arguments and isinstance(arguments_of(join_pieces(self.arguments)), dict)

    @property
    def has_arguments(self) -> bool:
        return any(piece.strip() for piece in self.arguments)


@dataclass(frozen=True)
class _Piece:
    """A piece of a call, in one form."""

    index: int | None
    id: str
    name: str
    arguments: str
    extra_fields: Block

    @classmethod
    def from_event(cls, event: Event) -> "_Piece":
        function = event.get("function") or {}
        index, own_id, arguments = event.get("index"), event.get("id"), function.get("arguments")
        return cls(
            index=int(index) if isinstance(index, str) and index.isdecimal() else index,
            id=str(own_id) if isinstance(own_id, int) else own_id or "",
            name=function.get("name") or "",
            # Some servers send an object instead of its text.
            arguments=arguments or "" if isinstance(arguments, str | None) else json.dumps(arguments),
            extra_fields={key: value for key, value in event.items() if key not in _OF_A_CALL},
        )


class ChatCalls:
    """The calls of one answer while they arrive. `tools` are the names of the offered tools."""

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools
        self._calls: list[_Call] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, events: Iterable[Event]) -> list[str]:
        """Add the pieces of one chunk; return the names of the calls that begin in it."""
        earlier = len(self._calls)
        for event in events:
            piece = _Piece.from_event(event)
            call = self._call_of(piece, new_calls=self._calls[earlier:])
            if call is None:
                call = _Call(index=piece.index, id=piece.id)
                self._calls.append(call)
            call.id = call.id or piece.id
            call.name = self._joined_name(call.name, piece.name)
            if piece.arguments:
                call.arguments.append(piece.arguments)
            for key, value in piece.extra_fields.items():
                call.extra_fields.add(key, value)
        return [call.name for call in self._calls[earlier:]]

    def complete(self, *, request: int) -> list[tuple[CallPart, Block]]:
        """Return the calls, each with its unknown fields. Missing and duplicate ids are replaced."""
        parts: list[tuple[CallPart, Block]] = []
        used_ids: set[str] = set()
        for call in self._calls:
            own_id, fields = join_pieces([call.id]), call.extra_fields.fields()
            for args in objects_in(call.arguments):
                call_id = own_id if own_id and own_id not in used_ids else f"call_{request}_{len(parts)}"
                used_ids.add(call_id)
                parts.append((CallPart(kind="call", id=call_id, name=join_pieces([call.name]), args=args), fields))
                fields = {}
        return parts

    def _call_of(self, piece: _Piece, *, new_calls: Sequence[_Call]) -> _Call | None:
        """Return the call that a piece belongs to; `None` if it begins one."""
        same_index = (call for call in reversed(self._calls) if piece.index is None or call.index == piece.index)
        latest = next(same_index, None)
        if latest is None or not piece.name:
            return latest
        is_same = bool(piece.id) and piece.id == latest.id
        if piece.id and latest.id and not is_same:
            return None
        is_open = latest.has_arguments and not latest.is_complete
        if any(call is latest for call in new_calls) and not latest.id and not is_open:
            return None
        return latest if self._continues(latest, piece, is_same=is_same) else None

    def _continues(self, latest: _Call, piece: _Piece, *, is_same: bool) -> bool:
        """Return whether a piece with a name continues the latest call."""
        if latest.is_complete:
            is_repeated = not piece.arguments.strip() or piece.arguments == join_pieces(latest.arguments)
            return piece.name == latest.name and (is_same or (piece.index is not None and is_repeated))
        if piece.name == latest.name or piece.name not in self._tools:
            return True
        is_all_so_far = piece.name.startswith(latest.name) and latest.name not in self._tools
        return not latest.has_arguments and (is_all_so_far or self._is_beginning(latest.name + piece.name))

    def _joined_name(self, name: str, piece: str) -> str:
        """Return a name with its next piece: some servers send pieces, others all of it, or all so far, each time."""
        if piece == name:
            return name
        is_all_so_far = bool(name) and piece.startswith(name) and self._is_beginning(piece)
        return piece if is_all_so_far and not self._is_beginning(name + piece) else name + piece

    def _is_beginning(self, name: str) -> bool:
        return any(tool.startswith(name) for tool in self._tools)


# ---- the provider


class OpenAIChatProvider(VendorProvider):
    """The models of one endpoint."""

    vendor = Vendor(
        name="openai-chat",
        title="the endpoint of openai_chat.base_url",
        example="qwen3",
        key="openai_chat.api_key",
        package="openai",
    )
    limits_tools = True
    path = "/chat/completions"
    refusable = RefusableApi(
        bounds=("max_tokens", "max_completion_tokens"),
        replacements={"max_tokens": "max_completion_tokens"},
        fields_in=fields_in,
        missing_in=missing_in,
        advice_without_tools="openai_chat.protocol='text' is for models without tool calling",
    )
    run_out = 5.0  # its usage comes in a chunk of its own, behind the end of the answer

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

        `images`: whether its models read images and PDFs; `auto`: all are sent them, and those that refuse are
        remembered; `yes`: a refusal is of that content. Raises `ModelError` without a `base_url`.
        """
        if base_url is None:
            raise ModelError("bad_request", "set openai_chat.base_url, as in 'http://127.0.0.1:11434/v1' for Ollama")
        self._protocol = protocol
        sight = TEXT_ONLY if images == "no" or protocol == "text" else FULL
        self.refusable = replace(self.refusable, sight_of=lambda name: sight, learns_sight=images == "auto")
        super().__init__(
            silence_timeout=silence_timeout, base_url=base_url, api_key=api_key or "none", sends_key=bool(api_key)
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        endpoint, key = settings.openai_chat, settings.openai_chat.api_key
        return cls(
            silence_timeout=settings.model_silence_timeout,
            base_url=endpoint.base_url,
            api_key=key.get_secret_value() if key else None,
            protocol=endpoint.protocol,
            images=endpoint.images,
        )

    @classmethod
    def missing(cls, settings: Settings) -> tuple[str, str] | None:
        no_address = "openai_chat.base_url is not set", "set it, for Ollama to http://127.0.0.1:11434/v1"
        return super().missing(settings) or (None if settings.openai_chat.base_url else no_address)

    def client(self, sdk: ModuleType, http: Any) -> Any:
        nothing = sdk.Omit()
        client = sdk.AsyncOpenAI(**self.address, http_client=http, max_retries=0)
        # Overrides `OPENAI_CUSTOM_HEADERS`, which the SDK offers no other way to ignore.
        client._custom_headers = {"OpenAI-Organization": nothing, "OpenAI-Project": nothing}
        return client

    def encode(self, request: ModelRequest, name: str, info: CallInfo, parts: Parts) -> Body:
        if self._protocol == "text":
            return encode_text(request, name=name)
        return encode(request, name=name, without=parts.omitted_fields, required=parts.required_fields)

    def accumulator(self, name: str, request: ModelRequest, info: CallInfo) -> AnswerAccumulator:
        accumulator = ChatAccumulator if self._protocol == "native" else TextChatAccumulator
        return accumulator(name, request=info.request, tools=tool_names(request))
