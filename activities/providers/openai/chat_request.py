"""Encoding a request for an endpoint with OpenAI's Chat Completions (AGT-3, AGT-4). Pure.

Behind such endpoints are chat templates, and many accept only what their model was trained on: a user speaks first,
nobody speaks twice in a row, the assistant speaks after tool results, ids of calls have nine letters and digits,
arguments of calls are JSON, no text is blank. So an assistant's text and the notes behind it become one message, a
user's message is put before a conversation that begins with the assistant (`opened`), and an assistant's one before a
user's that would follow results (`_BEFORE_USER`). A user never speaks twice in a row in a request (CTX-17).

Images and PDFs follow the text of their message. Tool messages may have only text here, so what a step's results have
of them follows in a user's message after all results. Other attachments are text by now
(`request_encoding.py`).

What an answer had besides text and calls goes back with it to the same model: thinking, which some servers require
(`reasoning_content`), and signatures of calls. So do ids of calls that say something (`is_telling`). Newer Gemini
models refuse a step without its signature, which is gone after an eviction or a change of models: they take
`NO_SIGNATURE` instead. Fields that the endpoint refuses are omitted from then on, and fields that it requires by name
are added (`refused_parts`).
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from turnkeeper.activities.providers.request_encoding import (
    Block,
    CallIds,
    Medium,
    data_url,
    description_of,
    media_of,
    opened,
    own_items,
    pdf_name,
    plain_schema,
    result_text,
    sendable_name,
    short_id,
)
from turnkeeper.activities.providers.text_protocol import STOP_SEQUENCES, conversation_text, system_text
from turnkeeper.models.transcript.attachments import ImageAttachment
from turnkeeper.models.transcript.model_call import CallPart, ModelMessage, ModelRequest, ToolSpec, supported_tools


def parameters_of(tool: ToolSpec) -> Block:
    """Return the schema of the tool's arguments in the form that OpenAI accepts: an object with properties.

    >>> parameters_of(ToolSpec(name="now", input_schema={"anyOf": [{"required": ["a"]}]}))
    {'type': 'object', 'properties': {}, 'required': ['a']}
    """
    return {"type": "object", "properties": {}, **plain_schema(tool)}


def arguments_json(call: CallPart) -> str:
    r"""Return the call's arguments as the text of a JSON object.

    If the model wrote something else, it should see what it wrote. But chat templates parse arguments as JSON, and an
    invalid one would make every later request fail.

    >>> arguments_json(CallPart(kind="call", id="c", name="look", args={"at": "é"}))
    '{"at": "é"}'
    >>> arguments_json(CallPart(kind="call", id="c", name="look", args='{"at": '))
    '{"invalid_json": "{\\"at\\": "}'
    """
    args = {"invalid_json": call.args} if isinstance(call.args, str) else call.args
    return json.dumps(args, ensure_ascii=False)


API = "openai.chat"
"""The name of this API in `ProviderState`. Its items: the other fields of the message besides text and calls, then
those of each call. The message's `content` is what came before the text: thinking, with its tags."""

REQUIRABLE = {"reasoning_content": " ", "content": ""}
"""Fields that endpoints may require in every assistant message, and their value where it has none: after a change of
models, in a new segment, in a step without thinking or text. Some servers treat "" as missing thinking."""

NO_SIGNATURE = "skip_thought_signature_validator"
"""A placeholder that Google accepts as the signature of a step's first call."""

_NEEDS_SIGNATURES = re.compile(r"gemini-(?![12]\b)")
_TELLING_ID = re.compile(r"functions\.[\w-]+:\d+|.{65,}", re.DOTALL)

_BEFORE_USER = {"tool": "(I have the results.)", "user": "(No answer.)"}
"""The assistant's text between a user's message and what it may not follow directly, by the role of that."""

REASONING_TOKENS = 7_000
"""Extra tokens for reasoning in an answer of limited length, since these APIs count it. Many models accept at most
8,192 tokens in total."""


def encode(
    request: ModelRequest, *, name: str, without: Collection[str] = frozenset(), required: Collection[str] = frozenset()
) -> Block:
    """Return the body for the model `name`; its messages have no fields `without`, and all fields `required`.

    >>> request = ModelRequest.model_validate({"head": {}, "messages": [{"role": "user", "content": "Hi"}]})
    >>> encode(request, name="qwen3")["messages"]
    [{'role': 'user', 'content': 'Hi'}]
    """
    head = request.head
    body = _body(name, head.max_tokens)
    if head.tools:
        body["tools"] = [_tool(tool) for tool in supported_tools(head.tools)]
    system_messages: list[JsonValue] = [{"role": "system", "content": head.system}] if head.system.strip() else []
    required_fields = {key: value for key, value in REQUIRABLE.items() if key in required}
    return body | {"messages": [*system_messages, *_messages(request.messages, name, without, required_fields)]}


def encode_text(request: ModelRequest, *, name: str) -> Block:
    """Return the body for the model `name` by the protocol `text` (CTX-13)."""
    body = _body(name, request.head.max_tokens)
    body["stop"] = list[JsonValue](STOP_SEQUENCES)
    system_messages: list[JsonValue] = [
        {"role": "system", "content": system_text(request.head, supported_tools(request.head.tools))},
        {"role": "user", "content": conversation_text(request.messages)},
    ]
    return body | {"messages": system_messages}


def tool_names(request: ModelRequest) -> list[str]:
    """Return the names of the tools as `encode` offers them."""
    return [sendable_name(tool.name) for tool in supported_tools(request.head.tools)]


def fields_in(body: Block) -> frozenset[str]:
    """Return the names of optional fields in a request's messages and calls."""
    system_messages = _assistants_in(body)
    calls = [call for message in system_messages for call in message.get("tool_calls", [])]
    return frozenset(key for block in (*system_messages, *calls) for key in block) - _NEEDED


def missing_in(body: Block) -> frozenset[str]:
    """Return the names of fields that an endpoint may require and some message lacks."""
    return frozenset(key for message in _assistants_in(body) for key in REQUIRABLE if message.get(key) is None)


def is_telling(call_id: str) -> bool:
    """Return whether a call's id must go back to its model as it is.

    It has a form that the model was trained on, or is so long that the server keeps something in it.

    >>> is_telling("functions.now:0"), is_telling("call_1"), is_telling(f"call_1__thought__{'c2ln' * 20}")
    (True, False, True)
    """
    return _TELLING_ID.fullmatch(call_id) is not None


def _assistants_in(body: Block) -> list[dict[str, Any]]:
    messages: Any = body["messages"]
    return [message for message in messages if message["role"] == "assistant"]


_NEEDED = frozenset({"role", "content", "tool_calls", "type", "id", "function"})


def _body(name: str, max_tokens: int | None) -> Block:
    body: Block = {"model": name, "stream": True, "stream_options": {"include_usage": True}}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens + REASONING_TOKENS
    return body


def _tool(tool: ToolSpec) -> Block:
    function: Block = {"name": sendable_name(tool.name), "parameters": parameters_of(tool)}
    if description := description_of(tool):
        function["description"] = description
    return {"type": "function", "function": function}


# ---- messages


def _messages(
    messages: Sequence[ModelMessage], name: str, without: Collection[str], required_fields: Mapping[str, JsonValue]
) -> list[Block]:
    encoded = _Messages(required_fields)
    of_results: list[JsonValue] = []
    ids = CallIds(short_id)
    needs_signatures = _NEEDS_SIGNATURES.search(name) is not None
    for message in opened(messages):
        block = _message(message, ids, _beyond(message, name, without))
        if of_results and message.role != "tool":
            if message.role == "user":  # a steering prompt
                block = {**block, "content": [*of_results, *_parts(block["content"])]}
            else:
                encoded.append({"role": "user", "content": of_results})
            of_results = []
        if message.role == "tool" and message.attachments:
            source = f"From the result of {message.tool_name or 'the tool'}, call {block['tool_call_id']}:"
            of_results += [_text_part(source), *map(_medium, media_of(message))]
        needs_signatures |= _is_signed(block)
        if needs_signatures and "extra_content" not in without:
            block = _with_signature(block)
        encoded.append(block)
    if of_results:
        encoded.append({"role": "user", "content": of_results})
    return encoded.blocks


class _Messages:
    """The encoded messages so far. `required_fields` are put into each of the assistant that lacks them."""

    def __init__(self, required_fields: Mapping[str, JsonValue]) -> None:
        self.blocks: list[Block] = []
        self._required_fields = required_fields

    def append(self, block: Block) -> None:
        earlier = self.blocks[-1] if self.blocks else {"role": ""}
        if block["role"] == "assistant":
            if not block["content"] and "tool_calls" not in block:
                return
            block |= {key: value for key, value in self._required_fields.items() if block.get(key) is None}
            if earlier["role"] == "assistant" and "tool_calls" not in earlier:  # an answer, and a note behind it
                texts = [text for text in (self.blocks.pop()["content"], block["content"]) if text]
                block["content"] = "\n\n".join(map(str, texts))
        elif block["role"] == "user" and (text := _BEFORE_USER.get(str(earlier["role"]))):
            self.append({"role": "assistant", "content": text})
        self.blocks.append(block)


def _message(message: ModelMessage, ids: CallIds, all_beyond: list[Block]) -> Block:
    if message.role == "user":
        media = list(map(_medium, media_of(message)))
        return {"role": "user", "content": [*_parts(message.content), *media] if media else message.content}
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": ids.id_for_result(message), "content": result_text(message)}
    beyond, *beyond_calls = all_beyond
    text = f"{beyond.get('content', '')}{message.content}"
    encoded: Block = {"role": "assistant", **beyond, "content": text if text.strip() else None}
    calls: list[JsonValue] = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": sendable_name(call.name), "arguments": arguments_json(call)},
            **beyond_call,
        }
        for call, call_id, beyond_call in zip(
            message.tool_calls,
            ids.new_ids_for(message, keeps=is_telling if beyond_calls else None),
            beyond_calls or [{}] * len(message.tool_calls),
            strict=True,
        )
    ]
    return encoded | ({"tool_calls": calls} if calls else {})


def _is_signed(block: Block) -> bool:
    calls: Any = block.get("tool_calls", [])
    return any("thought_signature" in str(call.get("extra_content")) for call in calls)


def _with_signature(block: Block) -> Block:
    """Return a message with calls such that its first call has a signature, if none has one."""
    calls: Any = block.get("tool_calls", [])
    if not calls or _is_signed(block):
        return block
    signature: Block = {"extra_content": {"google": {"thought_signature": NO_SIGNATURE}}}
    return {**block, "tool_calls": [{**calls[0], **signature}, *calls[1:]]}


def _beyond(message: ModelMessage, name: str, without: Collection[str]) -> list[Block]:
    """Return the other fields of the answer: of the message, then of each call; none for another model."""
    own = own_items(message, API, call_id_of=_call_id)
    if own is None or message.state is None or message.state.model != name:
        return [{}]
    omitted_keys = (_NEEDED - {"content"}) | set(without)
    return [{key: value for key, value in item.items() if key not in omitted_keys} for item in own]


def _call_id(item: Block) -> str | None:
    return str(item.get("id")) if item.get("type") == "function" else None


def _parts(content: JsonValue) -> list[JsonValue]:
    """Return a message's content as parts; none for a blank text."""
    if isinstance(content, list):
        return content
    return [_text_part(str(content))] if str(content).strip() else []


def _text_part(text: str) -> Block:
    return {"type": "text", "text": text}


def _medium(medium: Medium) -> JsonValue:
    if isinstance(medium, ImageAttachment):
        return {"type": "image_url", "image_url": {"url": data_url(medium)}}
    return {"type": "file", "file": {"filename": pdf_name(medium), "file_data": data_url(medium)}}
