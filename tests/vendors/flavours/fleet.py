"""A server for all flavours and many sessions at once, with a model that does what its prompts say.

A prompt has a directive for the model, `<<{"tag": "p1", "steps": [["look"], ["look", "photo"]], "think": true}>>`: it
calls these tools, step by step, and then answers `Answer p1.`. Every request is checked by its vendor's rules first,
then by those of the `Line` that the session was given, which may also answer otherwise.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.vendors.flavours.flavours import BY_NAME, Flavour
from tests.vendors.flavours.rules import Body, Issued, Violation
from turnkeeper.activities.providers.anthropic.provider import AnthropicProvider
from turnkeeper.activities.providers.openai.chat import OpenAIChatProvider
from turnkeeper.activities.providers.openai.responses import OpenAIProvider
from turnkeeper.activities.providers.provider import Provider
from turnkeeper.testing.vendor_server import BOUND, Answer, Call, Received, Reply, ScriptedHttpServer

KEY = "key-of-a-test-0123456789"
SUMMARY = "What was said so far."

_DIRECTIVE = re.compile(r"<<(\{.*?\})>>")


@dataclass(frozen=True)
class Exchange:
    """A request that arrived, and what it broke."""

    flavour: str
    body: Body
    violation: Violation | None


Refuse = Callable[[Body, Issued], Violation | None]
"""Returns why a request is refused beyond the vendor's own rules."""

Override = Callable[[Body, int], Reply | Answer | None]
"""Answers the n-th request since the override was set, from 0; `None`: as usual."""


@dataclass
class Line:
    """The vendor's behaviour for a session. `refuse` and `override` may change; `model` is another name to call."""

    key: str
    refuse: Refuse | None = None
    override: Override | None = None
    model: str | None = None
    model_flavour: str = ""
    """The flavour that the session asks now, for stories that must know."""
    exchanges: list[Exchange] = field(default_factory=list)
    issued: dict[str, Issued] = field(default_factory=dict)
    progress: Counter[str] = field(default_factory=Counter)
    overridden: int = 0

    def model_of(self, flavour: str) -> str:
        """Return what a session names to be answered by this flavour."""
        return f"{BY_NAME[flavour].api}:{self.key}@{flavour}"

    def issued_by(self, flavour: str) -> Issued:
        return self.issued.setdefault(BY_NAME[flavour].vendor or flavour, Issued())

    def render(self, answer: Answer, body: Body, *, flavour: str = "") -> Reply:
        """Render an answer as the flavour does; by default as `model_flavour`."""
        flavour = flavour or self.model_flavour
        return BY_NAME[flavour].render(answer, body, self.issued_by(flavour))

    @property
    def refused(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.violation]


class Fleet:
    """The server; `async with` starts and ends it. It is also the source of a worker's providers."""

    def __init__(self, is_summary: Callable[[str], bool] = lambda text: False) -> None:
        """`is_summary` returns whether a request, as JSON, asks for a summary."""
        self.server = ScriptedHttpServer(otherwise=self._reply)
        self._lines: dict[str, Line] = {}
        self._providers: dict[tuple[str, str], Provider] = {}
        self._is_summary = is_summary

    async def __aenter__(self) -> "Fleet":
        await self.server.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.server.__aexit__(*failure)

    def line(self, key: str, **options: Any) -> Line:
        self._lines[key] = Line(key, **options)
        return self._lines[key]

    def resolve(self, model: str) -> tuple[Provider, str]:
        """Return the provider of a line's flavour, with nothing learned from other lines, and the model's name."""
        key, _, name = model.partition(":")[2].partition("@")
        flavour = BY_NAME[name]
        if (key, name) not in self._providers:
            self._providers[key, name] = self._provider(flavour, f"{self.server.base_url}/{key}/{name}")
        return self._providers[key, name], self._lines[key].model or flavour.model

    def _provider(self, flavour: Flavour, url: str) -> Provider:
        if flavour.api == "anthropic":
            return AnthropicProvider(silence_timeout=BOUND, base_url=url, api_key=KEY)
        if flavour.api == "openai":
            return OpenAIProvider(silence_timeout=BOUND, base_url=f"{url}/v1", api_key=KEY)
        return OpenAIChatProvider(silence_timeout=BOUND, base_url=f"{url}/v1", api_key=KEY)

    def _reply(self, received: Received) -> Reply:
        self.server.requests.clear()  # each line has its own
        _, key, name, *_ = received.path.split("/")
        line, flavour, body = self._lines[key], BY_NAME[name], received.body
        issued = line.issued_by(name)
        violation = flavour.violation_of(body, issued)
        if violation is None and line.refuse:
            violation = line.refuse(body, issued)
        line.exchanges.append(Exchange(name, body, violation))
        if violation:
            return flavour.refuse(violation)
        answer: Reply | Answer | None = None
        if line.override:
            answer = line.override(body, line.overridden)
            line.overridden += 1
        answer = answer or self._answer(body, line)
        return answer if isinstance(answer, Reply) else line.render(answer, body, flavour=name)

    def _answer(self, body: Body, line: Line) -> Answer:
        if self._is_summary(json.dumps(body)):
            return Answer(text=SUMMARY)
        directive = directive_in(body)
        tag, offered = directive.get("tag", ""), tools_in(body)
        steps = directive.get("steps", [])
        done = line.progress[tag]
        line.progress[tag] += 1
        names = [name for name in steps[done] if name in offered] if done < len(steps) else []
        calls = [Call(f"c{number}", name, {"at": f"{tag}.{done}.{number}"}) for number, name in enumerate(names)]
        think = f"Thought {done} of {tag}." if directive.get("think") else ""
        return Answer(text="" if calls and done % 2 else f"Step {done}." if calls else f"Answer {tag}.",
                      think=think, calls=calls)  # fmt: skip


def prompt(tag: str, *steps: list[str], think: bool = True) -> str:
    """Return a prompt whose model calls the tools of `steps`, and then answers `Answer {tag}.`."""
    return f"Please do {tag}. <<{json.dumps({'tag': tag, 'steps': steps, 'think': think})}>>"


def directive_in(body: Body) -> dict[str, Any]:
    """Return the newest directive in what users said; empty without one."""
    directives = [match for text in user_texts_in(body) for match in _DIRECTIVE.findall(text)]
    return dict(json.loads(directives[-1])) if directives else {}


def user_texts_in(body: Body) -> Iterator[str]:
    for message in body.get("messages") or body.get("input") or []:
        if message.get("role") == "user":
            content = message["content"]
            yield from [content] if isinstance(content, str) else (part.get("text", "") for part in content)


def tools_in(body: Body) -> list[str]:
    return [str(tool.get("function", tool)["name"]) for tool in body.get("tools", [])]
