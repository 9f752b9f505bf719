"""How a request is written for OpenAI's Responses API (AGT-3, AGT-4). Pure: the same request, the same bytes.

Theory of operation. Nothing is kept at OpenAI (`store: false`): every request has the whole conversation in it, and
what has been sent once is sent again the same way, whatever follows it, since both caches and reasoning are bound to
the prefix.

- A step of this API goes back item for item (`ProviderState.items`): reasoning with its encrypted content, messages
  with their `phase`, calls, and items of kinds that are not known here. Any other is written anew from its text and its
  calls, without reasoning.
- How a tool call ended stands in the text of its result: the API has no field for it.
- Which parameters a model takes cannot be told from its name: thinking is shown by reasoning models alone, by some only
  to verified organisations, and models without reasoning refuse the parameters of reasoning. So every model is asked
  for everything, and what it refuses by name is left out (`refused_parameters.py`).
"""

import hashlib
from collections.abc import Collection, Iterator

from pydantic import JsonValue

from turnkeeper.activities.providers.openai.tools import arguments_json, description_of, parameters_of, supported_tools
from turnkeeper.activities.providers.request_encoding import Block, CallIds, own_items, sendable_name
from turnkeeper.activities.providers.result_text import result_text
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, RequestHead, ToolSpec

API = "openai.responses"
"""The name of this API in `ProviderState`."""

OPTIONAL = ("reasoning.summary", "reasoning.effort", "reasoning", "include", "parallel_tool_calls", "prompt_cache_key")
"""What of a request a model may refuse without harm."""

MIN_OUTPUT_TOKENS = 16
"""What the API takes at least for `max_output_tokens`."""

MAX_CACHE_KEY_CHARS = 64
"""Most characters that the API takes for `prompt_cache_key`."""

REASONING_TOKENS = 8_000
"""Most tokens for the reasoning before an answer whose length is bounded."""


def encode(
    request: ModelRequest, *, name: str, session_id: str, without: Collection[str] = frozenset()
) -> dict[str, JsonValue]:
    """Return the body of the request, leaving out the optional parameters that `without` names.

    >>> from turnkeeper.models.transcript.model_call import RequestHead
    >>> reasoning = ModelRequest(head=RequestHead(system="Be brief."), messages=[ModelMessage(role="user", content="Hi")])
    >>> body = encode(reasoning, name="gpt-5.5", session_id="s1", without=["include"])
    >>> body["input"], body["reasoning"], "include" in body
    ([{'role': 'user', 'content': 'Hi'}], {'summary': 'auto'}, False)
    """
    head = request.head
    reasoning = _reasoning(head, without)
    ids = CallIds()
    items: list[JsonValue] = [item for message in request.messages for item in _items(message, ids)]
    body: dict[str, JsonValue] = {"model": name, "store": False, "stream": True, "input": items}
    if head.system:
        body["instructions"] = head.system
    if head.tools:
        body["tools"] = [_tool(tool) for tool in supported_tools(head.tools)]
    if head.max_tokens is not None:
        # Reasoning is counted too: it has room of its own.
        body["max_output_tokens"] = max(MIN_OUTPUT_TOKENS, head.max_tokens) + (REASONING_TOKENS if reasoning else 0)
    optional: dict[str, JsonValue] = {
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": _cache_key(session_id),
        **({"reasoning": reasoning} if reasoning else {}),
        **({"parallel_tool_calls": True} if head.tools else {}),
    }
    return body | {parameter: value for parameter, value in optional.items() if parameter not in without}


def _reasoning(head: RequestHead, without: Collection[str]) -> Block:
    """Return how the model is to reason: as it sees fit, but not for long where the answer is bounded."""
    if "reasoning" in without:
        return {}
    reasoning: Block = {"summary": "auto", **({"effort": "low"} if head.max_tokens is not None else {})}
    return {key: value for key, value in reasoning.items() if f"reasoning.{key}" not in without}


def _cache_key(session_id: str) -> str:
    """Return what the requests of a session have in common, for OpenAI to send them where their prefix is cached."""
    if len(session_id) <= MAX_CACHE_KEY_CHARS:
        return session_id
    return hashlib.sha256(session_id.encode()).hexdigest()


def _tool(tool: ToolSpec) -> Block:
    return {
        "type": "function",
        "name": sendable_name(tool.name),
        "description": description_of(tool),
        "parameters": parameters_of(tool),
        # Strict schemas are a small part of JSON Schema: foreign tools' would be refused.
        "strict": False,
    }


def _items(message: ModelMessage, ids: CallIds) -> Iterator[Block]:
    if message.role == "user":
        yield {"role": "user", "content": message.content}
    elif message.role == "tool":
        yield {"type": "function_call_output", "call_id": ids.id_for_result(message), "output": result_text(message)}
    elif (own := own_items(message, API, call_id_of=_call_id)) and ids.stay(message):
        yield from map(_sendable, own)
    else:
        yield from _items_anew(message, ids)


def _items_anew(message: ModelMessage, ids: CallIds) -> Iterator[Block]:
    """Write what the assistant said and did from its parts: another API said it, or a segment has begun since."""
    if message.content:
        yield {"role": "assistant", "content": message.content}
    for call, call_id in zip(message.tool_calls, ids.new_ids_for(message), strict=True):
        arguments = arguments_json(call)
        yield {"type": "function_call", "call_id": call_id, "name": sendable_name(call.name), "arguments": arguments}


def _call_id(item: Block) -> str | None:
    call_id = item.get("call_id")
    return call_id if item.get("type") == "function_call" and isinstance(call_id, str) else None


def _sendable(item: Block) -> Block:
    """Return an item as it came, without what is only ever told by the API.

    A message's `status` is demanded back, that of reasoning and of calls is not.

    >>> _sendable({"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed", "created_by": "x"})
    {'type': 'reasoning', 'id': 'rs_1', 'summary': []}
    """
    omitted_keys = {"created_by"} | ({"status"} if item.get("type") in ("reasoning", "function_call") else set())
    return {key: value for key, value in item.items() if key not in omitted_keys and value is not None}
