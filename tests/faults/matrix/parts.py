"""Rows of one refused part: whatever it is, named in whatever words or not named (AGT-9)."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.faults.matrix.playing import IMAGE, PAPER, Row, RowSession, is_answered, omissions
from tests.vendors.flavours.flavours import FLAVOURS
from tests.vendors.flavours.fleet import Refuse, tools_in
from tests.vendors.flavours.rules import Body, Issued, Violation

ALL = tuple(FLAVOURS)
CHAT = tuple(name for name, flavour in FLAVOURS.items() if flavour.api == "openai-chat")
MESSAGES = tuple(name for name, flavour in FLAVOURS.items() if flavour.api == "anthropic")

THINKING = ("llama.cpp", "openrouter", "groq", "vllm", "ollama", "openai", "anthropic", "claude-4.5")
"""Flavours whose answers have reasoning that goes back, and that can do without it."""

UNNAMED = ("Bad Request", "", "Something in it is not to our taste.")


@dataclass(frozen=True)
class Part:
    """A part that is refused. Words may have {tool}, {index} of the tool, and {value} of the parameter `name`.

    `shows`: what the turn must say was left out. `attachments` come with the first prompt.
    """

    name: str
    is_there: Callable[[Body, Issued], bool]
    words: tuple[str, ...]
    shows: str
    flavours: tuple[str, ...] = ALL
    unnamed: tuple[str, ...] = UNNAMED[:2]
    tool: str = "odd"
    attachments: tuple[dict[str, Any], ...] = ()
    status: int = 400
    lessons: int = 1

    def refuse(self, words: str) -> Refuse:
        def check(body: Body, issued: Issued) -> Violation | None:
            if not self.is_there(body, issued):
                return None
            names = tools_in(body)
            index = names.index(self.tool) if self.tool in names else 0
            value = body.get(self.name, 0)
            text = words.replace("{tool}", self.tool).replace("{index}", str(index)).replace("{value}", str(value))
            return Violation(f"row: {self.name}", text, status=self.status)

        return check


def schema_of(body: Body, name: str) -> dict[str, Any]:
    for tool in body.get("tools", []):
        function = tool.get("function", tool)
        if function["name"] == name:
            return dict(function.get("parameters") or function.get("input_schema") or {})
    return {}


def description_of(body: Body, name: str) -> str:
    functions = [tool.get("function", tool) for tool in body.get("tools", [])]
    return next((str(one.get("description", "")) for one in functions if one["name"] == name), "")


def contains(text: str) -> Callable[[Body, Issued], bool]:
    return lambda body, issued: text in json.dumps(body)


def has_state(body: Body, issued: Issued) -> bool:
    """Return whether the request has reasoning of the vendor's own."""
    text = json.dumps(body.get("messages") or body.get("input"))
    return any(key in text for key in ('"thinking"', '"reasoning', '"encrypted_content"', '"thought_signature"'))


def parameter(name: str, *words: str, flavours: tuple[str, ...], unnamed: tuple[str, ...] = UNNAMED[:1]) -> Part:
    return Part(name, lambda body, issued: name in body, words, f"parameter {name}|{name}", flavours, unnamed)


PARTS = (
    Part(
        "schema",
        lambda body, issued: "pattern" in json.dumps(schema_of(body, "odd")),
        (
            "Invalid schema for function '{tool}': In context=('properties', 'at'), 'pattern' is not permitted.",
            "tools[{index}].function.parameters: unsupported keyword 'pattern'",
            "tools.{index}.custom.input_schema: unsupported keyword 'pattern'",
            "* GenerateContentRequest.tools[0].function_declarations[{index}].parameters.properties[at]: bad pattern",
            "tool {tool} has a parameter that we do not take",
        ),
        "schema",
        unnamed=UNNAMED,
    ),
    Part(
        "tool",
        lambda body, issued: "odd" in tools_in(body),
        ("The name of tool '{tool}' is reserved.", "tools.{index}: this tool is not allowed here"),
        "tool",
    ),
    Part(
        "tools",
        lambda body, issued: "tools" in body,
        (
            "registry.ollama.ai/library/gemma3:4b does not support tools",
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            "`tool calling` is not supported with this model",
        ),
        "tools",
    ),
    Part(
        "description",
        lambda body, issued: len(description_of(body, "long")) > 1_024,
        (
            "Invalid 'tools[{index}].function.description': string too long. Expected a string with maximum length "
            "1024, but got a string with length 2132 instead.",
            "tools.{index}.custom.description: String should have at most 1024 characters",
        ),
        "tool",
        tool="long",
    ),
    Part(
        "image",
        contains(IMAGE["data"]),
        (
            "Model does not support images.",
            "messages[0].content must be a string",
            "No endpoints found that support image input",
            "unknown variant `image_url`, expected `text`",
        ),
        "image|attachment",
        attachments=(IMAGE,),
    ),
    Part(
        "broken image",
        contains(IMAGE["data"]),
        ("Could not process image", "The image data you provided does not represent a valid image."),
        "attachment|image",
        unnamed=(),
        attachments=(IMAGE,),
    ),
    Part(
        "image of a local server",
        contains(IMAGE["data"]),
        ("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",),
        "image",
        CHAT,
        unnamed=(),
        attachments=(IMAGE,),
        status=500,
    ),
    Part(
        "pdf",
        contains(PAPER["data"]),
        ("PDF input is not supported", "Invalid file data: unsupported MIME type 'application/pdf'."),
        "PDF|attachment",
        attachments=(PAPER,),
    ),
    Part(
        "earlier reasoning",
        has_state,
        (
            "Encrypted reasoning item was created by a different model and cannot be used",
            "Invalid `signature` in `thinking` block",
            "the thought block is from elsewhere",
        ),
        "reasoning|field",
        THINKING,
        lessons=2,  # it may be stale once
    ),
    Part(
        "content of null",
        lambda body, issued: any(message.get("content", "") is None for message in body["messages"]),
        ("Invalid value for 'content': expected a string, got null.", "messages.1.content: Input should be a string"),
        "content",
        ("llama.cpp", "groq", "deepseek", "vllm", "ollama", "openai-chat"),  # the others take no empty text
        unnamed=(),
    ),
    parameter(
        "stream_options",
        "Unknown field: stream_options",
        "property 'stream_options' is unsupported",
        "Unrecognized request argument supplied: stream_options",
        flavours=CHAT[1:],
    ),
    parameter(
        "reasoning",
        "Unsupported parameter: 'reasoning' is not supported with this model.",
        "Unknown parameter: 'reasoning'.",
        flavours=("openai",),
    ),
    parameter("include", "Encrypted content is not supported with this model: 'include'.", flavours=("openai",)),
    parameter("store", "Unknown parameter: 'store'.", flavours=("openai",), unnamed=()),
    parameter("prompt_cache_key", "Unknown parameter: 'prompt_cache_key'.", flavours=("openai",)),
    parameter("parallel_tool_calls", "Unsupported parameter: 'parallel_tool_calls'", flavours=("openai",)),
    parameter(
        "thinking",
        "adaptive thinking is not supported on this model",
        "thinking: Extra inputs are not permitted",
        flavours=MESSAGES[:2],
    ),
    Part(
        "thinking.display",
        contains('"display"'),
        ("thinking.adaptive.display: Extra inputs are not permitted",),
        "thinking",
        ("anthropic",),
        UNNAMED[:1],
    ),
    Part(
        "cache_control",
        contains('"cache_control"'),
        ("system.0.cache_control: Extra inputs are not permitted", "cache_control is not supported"),
        "cache_control",
        MESSAGES,
        UNNAMED[:1],
    ),
    Part(
        "max_tokens",
        lambda body, issued: body["max_tokens"] > 4_096,
        (
            "max_tokens: {value} > 4096, which is the maximum allowed number of output tokens for this model",
            "max_tokens: too large, at most 4,096",
            "Invalid max_tokens value, the valid range of max_tokens is [1, 4096]",
        ),
        "max_tokens",
        MESSAGES,
        (),
    ),
)


def rows() -> Iterator[Row]:
    for part in PARTS:
        for flavour in part.flavours:
            for words in (*part.words, *part.unnamed):
                for is_new in (True, False) if words in UNNAMED else (len(words) % 2 == 0,):
                    yield _row(part, flavour, words, is_new=is_new)


def _row(part: Part, flavour: str, words: str, *, is_new: bool) -> Row:
    """`is_new`: the vendor refuses the part from the first request on; otherwise it has accepted it before."""

    async def play(run: RowSession) -> None:
        # The model's second step has calls without a text.
        steps = [["look"], ["photo"]] if "image" in part.name else [["look"], ["look"]]
        attachments = list(part.attachments)
        if is_new:
            run.line.refuse = part.refuse(words)
        before = await run.turn("p1", *steps, attachments=attachments)
        run.line.refuse = part.refuse(words)
        turns = [before] if is_new else []
        turns += [await run.turn("p2", ["look"]), await run.turn("p3")]
        assert any(map(is_answered, turns[:2])), f"{[turn.error for turn in turns]}"
        assert is_answered(turns[-1]), f"not answered after all: {turns[-1].error}"
        requests = len(run.line.refused)
        last = await run.turn("p4", ["look"])
        assert is_answered(last), f"not answered at the end: {last.error}"
        assert len(run.line.refused) == requests, f"refused again: {[one.violation for one in run.line.refused[-2:]]}"
        assert run.line.refused, "the row meets no fault"
        hits = [one for one in run.line.refused if one.violation and one.violation.rule.startswith("row: ")]
        if hits and (is_new or words not in UNNAMED):  # without a word the length may be guessed
            text = omissions(run.turns)
            assert re.search(part.shows, text), f"{part.shows} is not in: {text}"

    return Row(f"{part.name}: {words[:60]!r}{' from the start' if is_new else ''}", flavour, play, lessons=part.lessons)
