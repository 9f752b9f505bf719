"""`openai:` models, through OpenAI's Responses API (AGT-4).

**Reading** (AGT-3, AGT-10). Deltas are only published. The answer is made of the items of `response.output_item.done`,
in the order of the output, or of those in the last event if there are more. The *parts* are what we understand of them:
summaries of reasoning, text, calls. The *items* themselves are stored for the vendor, as they came.

An answer is complete with `response.completed`, and cut with `response.incomplete` if that was a length limit; the
stream of any other is a failure. The statuses of the response and of its items must agree: half a call is not run, and
half a text is no answer.

An answer that could not go back has no state, and is encoded again from its parts: one with reasoning that came without
its encrypted content, since the vendor doesn't store it, one with a call that gets no output from us, and one with a
call whose arguments are not a JSON object.

**Encoding** (AGT-3, AGT-4) is pure: the same request gives the same bytes. OpenAI stores nothing (`store: false`):
every request has the whole conversation, and what was sent once is sent again the same way, since both caches and
reasoning are bound to the prefix.

- A step of this API goes back item for item (`ProviderState.items`): reasoning with its encrypted content, messages
  with their `phase`, calls, and unknown kinds of items. Any other is encoded again from its text and calls, without
  reasoning.
- The status of a tool call is in the text of its result, since the API has no field for it.
- Images and PDFs follow the text of their message or of their tool's result. Other attachments are text by now
  (`request_encoding.py`).
- A model's name doesn't say which parameters it accepts: only reasoning models show thinking, some only to verified
  organisations, and others reject the parameters of reasoning. So every request has all of them, and what a model
  refuses is left out (`refused_parts`).
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_json

from turnkeeper.activities.providers.answer_fields import (
    EARLY_END,
    arguments_of,
    count_of,
    count_or_zero,
    counts_of,
    is_length_limit,
    join_pieces,
    name_of,
    unclear_answer_error,
)
from turnkeeper.activities.providers.openai.chat_request import arguments_json, parameters_of
from turnkeeper.activities.providers.protocol import CallInfo, Delta, ModelError
from turnkeeper.activities.providers.provider import Vendor
from turnkeeper.activities.providers.redaction import redact
from turnkeeper.activities.providers.refused_parts import Body, Parts, RefusableApi
from turnkeeper.activities.providers.request_encoding import (
    FULL,
    TEXT_ONLY,
    Block,
    CallIds,
    Medium,
    Sight,
    data_url,
    description_of,
    media_of,
    own_items,
    pdf_name,
    result_text,
    sendable_name,
)
from turnkeeper.activities.providers.transport import Event
from turnkeeper.activities.providers.vendor_provider import AnswerAccumulator, VendorProvider
from turnkeeper.models.transcript.attachments import ImageAttachment
from turnkeeper.models.transcript.conversation import Usage
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    Part,
    ProviderState,
    RespondPart,
    ThinkPart,
    ToolSpec,
    supported_tools,
)

API = "openai.responses"
"""The name of this API in `ProviderState`."""

MIN_OUTPUT_TOKENS = 16
"""The API's minimum of `max_output_tokens`."""

MAX_CACHE_KEY_CHARS = 64
"""The API's maximum length of `prompt_cache_key`."""

REASONING_TOKENS = 8_000
"""Extra tokens for reasoning in an answer of limited length."""


def encode(request: ModelRequest, *, name: str, session_id: str) -> dict[str, JsonValue]:
    """Return the body of the request.

    >>> from turnkeeper.models.transcript.model_call import RequestHead
    >>> request = ModelRequest(head=RequestHead(system="Be brief."), messages=[ModelMessage(role="user", content="Hi")])
    >>> body = encode(request, name="gpt-5.5", session_id="s1")
    >>> body["input"], body["reasoning"]
    ([{'role': 'user', 'content': 'Hi'}], {'summary': 'auto'})
    """
    head = request.head
    ids = CallIds()
    items: list[JsonValue] = [item for message in request.messages for item in _items(message, ids)]
    body: dict[str, JsonValue] = {"model": name, "store": False, "stream": True, "input": items}
    if head.system:
        body["instructions"] = head.system
    if head.tools:
        body["tools"] = [_tool(tool) for tool in supported_tools(head.tools)]
    if head.max_tokens is not None:
        # Reasoning counts as output, so it gets extra room.
        body["max_output_tokens"] = max(MIN_OUTPUT_TOKENS, head.max_tokens) + REASONING_TOKENS
    # Low effort if the length of the answer is limited.
    reasoning: Block = {"summary": "auto", **({"effort": "low"} if head.max_tokens is not None else {})}
    body |= {
        "include": ["reasoning.encrypted_content"],
        # By it OpenAI routes the requests of a session to where their prefix is cached.
        "prompt_cache_key": session_id
        if len(session_id) <= MAX_CACHE_KEY_CHARS
        else hashlib.sha256(session_id.encode()).hexdigest(),
        "reasoning": reasoning,
    }
    return body | ({"parallel_tool_calls": True} if head.tools else {})


def _tool(tool: ToolSpec) -> Block:
    return {
        "type": "function",
        "name": sendable_name(tool.name),
        "description": description_of(tool),
        "parameters": parameters_of(tool),
        # Strict mode supports only a part of JSON Schema, so it would reject foreign tools' schemas.
        "strict": False,
    }


def _items(message: ModelMessage, ids: CallIds) -> Iterator[Block]:
    if message.role == "user":
        yield {"role": "user", "content": _content(message.content, message)}
    elif message.role == "tool":
        output = _content(result_text(message), message)
        yield {"type": "function_call_output", "call_id": ids.id_for_result(message), "output": output}
    elif (own := own_items(message, API, call_id_of=_call_id)) and ids.reserve_own_ids(message):
        yield from map(_sendable, _without_blank_texts(own))
    else:  # from another API or an earlier segment: encoded again from its parts
        if message.content.strip():
            yield {"role": "assistant", "content": message.content}
        for call, call_id in zip(message.tool_calls, ids.new_ids_for(message), strict=True):
            called: Block = {"name": sendable_name(call.name), "arguments": arguments_json(call)}
            yield {"type": "function_call", "call_id": call_id, **called}


def _content(text: str, message: ModelMessage) -> JsonValue:
    """Return the text, or a list with it and the message's images and PDFs."""
    media: list[JsonValue] = [_medium(medium) for medium in media_of(message)]
    if not media:
        return text
    return [{"type": "input_text", "text": text}, *media] if text.strip() else media


def _medium(medium: Medium) -> Block:
    if isinstance(medium, ImageAttachment):
        return {"type": "input_image", "image_url": data_url(medium), "detail": "auto"}
    return {"type": "input_file", "filename": pdf_name(medium), "file_data": data_url(medium)}


def _call_id(item: Block) -> str | None:
    call_id = item.get("call_id")
    return call_id if item.get("type") == "function_call" and isinstance(call_id, str) else None


def _without_blank_texts(items: list[Block]) -> list[Block]:
    """Return the items without messages of blank text, which some models behind a proxy reject.

    Reasoning must be followed by what it led to, so a message that is all of that stays.
    """
    kinds = [None, *(item.get("type") for item in items), "reasoning"]
    return [
        item
        for item, earlier, later in zip(items, kinds, kinds[2:], strict=False)
        if not _is_blank(item) or earlier == later == "reasoning"
    ]


def _is_blank(item: Block) -> bool:
    parts = item.get("content")
    return (
        item.get("type") == "message"
        and isinstance(parts, list)
        and all(
            isinstance(part, dict) and part.get("type") == "output_text" and not str(part.get("text", "")).strip()
            for part in parts
        )
    )


def _sendable(item: Block) -> Block:
    """Return an item as it came, without fields that the API sends but doesn't accept.

    It requires the `status` of a message, but not that of reasoning and calls. Servers that copy the API send empty
    arguments, and may not accept them.

    >>> _sendable({"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed", "created_by": "x"})
    {'type': 'reasoning', 'id': 'rs_1', 'summary': []}
    """
    omitted_keys = {"created_by"} | ({"status"} if item.get("type") in ("reasoning", "function_call") else set())
    sendable: Block = {key: value for key, value in item.items() if key not in omitted_keys and value is not None}
    if item.get("arguments") == "":
        sendable["arguments"] = "{}"
    return sendable


_BLIND = re.compile(
    r"(?:ft:)?(?:gpt-3\.5|gpt-4(?:-32k|-turbo-preview)?(?:-\d{4})?(?:-preview)?(?:$|:)|o1-(?:mini|preview)|o3-mini"
    r"|gpt-oss|(?:text-)?(?:davinci|babbage|curie|ada)\b)"
)


def sight_of(name: str) -> Sight:
    """Return which attachments a model of OpenAI's own API reads. Models that see images read PDFs too.

    >>> [sight_of(name).images for name in ("gpt-5.5", "gpt-4o-mini", "gpt-4.1", "gpt-4-turbo", "o3")]
    [True, True, True, True, True]
    >>> [sight_of(name).images for name in ("gpt-4", "gpt-4-0613", "gpt-4-1106-preview", "gpt-3.5-turbo", "o3-mini")]
    [False, False, False, False, False]
    """
    return TEXT_ONLY if _BLIND.match(name) else FULL


_FAILED = ("response.failed", "response.cancelled")
_LAST = ("response.completed", "response.incomplete", *_FAILED)


class ResponsesAccumulator(AnswerAccumulator):
    """An answer while it arrives. With the last event it is complete, also if it is cut."""

    quiet_events = frozenset({"response.created", "response.queued", "response.in_progress"})

    def __init__(self, name: str) -> None:
        self._name = name
        self._items: dict[int, Event] = {}
        self._last_places: dict[str, tuple[int, int]] = {}
        self._started_items: set[int] = set()
        self._end: Event = {}
        self._used: Mapping[str, object] = {}
        self._is_cut = False

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
        return []

    def response(self, *, request_id: str | None) -> ModelResponse:
        end, is_cut = self._end, self._is_cut
        items = self._output_items()
        has_half = len(items) < len(self._started_items) or any(
            item.get("status") in ("incomplete", "in_progress") for item in items
        )
        if not is_cut and (name_of(end.get("status")) not in ("completed", "") or has_half):  # some servers have none
            raise ModelError("connection", "OpenAI's answer broke off before its end", lasting=EARLY_END)
        if is_cut:
            reason = name_of((end.get("incomplete_details") or {}).get("reason"))
            if not reason or not is_length_limit(reason, vendor="OpenAI"):
                raise unclear_answer_error("OpenAI ended its answer early and does not say why", vendor="OpenAI")
        # Calls of an answer that was cut may be cut too. They get no results, so they could not go back.
        parts = [part for part in _parts_in(items) if not (is_cut and isinstance(part, CallPart))]
        has_calls = any(isinstance(part, CallPart) for part in parts)
        pieces = [piece for item in items if item.get("type") == "message" for piece in item.get("content") or []]
        refusals = [piece["refusal"] for piece in pieces if piece.get("refusal")]
        if refusals and len(refusals) == len(pieces) and not has_calls:
            raise ModelError("refusal", f"it says “{redact(' '.join(refusals))}”")
        return ModelResponse(
            parts=parts,
            stop="max_tokens" if is_cut else "tool_calls" if has_calls else "end_turn",
            usage=_usage(counts_of(end.get("usage"))),
            model=name_of(end.get("model")) or self._name,
            request_id=request_id or name_of(end.get("id")) or None,
            state=None if is_cut else _state(self._name, items, parts),
        )

    @property
    def usage_so_far(self) -> Usage | None:
        return _usage(self._used)

    def arguments_in(self, event: Event) -> Iterable[str]:
        match event:
            case {"type": "response.function_call_arguments.delta", "delta": str(text)}:
                yield text

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
            case {"type": "message"} if text := join_pieces(
                piece.get("text") or piece.get("refusal") or "" for piece in item.get("content") or []
            ):
                yield RespondPart(kind="respond", text=gap + text)
                gap = "\n\n"
            case {"type": "function_call", "call_id": str(call_id), "name": str(name)}:
                args = arguments_of(join_pieces([item.get("arguments") or ""]))
                yield CallPart(kind="call", id=join_pieces([call_id]), name=join_pieces([name]), args=args)


def _thought(item: Event) -> str:
    pieces = [*(item.get("summary") or []), *(item.get("content") or [])]
    return "\n\n".join(join_pieces([piece["text"]]) for piece in pieces if piece.get("text"))


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
    # The vendor has run some calls itself: their output is among the items.
    answered = {item.get("call_id") or item.get("id") for item in items if str(item.get("type")).endswith("_output")}
    if not _calls_in(items) <= {part.id for part in parts if isinstance(part, CallPart)} | answered:
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


class OpenAIProvider(VendorProvider):
    """The models behind `openai:`."""

    vendor = Vendor(
        name="openai",
        title="OpenAI",
        example="gpt-5.5",
        key="OPENAI_API_KEY",
        credentials=("OPENAI_API_KEY",),
        package="openai",
        prices="openai",
        no_path_advice=" (one without /responses is for 'openai-chat:')",
    )
    limits_tools = True
    path = "/responses"
    refusable = RefusableApi(
        sight_of=sight_of,
        bounds=("max_output_tokens",),
        # Without `store`, OpenAI would store the conversation.
        only_named=frozenset({"store", "strict", "detail"}),
        in_blocks=frozenset({"strict", "detail"}),
    )

    def client(self, sdk: ModuleType, http: Any) -> Any:
        client = sdk.AsyncOpenAI(**self.address, http_client=http, max_retries=0)
        if not client.api_key:
            raise self.vendor.no_key_error()
        return client

    def encode(self, request: ModelRequest, name: str, info: CallInfo, parts: Parts) -> Body:
        return encode(request, name=name, session_id=info.session_id)

    def accumulator(self, name: str, request: ModelRequest, info: CallInfo) -> AnswerAccumulator:
        return ResponsesAccumulator(name)
