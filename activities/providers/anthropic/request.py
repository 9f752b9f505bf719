"""Encoding a request for Anthropic's Messages API (AGT-3, AGT-4). Pure: the same request gives the same bytes.

The vendor caches by prefix, and binds its thinking to the prefix it was written after: what was sent once must be sent
again the same way. So each message is encoded by itself and appended; only at the two ends something may be added,
since the API wants a user to speak first and last.

- The results of a step's calls are one message directly after the calls, followed by steering prompts. An answer and
  the notes behind it are one message too. Two prompts are never neighbours (CTX-17), and would not become one.
- A step of this API goes back block for block (`ProviderState.items`); any other is encoded again from its text and
  calls, without thinking. Blank text is left out, also in the API's own blocks: it returns such blocks, and rejects
  them.
- A call whose arguments are not JSON has them as `{"invalid_json": "…"}`: the API wants an object, and the model should
  see what it wrote.
- Images and PDFs follow the text of their message; those of a tool's result are in it. A result that is an error may
  have only text: its images follow after all results of the step. Other attachments are text by now
  (`request_encoding.py`).
- Cache breakpoints (`_with_breakpoints`) are set for all but single requests (those with `max_tokens`: a summary),
  which nothing will ever read from the cache again.
- Thinking depends on the model (`_thinking`), and with older ones on the conversation (`_may_think`).
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from pydantic import JsonValue

from turnkeeper.activities.providers.request_encoding import (
    Block,
    CallIds,
    Medium,
    description_of,
    media_of,
    opened,
    own_items,
    plain_schema,
    sendable_name,
)
from turnkeeper.models.transcript.attachments import ImageAttachment
from turnkeeper.models.transcript.model_call import ModelMessage, ModelRequest, ToolSpec

API = "anthropic.messages"
"""The name of this API in `ProviderState`."""

ANSWER_TOKENS = 32_000
"""Maximum tokens of an answer, including thinking, for all models that think. About as long as the longest answer that
is stored (`models/limits.py`)."""

_FEWER_TOKENS = {
    re.compile(r".*claude-(?:\w+-)?3[-.]5"): 8_192,
    re.compile(r".*claude-"): 4_096,
    re.compile(r""): 8_192,  # other models behind a proxy: nearly all of them support this
}
"""Maximum tokens for models that don't think, which reject a higher limit. The first match counts."""

THINKING_TOKENS = 8_000
"""Of these tokens, the ones for thinking, for models that need a budget."""

GO_ON = "(Go on.)"
"""A user's message for conversations that end with the assistant: newer models refuse to continue their own text."""

_THINKS_BY_BUDGET = re.compile(r"claude-(?:3[-.]7|(?:opus|sonnet|haiku)-4(?![-.][6-9])|4(?:[-.][0-5])?-[a-z])")
_THINKS_NOT = re.compile(r"(?!.*claude-)|.*claude-(?:v?[12]\b|instant|3(?![-.]7)|(?:opus|sonnet|haiku)-3)")


def encode(request: ModelRequest, *, name: str) -> dict[str, Any]:
    """Return the body that asks the model `name`.

    >>> head = {"system": "Be brief."}
    >>> request = ModelRequest.model_validate({"head": head, "messages": [{"role": "user", "content": "Hi"}]})
    >>> body = encode(request, name="claude-sonnet-5-5")
    >>> body["system"], body["messages"]
    ([{'type': 'text', 'text': 'Be brief.', 'cache_control': {'type': 'ephemeral'}}], [{'role': 'user', 'content': \
[{'type': 'text', 'text': 'Hi', 'cache_control': {'type': 'ephemeral'}}]}])
    """
    head, messages = request.head, _messages(request.messages)
    body = {
        "model": name,
        "stream": True,
        **_bounds(name, head.max_tokens, messages),
        **({"system": head.system} if head.system.strip() else {}),
        **({"tools": [_tool(tool) for tool in head.tools]} if head.tools else {}),
        "messages": messages,
    }
    return body if head.max_tokens is not None else _with_breakpoints(body)


# ---- length and thinking


def _bounds(name: str, max_tokens: int | None, messages: list[dict[str, Any]]) -> dict[str, Any]:
    thinking = _thinking(name)
    max_answer_tokens = (
        ANSWER_TOKENS if thinking else next(few for old, few in _FEWER_TOKENS.items() if old.match(name))
    )
    if max_tokens is None:
        has_thinking = thinking and (thinking["type"] == "adaptive" or _may_think(messages))
        return {"max_tokens": max_answer_tokens, **({"thinking": thinking} if has_thinking else {})}
    if thinking and thinking["type"] == "adaptive":
        # Some of these models always think, and thinking counts as output, so it gets extra room.
        return {"max_tokens": max_tokens + THINKING_TOKENS, "thinking": thinking}
    return {"max_tokens": min(max_tokens, max_answer_tokens)}


def _may_think(messages: list[dict[str, Any]]) -> bool:
    """Return whether a model with a thinking budget may think in this request.

    To the API all calls and results since the last user message are one answer, which thinks from its beginning or not
    at all. Its thinking must be present, which it is not after an eviction or a change of models.
    """
    if not any(block["type"] == "tool_result" for block in messages[-1]["content"]):
        return True
    first = len(messages) - 2
    while first > 1 and all(block["type"] == "tool_result" for block in messages[first - 1]["content"]):
        first -= 2
    return messages[first]["content"][0]["type"] in ("thinking", "redacted_thinking")


def _thinking(name: str) -> dict[str, Any] | None:
    """Return the parameter `thinking` for the model; `None` to omit it.

    From 4.6 on Claude decides itself when to think (`adaptive`). Older models reject that and need a budget, newer ones
    reject the budget, and the newest can't be told not to think. So an unknown Claude counts as new, and other models
    behind a proxy get no parameter. Newer models show their thinking only on request (`display`).

    >>> _thinking("claude-opus-4-5-20251101"), _thinking("kimi-k3")
    ({'type': 'enabled', 'budget_tokens': 8000}, None)
    >>> _thinking("claude-opus-4-8")
    {'type': 'adaptive', 'display': 'summarized'}
    """
    if _THINKS_NOT.match(name):
        return None
    if _THINKS_BY_BUDGET.search(name):
        return {"type": "enabled", "budget_tokens": THINKING_TOKENS}
    return {"type": "adaptive", "display": "summarized"}


# ---- caching


def _with_breakpoints(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the four breakpoints of the prompt cache that the API allows (AGT-4).

    The API writes to its cache at each breakpoint, and reads the longest entry that ends at one, or up to 20 blocks
    before it. So they are where an earlier request had one, and where a later one will read:

    tools and system              shared by all sessions with the same ones
    end of the first message      what remains when messages after it are evicted
    end of the previous request   found however many blocks the calls and results since then have
    end of this request           read by the next one

    They are set on blocks that are encoded here, never on the model's own, which go back as they came.
    """
    messages = body["messages"]
    answers = (index for index in range(len(messages) - 1, 0, -1) if messages[index]["role"] == "assistant")
    # The previous request ended before the last answer.
    cached = [messages[0], *(messages[index - 1] for index in islice(answers, 1)), messages[-1]]
    ends = {id(message["content"]): message["content"] for message in cached}
    for content in ends.values():
        content[-1] = _cached(content[-1])
    if "system" in body:
        return {**body, "system": [_cached(_text(body["system"]))]}
    if "tools" in body:
        return {**body, "tools": [*body["tools"][:-1], _cached(body["tools"][-1])]}
    return body


def _cached(block: Block) -> Block:
    return {**block, "cache_control": {"type": "ephemeral"}}


# ---- tools


def _tool(tool: ToolSpec) -> dict[str, Any]:
    description = description_of(tool)
    described = {"description": description} if description else {}
    return {"name": tool.name, **described, "input_schema": plain_schema(tool)}


# ---- messages


def _messages(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = []
    of_errors: list[Block] = []
    ids = CallIds()
    earlier_role = ""
    for message in opened(messages):
        role = "assistant" if message.role == "assistant" else "user"
        if message.role != "tool" and of_errors:
            encoded[-1]["content"].extend(of_errors)
            of_errors = []
        blocks = _blocks(message, ids)
        of_errors += _media_of_error(message)
        if blocks and encoded and encoded[-1]["role"] == role and not earlier_role == message.role == "user":
            encoded[-1]["content"].extend(blocks)
        elif blocks:
            encoded.append({"role": role, "content": blocks})
        earlier_role = message.role
    if of_errors:
        encoded[-1]["content"].extend(of_errors)
    if not encoded or encoded[-1]["role"] == "assistant":
        encoded.append({"role": "user", "content": [_text(GO_ON)]})
    return encoded


def _blocks(message: ModelMessage, ids: CallIds) -> list[Block]:
    if message.role == "tool":
        return [_result(message, ids)]
    if message.role == "user":
        return [*_texts(message.content), *map(_medium, media_of(message))]
    own = own_items(message, API, call_id_of=_call_id)
    if own is None or not ids.reserve_own_ids(message):
        return [*_texts(message.content.rstrip()), *_calls(message, ids)]
    return [block for block in own if block.get("type") != "text" or str(block.get("text", "")).strip()]


def _calls(message: ModelMessage, ids: CallIds) -> list[Block]:
    return [
        {"type": "tool_use", "id": own_id, "name": sendable_name(call.name), "input": sendable_input(call.args)}
        for own_id, call in zip(ids.new_ids_for(message), message.tool_calls, strict=True)
    ]


def _result(message: ModelMessage, ids: CallIds) -> Block:
    result: Block = {"type": "tool_result", "tool_use_id": ids.id_for_result(message)}
    if message.attachments and not _is_error(message):
        result["content"] = [*_texts(message.content), *map(_medium, media_of(message))]
    elif message.content.strip():
        result["content"] = message.content
    return result | ({"is_error": True} if _is_error(message) else {})


def _media_of_error(message: ModelMessage) -> list[Block]:
    """Return the images and PDFs of a failed call, with a text that says whose they are."""
    if message.role != "tool" or not message.attachments or not _is_error(message):
        return []
    return [_text(f"From the result of {message.tool_name or 'the tool'}:"), *map(_medium, media_of(message))]


def _is_error(message: ModelMessage) -> bool:
    return message.status not in (None, "ok")


def _medium(medium: Medium) -> Block:
    """Return the block of an image or a PDF.

    >>> _medium(ImageAttachment(type="image", url="https://example.com/cat.png"))
    {'type': 'image', 'source': {'type': 'url', 'url': 'https://example.com/cat.png'}}
    """
    source: Block = {"type": "base64", "media_type": medium.media_type, "data": medium.data}
    if isinstance(medium, ImageAttachment):
        return {"type": "image", "source": {"type": "url", "url": medium.url} if medium.url else source}
    return {"type": "document", "source": source, "title": medium.name}


def sendable_input(args: dict[str, JsonValue] | str) -> dict[str, JsonValue]:
    """Return a call's arguments as an object, which the API requires."""
    return args if isinstance(args, dict) else {"invalid_json": args}


def _texts(text: str) -> list[Block]:
    return [_text(text)] if text.strip() else []


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _call_id(block: Block) -> str | None:
    return str(block.get("id")) if block.get("type") == "tool_use" else None
