"""`anthropic:` models, through Anthropic's Messages API (AGT-4).

**Reading** (AGT-3, AGT-10). The stream is one message: `message_start`, then the blocks one after the other, each a
start, deltas and a stop, then `message_delta` with the stop reason and usage, then `message_stop`. Two things are made
of it. The *parts* are what we understand: thinking, text, calls. The *items* are the blocks as they came, for the
vendor itself: unknown kinds of blocks and deltas are assembled generically, and go back with the others.

Only a complete message is an answer, and only one that stopped by itself has calls: arguments that were cut at the
length limit may look complete. Some servers say `end_turn` for a message with calls, or use reasons of other APIs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Literal, cast

from pydantic import JsonValue

from turnkeeper.activities.providers.answer_fields import (
    FieldAccumulator,
    count_of,
    count_or_zero,
    counts_of,
    is_length_limit,
    join_pieces,
    name_of,
    objects_in,
    unclear_answer_error,
)
from turnkeeper.activities.providers.anthropic.request import API, encode, sendable_input
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Vendor
from turnkeeper.activities.providers.redaction import redact
from turnkeeper.activities.providers.refused_parts import Body, Parts, RefusableApi
from turnkeeper.activities.providers.request_encoding import FULL, TEXT_ONLY, Block, Sight
from turnkeeper.activities.providers.transport import Event
from turnkeeper.activities.providers.vendor_provider import AnswerAccumulator, VendorProvider
from turnkeeper.models.texts import encodable
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

_SHOWN_AS: dict[str, Literal["think", "respond"]] = {"thinking": "think", "text": "respond"}


_BLIND = re.compile(r".*claude-(?:v?[12]\b|instant)")


def sight_of(name: str) -> Sight:
    """Return which attachments a model reads: all Claude models since 3 read images and PDFs.

    >>> sight_of("claude-opus-4-5").images, sight_of("anthropic.claude-v2:1").images
    (True, False)
    """
    return TEXT_ONLY if _BLIND.match(name) else FULL


class AnthropicAccumulator(AnswerAccumulator):
    """An answer while it arrives."""

    def __init__(self, name: str) -> None:
        self._model = name
        self._message_id = ""
        self._blocks: dict[int, _Block] = {}
        self._stop: dict[str, Any] = {}
        self._counts: dict[str, object] = {}

    def add(self, event: Event) -> list[Delta]:
        """Add the next event, and return its deltas. Unknown kinds are ignored."""
        match event["type"]:
            case "message_start":
                message = event["message"]
                self._model, self._message_id = name_of(message.get("model")) or self._model, name_of(message.get("id"))
                # Its output count is only that of the beginning.
                self._count({**counts_of(message.get("usage")), "output_tokens": None})
            case "content_block_start":
                block = self._blocks[event["index"]] = _Block(event["content_block"])
                return list(block.initial_deltas())
            case "content_block_delta":
                return list(self._blocks[event["index"]].add(event["delta"]))
            case "message_delta":
                self._stop = event["delta"]
                self._count(counts_of(event.get("usage")))
            case "message_stop":
                self.is_complete = True
        return []

    def response(self, *, request_id: str | None) -> ModelResponse:
        """Return the answer, once it is complete. Raises `ModelError` if it is not one."""
        stop = self._stop_reason()
        blocks = list(self._blocks.values())
        parts = [part for block in blocks if (part := block.part()) is not None]
        if stop != "tool_calls":
            parts = [part for part in parts if not isinstance(part, CallPart)]
        return ModelResponse(
            parts=parts,
            stop=stop,
            usage=_usage(self._counts),
            model=self._model,
            request_id=request_id or self._message_id or None,
            state=self._state(stop, blocks),
        )

    @property
    def usage_so_far(self) -> Usage | None:
        return _usage({"output_tokens": 0, **self._counts})

    def arguments_in(self, event: Event) -> Iterable[str]:
        match event:
            case {"delta": {"partial_json": str(text)}}:
                yield text

    def _count(self, usage: Mapping[str, object]) -> None:
        # Counts are totals, so a later one replaces an earlier one.
        self._counts |= {key: count for key, count in usage.items() if count is not None}

    def _has_calls(self) -> bool:
        return any(block.kind == "tool_use" for block in self._blocks.values())

    def _stop_reason(self) -> StopReason:
        match self._stop.get("stop_reason"):
            case "refusal":
                raise ModelError("refusal", _refusal(self._stop.get("stop_details")))
            case "pause_turn":
                # For tools that run at the vendor. We offer none, and a retry would pause again.
                raise ModelError("bad_request", "the model paused for tools of its provider, which are not used here")
            case str(reason) if reason:
                if is_length_limit(reason, vendor="Anthropic"):
                    return "max_tokens"
                return "tool_calls" if self._has_calls() else "end_turn"
            case _:
                raise unclear_answer_error("Anthropic ended its answer without a reason to stop", vendor="Anthropic")

    def _state(self, stop: StopReason, blocks: list["_Block"]) -> ProviderState | None:
        """Return the blocks for the vendor itself, if it will accept them: complete, and every call with a result."""
        has_waiting_calls = stop != "tool_calls" and (self._has_calls() or self._stop["stop_reason"] == "tool_use")
        items = [block.item() for block in blocks]
        if not items or stop == "max_tokens" or has_waiting_calls or _has_unknown_calls(items):
            return None
        return ProviderState(api=API, model=self._model, items=list[JsonValue](items))


def _has_unknown_calls(items: list[Block]) -> bool:
    """Return whether there are calls of an unknown kind without a result from the vendor: nobody else answers them."""
    answered_ids = {item.get("tool_use_id") for item in items}
    return any(
        str(item["type"]).endswith("_use") and item["type"] != "tool_use" and item.get("id") not in answered_ids
        for item in items
    )


class _Block:
    def __init__(self, start: Block) -> None:
        self._fields = FieldAccumulator(start)
        self._arguments: list[str] = []
        self.kind = str(start["type"])
        self._start = start

    def initial_deltas(self) -> Iterator[Delta]:
        """Yield the deltas of its beginning."""
        if self.kind == "tool_use":
            yield Delta(kind="call", text=str(self._start["name"]))
        yield from self._visible_deltas(self._start)

    def add(self, delta: Block) -> Iterator[Delta]:
        match delta:
            case {"type": "input_json_delta", "partial_json": str(text)}:
                self._arguments.append(text)
            case {"type": "citations_delta", "citation": citation}:
                self._fields.add("citations", [citation])
            case {"type": "signature_delta", "signature": signature}:
                self._fields.put("signature", signature)
            case _:
                # Fields that the block did not begin with, such as counts, belong to the stream and can't go back.
                for key in self._start.keys() & delta.keys() - {"type"}:
                    self._fields.add(key, delta[key])
        yield from self._visible_deltas(delta)

    def part(self) -> Part | None:
        """Return the part that we understand; `None` if there is none."""
        match self.kind:
            case "thinking" if (text := self._text("thinking")).strip():
                return ThinkPart(kind="think", text=text)
            case "text" if text := self._text("text"):
                return RespondPart(kind="respond", text=text)
            case "tool_use":
                return CallPart(kind="call", id=self._name("id"), name=self._name("name"), args=self._args())
        return None

    def item(self) -> Block:
        if self._arguments:
            self._fields.put("input", sendable_input(self._args()))
        return self._fields.fields()

    def _args(self) -> dict[str, JsonValue] | str:
        if self._arguments:
            args, *others = objects_in(self._arguments)
            return join_pieces(self._arguments) if others else args
        start_input = encodable(self._start.get("input"))
        return start_input if isinstance(start_input, dict) else {}

    def _text(self, key: str) -> str:
        return join_pieces([str(self._fields.get(key) or "")])

    def _name(self, key: str) -> str:
        return join_pieces([cast(str, self._fields.get(key))])  # raises `TypeError` if it is missing

    def _visible_deltas(self, fields: Block) -> Iterator[Delta]:
        kind, text = _SHOWN_AS.get(self.kind), fields.get(self.kind)
        if kind and text:
            yield Delta(kind=kind, text=str(text))


def _usage(counts: Mapping[str, object]) -> Usage | None:
    """Return the usage. Anthropic's `input_tokens` excludes tokens that were read from or written to the cache.

    >>> _usage({"input_tokens": 5, "cache_read_input_tokens": 90, "output_tokens": 7}).model_dump(exclude_defaults=True)
    {'input_tokens': 95, 'output_tokens': 7, 'cached_tokens': 90}
    """
    try:
        cache_read, cache_written = (
            count_or_zero(counts, "cache_read_input_tokens"),
            count_or_zero(counts, "cache_creation_input_tokens"),
        )
        return Usage(
            input_tokens=count_of(counts, "input_tokens") + cache_read + cache_written,
            output_tokens=count_of(counts, "output_tokens"),
            cached_tokens=cache_read,
            cache_write_tokens=cache_written,
            reasoning_tokens=count_or_zero(counts_of(counts.get("output_tokens_details")), "thinking_tokens"),
        )
    except ValueError:
        return None  # missing or invalid counts are no reason to retry


def _refusal(details: object) -> str:
    fields = details if isinstance(details, dict) else {}
    reason = fields.get("explanation") or fields.get("category")
    return f"Anthropic says “{redact(reason)}”" if isinstance(reason, str) else "Anthropic gives no reason"


class AnthropicProvider(VendorProvider):
    """Claude, and other models behind an endpoint with Anthropic's API."""

    vendor = Vendor(
        name="anthropic",
        title="Anthropic",
        example="claude-sonnet-5-5",
        key="ANTHROPIC_API_KEY",
        credentials=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"),
        package="anthropic",
        prices="anthropic",
    )
    path = "/v1/messages"
    refusable = RefusableApi(
        sight_of=sight_of,
        bounds=("max_tokens",),
        needed=frozenset({"max_tokens"}),
        in_blocks=frozenset({"cache_control", "title"}),
        wordings={
            "thinking": re.compile(
                r"(?:adaptive|extended|enabled) thinking|thinking\.type|budget_tokens", re.IGNORECASE
            ),
            "thinking.display": re.compile(r"thinking\.(?:\w+\.)?display"),
        },
    )

    def client(self, sdk: ModuleType, http: Any) -> Any:
        # The SDK's own tracing is off: tracing is configured in one place.
        client = sdk.AsyncAnthropic(**self.address, http_client=http, max_retries=0, open_telemetry=False)
        if not (client.api_key or client.auth_token or client.credentials):
            raise self.vendor.no_key_error()
        return client

    def encode(self, request: ModelRequest, name: str, info: CallInfo, parts: Parts) -> Body:
        return encode(request, name=name)

    def accumulator(self, name: str, request: ModelRequest, info: CallInfo) -> AnswerAccumulator:
        return AnthropicAccumulator(name)
