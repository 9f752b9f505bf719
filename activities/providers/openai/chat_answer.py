"""Reading an answer of a Chat Completions endpoint from its stream (AGT-3, AGT-10).

Servers differ in what they omit and add, so little is required: chunks with a `delta` in their first choice, and a
`finish_reason`, which alone says whether an answer is complete. Texts are concatenated, whatever their field. A piece
belongs to the latest call of its `index`, or to the latest of all without one; it begins another call if it has a name
and another id, or if the arguments before it are complete. Ids may be missing or repeat. Fields of a message or a call
that we don't understand are kept in the state, to go back to the same model; so is thinking at the beginning of the
text, for templates that expect it there.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from turnkeeper.activities.providers.answer_fields import (
    arguments_of,
    count_of,
    count_or_zero,
    counts_of,
    join_pieces,
    name_of,
)
from turnkeeper.activities.providers.finish_reasons import is_cut
from turnkeeper.activities.providers.openai.chat_request import API, is_telling
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.activities.providers.redaction import redact
from turnkeeper.activities.providers.request_encoding import Block
from turnkeeper.activities.providers.text.leading_thought import LeadingThought
from turnkeeper.activities.providers.text.text_answer import AnswerReader, parts_of
from turnkeeper.activities.providers.wire.answer_stream import FieldAccumulator
from turnkeeper.activities.providers.wire.transport import Event
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, Part, ProviderState, RespondPart, ThinkPart
from turnkeeper.models.transcript.trajectory import StopReason, Usage

THOUGHTS = ("reasoning_content", "reasoning")
"""The fields with visible thinking. A server that uses both has the same text in them."""

_UNDERSTOOD = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio"})
_OF_A_CALL = frozenset({"index", "id", "type", "function"})
VENDOR = "the endpoint"
"""The vendor's name in error messages."""


@dataclass
class _Call:
    """A call while it arrives."""

    index: int | None
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra_fields: FieldAccumulator = field(default_factory=FieldAccumulator)

    def add(self, delta: Event) -> None:
        function = delta.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments")
        self.id = self.id or delta.get("id") or ""
        # Some servers send the name in pieces, others the whole name in every chunk.
        self.name += name if name != self.name else ""
        if arguments:
            # Some servers send an object instead of its text.
            self.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))
        for key, piece in delta.items():
            if key not in _OF_A_CALL:
                self.extra_fields.add(key, piece)

    @property
    def is_complete(self) -> bool:
        """Return whether its arguments seem complete."""
        return bool(self.arguments) and isinstance(arguments_of(join_pieces(self.arguments)), dict)


class ChatAccumulator:
    """An answer while it arrives. The caller converts what an event of an unexpected shape raises."""

    def __init__(self, name: str, *, request: int) -> None:
        """Begin the answer of the model `name` to the session's model request number `request`."""
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
        self._calls: list[_Call] = []
        self._finish = ""
        self._used: Mapping[str, object] = {}

    def add(self, event: Event) -> list[Delta]:
        if event.get("object") == "error" or event.get("error"):
            self.failure = event
            return []
        self._model, self._id = name_of(event.get("model")) or self._model, name_of(event.get("id")) or self._id
        self._used = counts_of(event.get("usage")) or self._used
        # Only one was requested, but some servers don't number it, or send more.
        first = [choice for choice in event.get("choices") or [] if not choice.get("index")]
        return [delta for choice in first for delta in self._take_choice(choice)]

    def response(self, *, request_id: str | None) -> ModelResponse:
        self._content.finish(is_cut=self._is_cut())
        stop = self._stop_reason()
        calls = self._complete_calls() if stop == "tool_calls" else []
        return ModelResponse(
            parts=[*self._text_parts(), *(part for part, _ in calls)],
            stop=stop,
            usage=_usage(self._used),
            model=self._model or self._name,
            request_id=request_id or self._id or None,
            state=None if stop == "max_tokens" else self._state(calls),
        )

    @property
    def usage_so_far(self) -> Usage | None:
        return _usage(self._used)

    def _take_choice(self, choice: Event) -> Iterator[Delta]:
        delta = choice.get("delta") or choice.get("message") or {}
        thought = next((delta[key] for key in THOUGHTS if delta.get(key)), None)
        if isinstance(thought, str):
            yield self._add_text(Delta("think", thought), "thought")
        if content := delta.get("content"):
            yield from self._content.add(_text_in(content))
        if refusal := delta.get("refusal"):
            yield self._add_text(Delta("respond", refusal), "refusal")
        for call_piece in _calls_in(delta):
            if call_name := self._take_call(call_piece):
                yield Delta("call", call_name)
        for key, piece in delta.items():
            if key not in _UNDERSTOOD:
                self._extra_fields.add(key, piece)
        self._finish = choice.get("finish_reason") or self._finish
        self.is_complete = bool(self._finish)

    def _add_text(self, delta: Delta, to: str) -> Delta:
        self._texts[to].append(delta.text)
        return delta

    def _take_call(self, call_piece: Event) -> str | None:
        call = self._call_of(call_piece)
        is_new = call is None
        if call is None:
            call = _Call(index=call_piece.get("index"), id=call_piece.get("id") or "")
            self._calls.append(call)
        call.add(call_piece)
        return call.name if is_new else None

    def _call_of(self, call_piece: Event) -> _Call | None:
        """Return the call that a piece belongs to; `None` if it begins one."""
        index, own_id, name = (
            call_piece.get("index"),
            call_piece.get("id"),
            (call_piece.get("function") or {}).get("name"),
        )
        latest = next((call for call in reversed(self._calls) if index is None or call.index == index), None)
        if latest is None or not name:
            return latest
        # Names and ids may be repeated, and some servers number all calls 0.
        is_another = bool(own_id and latest.id and own_id != latest.id)
        return None if is_another or (index is None and latest.is_complete) else latest

    def _complete_calls(self) -> list[tuple[CallPart, Block]]:
        """Return the calls, each with its unknown fields. Missing and duplicate ids are replaced."""
        calls_with_fields: list[tuple[CallPart, Block]] = []
        used_ids: set[str] = set()
        for number, call in enumerate(self._calls):
            own_id = join_pieces([call.id])
            call_id = own_id if own_id and own_id not in used_ids else f"call_{self._request}_{number}"
            used_ids.add(call_id)
            args = arguments_of(join_pieces(call.arguments))
            part = CallPart(kind="call", id=call_id, name=join_pieces([call.name]), args=args)
            calls_with_fields.append((part, call.extra_fields.fields()))
        return calls_with_fields

    def _is_cut(self) -> bool:
        return is_cut(self._finish, vendor=VENDOR)

    def _stop_reason(self) -> StopReason:
        if self._is_cut():
            return "max_tokens"
        if self._texts["refusal"] and not self._content.text and not self._calls:
            raise ModelError("refusal", f"it says “{redact(join_pieces(self._texts['refusal']))}”")
        # The reason is not reliable: some servers say `stop` with calls.
        return "tool_calls" if self._calls else "end_turn"

    def _text_parts(self) -> Iterator[Part]:
        for thought in filter(None, (join_pieces(self._texts["thought"]), self._content.thought)):
            yield ThinkPart(kind="think", text=thought)
        if text := self._content.text + join_pieces(self._texts["refusal"]):
            yield RespondPart(kind="respond", text=text)

    def _state(self, calls: list[tuple[CallPart, Block]]) -> ProviderState | None:
        """Return what the parts don't contain, if anything: all else can be encoded from the parts."""
        lead: Block = {"content": self._content.lead} if self._content.lead.strip() else {}
        extra_fields = [self._extra_fields.fields() | lead, *(fields for _, fields in calls)]
        if not any(extra_fields) and not any(is_telling(part.id) for part, _ in calls):
            return None
        ids = [dict[str, JsonValue](), *(dict[str, JsonValue](type="function", id=part.id) for part, _ in calls)]
        items: list[JsonValue] = [id_fields | fields for id_fields, fields in zip(ids, extra_fields, strict=True)]
        return ProviderState(api=API, model=self._name, items=items)


class TextChatAccumulator(ChatAccumulator):
    """An answer by the protocol `text`, whose text is in the grammar of the replay text (CTX-13)."""

    def __init__(self, name: str, *, request: int) -> None:
        super().__init__(name, request=request)
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
        if whole.stop == "max_tokens":
            return whole.model_copy(update={"parts": [part for part in parts if not isinstance(part, CallPart)]})
        stop = "tool_calls" if any(isinstance(part, CallPart) for part in parts) else "end_turn"
        return whole.model_copy(update={"parts": parts, "stop": stop, "state": None})


def _text_in(content: Any) -> str:
    """Return the text of a delta's content, which some servers send as typed pieces."""
    if isinstance(content, str):
        return content
    return "".join(piece["text"] for piece in content if piece.get("type") == "text")


def _calls_in(delta: Event) -> list[Event]:
    """Return the pieces of calls in a delta, including the deprecated `function_call`."""
    calls = list(delta.get("tool_calls") or [])
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
