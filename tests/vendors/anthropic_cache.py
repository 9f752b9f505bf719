"""Anthropic's prompt cache, by the rules of its documentation.

At most four breakpoints. At each, the prefix that ends there is written to the cache, if it has 1,024 tokens. Read is
the longest prefix in the cache that ends at a breakpoint or at one of the 20 blocks before it. The prefix is tools,
system and messages, in this order, block by block; where the breakpoints are is no part of it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from typing import Any

LOOKBACK = 20
MIN_TOKENS = 1_024
MAX_BREAKPOINTS = 4


@dataclass(frozen=True)
class Counted:
    """Input tokens of a request: read from the cache, created in it, and neither."""

    read: int
    created: int
    uncached: int

    @property
    def total(self) -> int:
        return self.read + self.created + self.uncached

    @property
    def relative_price(self) -> float:
        """The cost of the input, in tokens at the list price."""
        return 0.1 * self.read + 1.25 * self.created + self.uncached


@dataclass
class PromptCache:
    """The cache of one organisation, and the token counts of each request."""

    entries: set[bytes] = field(default_factory=set)
    requests: list[Counted] = field(default_factory=list)

    def ask(self, body: dict[str, Any]) -> Counted:
        blocks = list(_blocks(body))
        tokens = list(accumulate(-(-len(text) // 4) for text, _ in blocks))
        prefixes, hashed = [], sha256()
        for text, _ in blocks:
            hashed.update(text.encode() + b"\0")
            prefixes.append(hashed.digest())
        breakpoints = [index for index, (_, is_breakpoint) in enumerate(blocks) if is_breakpoint]
        if "cache_control" in body:
            breakpoints.append(len(blocks) - 1)
        assert len(breakpoints) <= MAX_BREAKPOINTS, "the API answers 400"
        seen = {index for end in breakpoints for index in range(max(0, end - LOOKBACK), end + 1)}
        read = max((tokens[index] for index in seen if prefixes[index] in self.entries), default=0)
        stored = [index for index in breakpoints if tokens[index] >= MIN_TOKENS]
        self.entries |= {prefixes[index] for index in stored}
        end = max([read, *(tokens[index] for index in stored)])
        self.requests.append(Counted(read=read, created=end - read, uncached=tokens[-1] - end))
        return self.requests[-1]


def _blocks(body: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    system = body.get("system", [])
    groups: list[tuple[str, list[dict[str, Any]]]] = [
        ("tools", body.get("tools", [])),
        ("system", [{"type": "text", "text": system}] if isinstance(system, str) else system),
        *((message["role"], message["content"]) for message in body["messages"]),
    ]
    for place, blocks in groups:
        for block in blocks:
            plain = {key: value for key, value in block.items() if key != "cache_control"}
            yield json.dumps([place, plain], sort_keys=True), "cache_control" in block


def without_breakpoints(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body as the model reads it, with the system prompt as text."""

    def plain(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks]

    bare = dict(body)
    if "messages" in body:  # as chat completions have them, contents can be text
        bare["messages"] = [
            {**message, "content": plain(message["content"])} if isinstance(message.get("content"), list) else message
            for message in body["messages"]
        ]
    if isinstance(body.get("system"), list):
        bare["system"] = "".join(block["text"] for block in body["system"])
    if "tools" in body:
        bare["tools"] = plain(body["tools"])
    return bare
