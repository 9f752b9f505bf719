"""Reading an answer of OpenAI's Responses API from its stream (AGT-3, AGT-10).

Deltas are only published. The answer is made of the items of `response.output_item.done`, in the order of the output,
or of those in the last event if there are more. The *parts* are what we understand of them: summaries of reasoning,
text, calls. The *items* themselves are stored for the vendor, as they came.

An answer is complete with `response.completed`, and cut with `response.incomplete` if that was a length limit; the
stream of any other is a failure. The statuses of the response and of its items must agree: half a call is not run, and
half a text is no answer.

An answer that could not go back has no state, and is encoded again from its parts: one with reasoning that came without
its encrypted content, since the vendor doesn't store it, one with a call that gets no output from us, and one with a
call whose arguments are not a JSON object.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic_core import PydanticSerializationError, to_json

from turnkeeper.activities.providers.answer_fields import (
    arguments_of,
    count_of,
    count_or_zero,
    counts_of,
    join_pieces,
    name_of,
)
from turnkeeper.activities.providers.finish_reasons import EARLY_END, is_cut, unclear_answer_error
from turnkeeper.activities.providers.openai.responses_request import API
from turnkeeper.activities.providers.openai.tools import arguments_json
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.activities.providers.redaction import redact
from turnkeeper.activities.providers.wire.transport import Event
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, Part, ProviderState, RespondPart, ThinkPart
from turnkeeper.models.transcript.trajectory import StopReason, Usage

_FAILED = ("response.failed", "response.cancelled")
_LAST = ("response.completed", "response.incomplete", *_FAILED)
_WHOLE = ("completed", "")
"""Statuses of a complete response. Some servers have none."""
_HALF = ("incomplete", "in_progress")
"""Statuses of an incomplete item."""


class ResponsesAccumulator:
    """An answer while it arrives. The caller converts what an event of an unexpected shape raises."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: dict[int, Event] = {}
        self._last_places: dict[str, tuple[int, int]] = {}
        self._started_items: set[int] = set()
        self._end: Event = {}
        self._used: Mapping[str, object] = {}
        self._is_cut = False
        self.is_complete = False
        """The last event of the answer has arrived. The answer may be cut."""
        self.failure: Event | None = None
        """The vendor's error."""

    def add(self, event: Event) -> list[Delta]:
        match event:
            case {"type": "response.output_text.delta" | "response.refusal.delta", "delta": str(text)}:
                return self._delta("respond", text, (event.get("output_index", 0), 0))
            case {"type": "response.reasoning_summary_text.delta", "delta": str(text)}:
                return self._delta("think", text, (event.get("output_index", 0), event.get("summary_index", 0)))
            case {"type": "response.reasoning_text.delta", "delta": str(text)}:
                return self._delta("think", text, (event.get("output_index", 0), event.get("content_index", 0)))
            case {"type": "response.output_item.added", "item": dict(item)}:
                self._started_items.add(event.get("output_index", len(self._started_items)))
                name = name_of(item.get("name")) if item.get("type") == "function_call" else ""
                return [Delta("call", name)] if name else []
            case {"type": "response.output_item.done", "item": dict(item)}:
                self._items[event.get("output_index", len(self._items))] = item
            case {"type": str(kind), "response": dict(response)} if kind in _LAST:
                self._take_end(kind, response)
            case {"type": "error"}:
                self.failure = event
        return []

    def response(self, *, request_id: str | None) -> ModelResponse:
        end, is_cut = self._end, self._is_cut
        items = self._output_items()
        if not is_cut and (name_of(end.get("status")) not in _WHOLE or self._has_half(items)):
            raise ModelError("connection", "OpenAI's answer broke off before its end", lasting=EARLY_END)
        if is_cut:
            _check_is_cut(end)
        # Calls of an answer that was cut may be cut too. They get no results, so they could not go back.
        parts = [part for part in _parts_in(items) if not (is_cut and isinstance(part, CallPart))]
        _raise_refusal(items, parts)
        return ModelResponse(
            parts=parts,
            stop=_stop(parts, is_cut=is_cut),
            usage=_usage(counts_of(end.get("usage"))),
            model=name_of(end.get("model")) or self._name,
            request_id=request_id or name_of(end.get("id")) or None,
            state=None if is_cut else _state(self._name, items, parts),
        )

    @property
    def usage_so_far(self) -> Usage | None:
        """The vendor's counts, from the last event."""
        return _usage(self._used)

    def _take_end(self, kind: str, response: Event) -> None:
        """Use the response of the last event. Its status may differ from the event's name."""
        status, self._used = name_of(response.get("status")), counts_of(response.get("usage"))
        if kind in _FAILED or f"response.{status}" in _FAILED:
            self.failure = response.get("error") or {"type": "server_error"}
        else:
            self._is_cut = kind == "response.incomplete" or status == "incomplete"
            self._end, self.is_complete = response, True

    def _output_items(self) -> list[Event]:
        """Return the items of the output. Some servers send `done` events for only some of them, or none."""
        finished_items = [self._items[index] for index in sorted(self._items)]
        fields = list(self._end.get("output") or [])
        return fields if len(fields) > len(finished_items) else finished_items

    def _has_half(self, items: Sequence[Event]) -> bool:
        """Return whether an item that was started is incomplete or missing."""
        return len(items) < len(self._started_items) or any(item.get("status") in _HALF for item in items)

    def _delta(self, kind: Literal["think", "respond"], text: str, place: tuple[int, int]) -> list[Delta]:
        """Return the delta of a text, after a blank line if it belongs to another item than the text before."""
        before = self._last_places.get(kind, place)
        self._last_places[kind] = place
        return [Delta(kind, text if before == place else f"\n\n{text}")]


def _parts_in(items: Sequence[Event]) -> Iterator[Part]:
    gap = ""
    for item in items:
        match item:
            case {"type": "reasoning"} if thought := _thought(item):
                yield ThinkPart(kind="think", text=thought)
            case {"type": "message"} if text := _message_text(item):
                yield RespondPart(kind="respond", text=gap + text)
                gap = "\n\n"
            case {"type": "function_call", "call_id": str(call_id), "name": str(name)}:
                args = arguments_of(join_pieces([item.get("arguments") or ""]))
                yield CallPart(kind="call", id=join_pieces([call_id]), name=join_pieces([name]), args=args)


def _thought(item: Event) -> str:
    pieces = [*(item.get("summary") or []), *(item.get("content") or [])]
    return "\n\n".join(join_pieces([piece["text"]]) for piece in pieces if piece.get("text"))


def _message_text(item: Event) -> str:
    pieces = item.get("content") or []
    return join_pieces(piece.get("text") or piece.get("refusal") or "" for piece in pieces)


def _check_is_cut(end: Event) -> None:
    """Raise `ModelError` unless the response ended early at a limit of its length."""
    reason = name_of((end.get("incomplete_details") or {}).get("reason"))
    if not reason or not is_cut(reason, vendor="OpenAI"):
        raise unclear_answer_error("OpenAI ended its answer early and does not say why", vendor="OpenAI")


def _raise_refusal(items: Sequence[Event], parts: Sequence[Part]) -> None:
    """Raise `ModelError` if the answer is only a refusal."""
    pieces = [piece for item in items if item.get("type") == "message" for piece in item.get("content") or []]
    refusals = [piece["refusal"] for piece in pieces if piece.get("refusal")]
    if refusals and len(refusals) == len(pieces) and not any(isinstance(part, CallPart) for part in parts):
        raise ModelError("refusal", f"it says “{redact(' '.join(refusals))}”")


def _stop(parts: Sequence[Part], *, is_cut: bool) -> StopReason:
    if is_cut:
        return "max_tokens"
    return "tool_calls" if any(isinstance(part, CallPart) for part in parts) else "end_turn"


def _usage(fields: Mapping[str, object]) -> Usage | None:
    input_details, output_details = (
        counts_of(fields.get("input_tokens_details")),
        counts_of(fields.get("output_tokens_details")),
    )
    try:
        return Usage(
            input_tokens=count_of(fields, "input_tokens"),
            output_tokens=count_of(fields, "output_tokens"),
            cached_tokens=count_or_zero(input_details, "cached_tokens"),
            cache_write_tokens=count_or_zero(input_details, "cache_write_tokens"),
            reasoning_tokens=count_or_zero(output_details, "reasoning_tokens"),
        )
    except ValueError:
        return None  # missing or invalid counts are no reason to retry


def _state(model: str, items: list[Event], parts: Sequence[Part]) -> ProviderState | None:
    if any(item.get("type") == "reasoning" and not item.get("encrypted_content") for item in items):
        return None
    if not _calls_in(items) <= {part.id for part in parts if isinstance(part, CallPart)} | _answered_in(items):
        return None
    invalid = {part.id: part for part in parts if isinstance(part, CallPart) and isinstance(part.args, str)}
    # Strict servers parse the arguments of earlier calls, and would refuse every later request.
    items = [
        {**item, "arguments": arguments_json(invalid[item["call_id"]])} if item.get("call_id") in invalid else item
        for item in items
    ]
    try:
        to_json(items)
    except PydanticSerializationError:  # a lone surrogate, which can't be stored
        return None
    return ProviderState(api=API, model=model, items=items)


def _calls_in(items: Sequence[Event]) -> set[object]:
    """Return the ids of all items that need an output, including unknown kinds."""
    kinds = [(str(item.get("type")), item) for item in items]
    calls = {item["call_id"] for kind, item in kinds if item.get("call_id") and not kind.endswith("_output")}
    return calls | {item.get("id") for kind, item in kinds if kind == "mcp_approval_request"}


def _answered_in(items: Sequence[Event]) -> set[object]:
    """Return the ids of the calls whose output is among the items, since the vendor has run them itself."""
    outputs = [item for item in items if str(item.get("type")).endswith("_output")]
    return {item.get("call_id") or item.get("id") for item in outputs}
