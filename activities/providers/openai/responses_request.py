"""Encoding a request for OpenAI's Responses API (AGT-3, AGT-4). Pure: the same request gives the same bytes.

OpenAI stores nothing (`store: false`): every request has the whole conversation, and what was sent once is sent again
the same way, since both caches and reasoning are bound to the prefix.

- A step of this API goes back item for item (`ProviderState.items`): reasoning with its encrypted content, messages
  with their `phase`, calls, and unknown kinds of items. Any other is encoded again from its text and calls, without
  reasoning.
- The status of a tool call is in the text of its result, since the API has no field for it.
- Images and PDFs follow the text of their message or of their tool's result. Other attachments are text by now
  (`attachments/visible_request.py`).
- A model's name doesn't say which parameters it accepts: only reasoning models show thinking, some only to verified
  organisations, and others reject the parameters of reasoning. So every request has all of them, and what a model
  refuses is left out (`refused_parts`).
"""

import hashlib
from collections.abc import Iterator

from pydantic import JsonValue

from turnkeeper.activities.providers.attachments.visible_request import Medium, data_url, media_of, pdf_name
from turnkeeper.activities.providers.openai.tools import arguments_json, parameters_of
from turnkeeper.activities.providers.request_encoding import Block, CallIds, own_items, sendable_name
from turnkeeper.activities.providers.result_text import result_text
from turnkeeper.activities.providers.tool_schemas import description_of
from turnkeeper.models.transcript.attachments import ImageAttachment
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, ToolSpec, supported_tools

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
        "prompt_cache_key": _cache_key(session_id),
        "reasoning": reasoning,
    }
    return body | ({"parallel_tool_calls": True} if head.tools else {})


def _cache_key(session_id: str) -> str:
    """Return the key by which OpenAI routes the requests of a session to where their prefix is cached."""
    if len(session_id) <= MAX_CACHE_KEY_CHARS:
        return session_id
    return hashlib.sha256(session_id.encode()).hexdigest()


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
    else:
        yield from _items_anew(message, ids)


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


def _items_anew(message: ModelMessage, ids: CallIds) -> Iterator[Block]:
    """Encode an assistant's message from its parts: it is from another API or an earlier segment."""
    if message.content.strip():
        yield {"role": "assistant", "content": message.content}
    for call, call_id in zip(message.tool_calls, ids.new_ids_for(message), strict=True):
        arguments = arguments_json(call)
        yield {"type": "function_call", "call_id": call_id, "name": sendable_name(call.name), "arguments": arguments}


def _call_id(item: Block) -> str | None:
    call_id = item.get("call_id")
    return call_id if item.get("type") == "function_call" and isinstance(call_id, str) else None


def _without_blank_texts(items: list[Block]) -> list[Block]:
    """Return the items without messages of blank text, which some models behind a proxy reject.

    Reasoning must be followed by what it led to, so a message that is all of that stays.
    """
    followed = zip([None, *items], items, [*items[1:], None], strict=False)
    return [item for earlier, item, later in followed if not _is_blank(item) or _is_all_of_it(earlier, later)]


def _is_blank(item: Block) -> bool:
    parts = item.get("content")
    return item.get("type") == "message" and isinstance(parts, list) and not any(map(_visible_text, parts))


def _visible_text(part: JsonValue) -> bool:
    return not isinstance(part, dict) or part.get("type") != "output_text" or bool(str(part.get("text", "")).strip())


def _is_all_of_it(earlier: Block | None, later: Block | None) -> bool:
    is_behind_reasoning = earlier is not None and earlier.get("type") == "reasoning"
    return is_behind_reasoning and (later is None or later.get("type") == "reasoning")


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
