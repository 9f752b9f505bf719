"""Who says what in a request's body, in the same form for every API."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from turnkeeper.models.replay_text.grammar import (
    CallEvent,
    ReplayEvent,
    RespondEvent,
    ThinkEvent,
    UserEvent,
    parse_replay,
)

Role = Literal["user", "assistant", "call", "result"]
Utterance = tuple[Role, str]
"""A message, with its text; of a call, its arguments as JSON."""


def utterances_in_anthropic(body: Any) -> Iterator[Utterance]:
    for message in body["messages"]:
        texts = list[str]()
        for block in message["content"]:
            if block["type"] == "tool_use":
                yield "call", json.dumps(block["input"])
            elif block["type"] == "tool_result":
                yield "result", block.get("content", "")
            elif block["type"] == "text":
                texts.append(block["text"])
        if texts:
            yield message["role"], "\n\n".join(texts)


def utterances_in_chat(body: Any) -> Iterator[Utterance]:
    for message in body["messages"]:
        if message["role"] == "system":
            continue
        if message["content"]:
            yield "result" if message["role"] == "tool" else message["role"], message["content"]
        yield from (("call", call["function"]["arguments"]) for call in message.get("tool_calls", []))


def utterances_in_responses(body: Any) -> Iterator[Utterance]:
    for item in body["input"]:
        if item.get("type") == "function_call":
            yield "call", item["arguments"]
        elif item.get("type") == "function_call_output":
            yield "result", item["output"]
        elif item.get("type") in (None, "message"):
            content = item["content"]
            yield item["role"], content if isinstance(content, str) else "".join(part["text"] for part in content)


def utterances_in_text(body: Any) -> Iterator[Utterance]:
    text = body["messages"][1]["content"]
    if not text.startswith("=== "):
        return iter([("user", text)])
    history, current = parse_replay(text)
    assert not current or isinstance(current[0], UserEvent), "CURRENT begins with the prompt of its turn"
    return utterances_of_events([*history, *(current or [])])


def utterances_of_events(events: Iterable[ReplayEvent]) -> Iterator[Utterance]:
    for event in events:
        if isinstance(event, CallEvent):
            yield "call", json.dumps(event.args)
        elif isinstance(event, UserEvent | RespondEvent):
            yield "user" if isinstance(event, UserEvent) else "assistant", event.content
        else:
            yield "assistant" if isinstance(event, ThinkEvent) else "result", event.content


UTTERANCES: dict[str, Callable[[Any], Iterator[Utterance]]] = {
    "anthropic": utterances_in_anthropic,
    "chat": utterances_in_chat,
    "responses": utterances_in_responses,
    "text": utterances_in_text,
}
