"""How an answer of a Chat Completions endpoint is read from its stream (AGT-3, AGT-10).

Theory of operation. Servers differ in what they leave out and what they add, so little is demanded: chunks with a
`delta` in their first choice, and a `finish_reason`, which alone says whether an answer is whole. Text grows by
concatenation, whatever field it is in. A piece belongs to the latest call of its `index`, or to the latest of all where
it has none; it begins another one if it brings a name and, with it, another id, or finds the arguments before it whole.
Ids of a server may be missing or repeat. What a message or a call has beyond what we understand is kept in the state,
to go back to the same model; so is thinking at the beginning of the text, for templates that want it there.
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
from turnkeeper.activities.providers.openai.chat_request import API
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
"""Where servers put shown thinking; one that uses both says the same in them."""

_UNDERSTOOD = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "audio"})
_OF_A_CALL = frozenset({"index", "id", "type", "function"})
VENDOR = "the endpoint"
"""Who is asked, in a sentence."""


@dataclass
class _Call:
    """A call while it comes in."""

    index: int | None
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    beyond: FieldAccumulator = field(default_factory=FieldAccumulator)

    def add(self, delta: Event) -> None:
        function = delta.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments")
        self.id = self.id or delta.get("id") or ""
        # Some servers give the name in pieces, some give it whole in every chunk.
        self.name += name if name != self.name else ""
        if arguments:
            # Some servers give an object where the text of one is meant.
            self.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))
        for key, piece in delta.items():
            if key not in _OF_A_CALL:
                self.beyond.add(key, piece)

    @property
    def is_complete(self) -> bool:
        """Return whether its arguments are whole, as far as can be seen."""
        return bool(self.arguments) and isinstance(arguments_of(join_pieces(self.arguments)), dict)


class StreamAccumulator:
    """An answer while it comes in. What an event of an unexpected shape raises is the caller's to name."""

    def __init__(self, name: str, *, request: int) -> None:
        """Begin the answer of the model `name` to the session's model request number `request`."""
        self.is_whole = False
        """The answer has come to its end, but for its usage."""
        self.failure: Event | None = None
        """What the server says of an answer that failed."""
        self._name = name
        self._model = self._id = ""
        self._request = request
        self._content = LeadingThought()
        self._texts: dict[str, list[str]] = {"thought": [], "refusal": []}
        self._beyond = FieldAccumulator()
        self._calls: list[_Call] = []
        self._finish = ""
        self._used: Mapping[str, object] = {}

    def add(self, event: Event) -> list[Delta]:
        if event.get("object") == "error" or event.get("error"):
            self.failure = event
            return []
        self._model, self._id = name_of(event.get("model")) or self._model, name_of(event.get("id")) or self._id
        self._used = counts_of(event.get("usage")) or self._used
        # One is asked for. There are servers that do not number it, and ones that send more than that.
        first = [choice for choice in event.get("choices") or [] if not choice.get("index")]
        return [delta for choice in first for delta in self._take_choice(choice)]

    def response(self, *, request_id: str | None) -> ModelResponse:
        self._content.finish(is_cut=self._is_cut())
        stop = self._stop_reason()
        calls = self._whole_calls() if stop == "tool_calls" else []
        return ModelResponse(
            parts=[*self._texts_told(), *(part for part, _ in calls)],
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
            yield self._show(Delta("think", thought), "thought")
        if content := delta.get("content"):
            yield from self._content.add(_text_in(content))
        if refusal := delta.get("refusal"):
            yield self._show(Delta("respond", refusal), "refusal")
        for told in _calls_in(delta):
            if named := self._take_call(told):
                yield Delta("call", named)
        for key, piece in delta.items():
            if key not in _UNDERSTOOD:
                self._beyond.add(key, piece)
        self._finish = choice.get("finish_reason") or self._finish
        self.is_whole = bool(self._finish)

    def _show(self, delta: Delta, to: str) -> Delta:
        self._texts[to].append(delta.text)
        return delta

    def _take_call(self, told: Event) -> str | None:
        call = self._call_of(told)
        is_new = call is None
        if call is None:
            call = _Call(index=told.get("index"), id=told.get("id") or "")
            self._calls.append(call)
        call.add(told)
        return call.name if is_new else None

    def _call_of(self, told: Event) -> _Call | None:
        """Return the call that a piece belongs to; None: it begins one."""
        index, own, name = told.get("index"), told.get("id"), (told.get("function") or {}).get("name")
        latest = next((call for call in reversed(self._calls) if index is None or call.index == index), None)
        if latest is None or not name:
            return latest
        # A name may be repeated, and so may an id; there are servers that number all calls 0.
        is_another = bool(own and latest.id and own != latest.id)
        return None if is_another or (index is None and latest.is_complete) else latest

    def _whole_calls(self) -> list[tuple[CallPart, Block]]:
        """Return the calls, each with what it has beyond them. Ids that are missing, or come twice, are made up."""
        told: list[tuple[CallPart, Block]] = []
        taken: set[str] = set()
        for number, call in enumerate(self._calls):
            own = join_pieces([call.id])
            call_id = own if own and own not in taken else f"call_{self._request}_{number}"
            taken.add(call_id)
            args = arguments_of(join_pieces(call.arguments))
            part = CallPart(kind="call", id=call_id, name=join_pieces([call.name]), args=args)
            told.append((part, call.beyond.fields()))
        return told

    def _is_cut(self) -> bool:
        return is_cut(self._finish, vendor=VENDOR)

    def _stop_reason(self) -> StopReason:
        if self._is_cut():
            return "max_tokens"
        if self._texts["refusal"] and not self._content.said and not self._calls:
            raise ModelError("refusal", f"it says “{redact(join_pieces(self._texts['refusal']))}”")
        # Not the reason decides: there are servers that say `stop` with calls.
        return "tool_calls" if self._calls else "end_turn"

    def _texts_told(self) -> Iterator[Part]:
        for thought in filter(None, (join_pieces(self._texts["thought"]), self._content.thought)):
            yield ThinkPart(kind="think", text=thought)
        if said := self._content.said + join_pieces(self._texts["refusal"]):
            yield RespondPart(kind="respond", text=said)

    def _state(self, calls: list[tuple[CallPart, Block]]) -> ProviderState | None:
        """Return what there is beyond the parts, if there is any: all else is written anew from them, and the same."""
        lead: Block = {"content": self._content.lead} if self._content.lead.strip() else {}
        beyond = [self._beyond.fields() | lead, *(fields for _, fields in calls)]
        if not any(beyond):
            return None
        ids = [dict[str, JsonValue](), *(dict[str, JsonValue](type="function", id=part.id) for part, _ in calls)]
        items: list[JsonValue] = [known | fields for known, fields in zip(ids, beyond, strict=True)]
        return ProviderState(api=API, model=self._name, items=items)


class TextStreamAccumulator(StreamAccumulator):
    """An answer by the protocol `text`: its text is read in the grammar of the replay text (CTX-13)."""

    def __init__(self, name: str, *, request: int) -> None:
        super().__init__(name, request=request)
        self._reader = AnswerReader()

    def add(self, event: Event) -> list[Delta]:
        shown: list[Delta] = []
        for delta in super().add(event):
            shown += self._reader.read(delta.text) if delta.kind == "respond" else [delta]
        return shown

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
    """Return the text of a delta's content, which some servers give in pieces with a type."""
    if isinstance(content, str):
        return content
    return "".join(piece["text"] for piece in content if piece.get("type") == "text")


def _calls_in(delta: Event) -> list[Event]:
    """Return the pieces of calls in a delta, the one of before there were several too."""
    calls = list(delta.get("tool_calls") or [])
    return [*calls, {"index": 0, "function": delta["function_call"]}] if delta.get("function_call") else calls


def _usage(told: Mapping[str, object]) -> Usage | None:
    """Return the tokens in our terms; None where the server does not count.

    >>> _usage({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}).input_tokens
    9
    """
    read = counts_of(told.get("prompt_tokens_details"))
    try:
        return Usage(
            input_tokens=count_of(told, "prompt_tokens"),
            output_tokens=count_of(told, "completion_tokens"),
            cached_tokens=count_or_zero(read, "cached_tokens") or count_or_zero(told, "prompt_cache_hit_tokens"),
            cache_write_tokens=count_or_zero(read, "cache_write_tokens"),
            reasoning_tokens=count_or_zero(counts_of(told.get("completion_tokens_details")), "reasoning_tokens"),
        )
    except ValueError:
        return None  # what is not counted, or no count, is no reason to ask again
