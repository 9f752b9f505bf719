"""What models write into the text where their server has no parser for it: thinking, tokens, calls (AGT-4, CTX-13).

**Thinking** before the answer, as `<think>…</think>`, is separated while it arrives. Servers without a parser for it
leave the thinking in the text. Only a leading tag counts that is closed, or in which the answer was cut; anywhere else
it is ordinary text. Where the template has written the opening tag, only the closing one is in the text: it counts at
the end of a line of its own or of a sentence, with a blank line after it, outside of code. That is known at the end
only, so such thinking is shown as text until then. So is an answer in the tokens of OpenAI's open models (harmony):
nothing of it is shown before its end.

**Tokens** of OpenAI's open models (harmony):

<|channel|>analysis<|message|>The clock.<|end|><|start|>assistant<|channel|>final<|message|>It is noon.<|return|>
<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>

**Calls**, where the server doesn't know the model's form of them:

    <tool_call>{"name": "now", "arguments": {}}</tool_call>              Hermes, Qwen
    <tool_call><function=now><parameter=at>x</parameter></function>      Qwen Coder, also without `<tool_call>`
    [TOOL_CALLS][{"name": "now", "arguments": {}}]                       Mistral, also `[TOOL_CALLS]now[ARGS]{}`

They are calls only if they begin a line outside of code, nothing follows them, and all name offered tools. Any other
text that mentions them is text.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from turnkeeper.activities.providers.answer_fields import arguments_of, join_pieces
from turnkeeper.activities.providers.protocol import Delta


@dataclass(frozen=True)
class WrittenCall:
    """A call as the model wrote it; `args` is text if it is no JSON object."""

    name: str
    args: dict[str, JsonValue] | str


_START = re.compile(r"^[ \t]*(?=<tool_call>|<function=|\[TOOL_CALLS\])", re.MULTILINE)
_TAGGED = re.compile(r"\s*<tool_call>\s*(?P<body>.*?)\s*(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=(?P<name>[^>\s]+)>(?P<body>.*?)(?:</function>|\Z)\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=(?P<name>[^>\s]+)>\n?(?P<value>.*?)\n?(?:</parameter>|\Z)\s*", re.DOTALL)
_MISTRAL = re.compile(r"\s*\[TOOL_CALLS\]\s*(?P<name>[\w.-]*)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)


def split_calls(text: str, tools: Collection[str]) -> tuple[str, list[WrittenCall]]:
    r"""Return the text without the calls at its end, and the calls; `tools` are the names of the offered tools.

    >>> split_calls('I look.\n<tool_call>{"name": "now", "arguments": {"at": 1}}</tool_call>', ["now"])
    ('I look.', [WrittenCall(name='now', args={'at': 1})])
    >>> split_calls('Write <tool_call>{"name": "now"}</tool_call> then.', ["now"])
    ('Write <tool_call>{"name": "now"}</tool_call> then.', [])
    """
    start = _START.search(text) if tools else None
    if start is None or is_in_code(text, start.end()):
        return text, []
    calls = _calls_in(text, start.end())
    if not calls or not {call.name for call in calls} <= set(tools):
        return text, []
    return text[: start.start()].rstrip(), calls


def is_in_code(text: str, position: int) -> bool:
    """Return whether a position is within fenced or indented code, or behind a backtick of its line."""
    before = text[:position]
    line = before.rpartition("\n")[2]
    return len(_FENCE.findall(before)) % 2 == 1 or line.startswith(("    ", "\t")) or line.count("`") % 2 == 1


def _calls_in(text: str, position: int) -> list[WrittenCall]:
    calls: list[WrittenCall] = []
    while text[position:].strip():
        if tagged := _TAGGED.match(text, position):
            new_calls, end = _calls_in_tag(tagged["body"]), tagged.end()
        elif function := _FUNCTION.match(text, position):
            new_calls, end = _xml_calls(function[0]), function.end()
        else:
            new_calls, end = _mistral_calls(text, position)
        if not new_calls:
            return []
        calls += new_calls
        position = end
    return calls


def _calls_in_tag(body: str) -> list[WrittenCall]:
    if body.startswith("<function="):
        return _xml_calls(body)
    try:
        return _json_calls(json.loads(body))
    except (ValueError, RecursionError):
        return []


def _json_calls(value: object) -> list[WrittenCall]:
    calls: list[WrittenCall] = []
    for one in value if isinstance(value, list) else [value]:
        match one:
            case {"name": str(name), **fields}:
                args = fields.get("arguments", fields.get("parameters", fields.get("args", {})))
                calls.append(WrittenCall(name, arguments_of(args if isinstance(args, str) else json.dumps(args))))
            case _:
                return []
    return calls


def _xml_calls(body: str) -> list[WrittenCall]:
    calls: list[WrittenCall] = []
    position = 0
    while position < len(body):
        function = _FUNCTION.match(body, position)
        if function is None or _PARAMETER.sub("", function["body"]).strip():
            return []
        parameters = _PARAMETER.finditer(function["body"])
        calls.append(WrittenCall(function["name"], {one["name"]: _value_of(one["value"]) for one in parameters}))
        position = function.end()
    return calls


def _value_of(text: str) -> JsonValue:
    """Return the value that a parameter's text stands for: a list, an object, a number or a word of JSON, or itself."""
    args = arguments_of(f'{{"value": {text}}}')
    return args["value"] if isinstance(args, dict) and args.keys() == {"value"} else text


def _mistral_calls(text: str, position: int) -> tuple[list[WrittenCall], int]:
    start = _MISTRAL.match(text, position)
    if start is None:
        return [], position
    try:
        value, end = json.JSONDecoder().raw_decode(text, start.end())
    except (ValueError, RecursionError):
        return [], position
    if not start["name"]:
        return _json_calls(value), end
    return [WrittenCall(start["name"], arguments_of(json.dumps(value)))], end


# ---- answers in tokens


HARMONY_STARTS = ("<|channel|>", "<|start|>assistant")
"""How such an answer begins."""

_MESSAGE = re.compile(
    r"\s*(?:<\|start\|>assistant)?(?P<header>[^<]*<\|channel\|>(?P<channel>\w+)[^<]*(?:<\|constrain\|>[^<]*)?)"
    r"<\|message\|>(?P<content>.*?)(?:<\|(?:end|return|call)\|>|(?=<\|start\|>)|\Z)",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"\bto=functions\.([\w-]+)")


@dataclass
class HarmonyAnswer:
    """The messages of an answer, by what they are."""

    thought: str = ""
    text: str = ""
    calls: list[WrittenCall] = field(default_factory=list)


def harmony_in(text: str) -> HarmonyAnswer | None:
    """Return what an answer says; `None` if it is no sequence of such messages.

    >>> harmony_in("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>")
    HarmonyAnswer(thought='Hm.', text='So.', calls=[])
    >>> harmony_in("<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>").calls
    [WrittenCall(name='now', args={})]
    """
    answer, position = HarmonyAnswer(), 0
    while text[position:].strip():
        message = _MESSAGE.match(text, position)
        if message is None:
            return None
        recipient = _RECIPIENT.search(message["header"])
        if recipient:
            answer.calls.append(WrittenCall(recipient[1], arguments_of(message["content"])))
        elif message["channel"] == "analysis":
            answer.thought += message["content"]
        else:
            answer.text += message["content"]
        position = message.end()
    return answer


TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
"""How models mark their thinking: the opening tags, and what closes each."""

_OPENINGS = (*TAGS, *HARMONY_STARTS)
_CLOSED = "|".join(map(re.escape, TAGS.values()))
_LONE_CLOSING = re.compile(rf"(?:(?:^|\n)[ \t]*|(?<=[.!?…。]))(?P<tag>{_CLOSED})[ \t]*(?=\n|\Z)\s*")


class LeadingThought:
    r"""A text while it arrives, with its thinking separated.

    >>> text = LeadingThought()
    >>> text.add("<thi"), text.add("nk>Left first.</th")
    ([], [Delta(kind='think', text='Left first.')])
    >>> text.add("ink>"), text.add("\n\nI look.")
    ([], [Delta(kind='respond', text='I look.')])
    >>> text.finish(is_cut=False)
    >>> text.thought, text.text, text.lead
    ('Left first.', 'I look.', '<think>Left first.</think>\n\n')
    """

    def __init__(self) -> None:
        self._state: Literal["opening", "thinking", "between", "saying", "harmony"] = "opening"
        self._closing_tag = ""
        self._pending = ""
        """Text that may become a tag, or the space around one."""
        self._lead: list[str] = []
        self._thought: list[str] = []
        self._text: list[str] = []
        self.calls: list[WrittenCall] = []
        """Calls that were written as tokens. Valid after `finish`."""

    def add(self, piece: str) -> list[Delta]:
        """Add the next piece; return its deltas."""
        self._pending += piece
        return list(self._deltas())

    def finish(self, *, is_cut: bool) -> None:
        """End the text. If the answer was cut, thinking may be unclosed."""
        rest, self._pending = self._pending, ""
        if self._state == "thinking" and is_cut:
            self._thought.append(rest)
        elif self._state == "harmony":
            answer = harmony_in(rest) or HarmonyAnswer(text=rest)
            self._thought, self._text, self.calls = [answer.thought], [answer.text], answer.calls
        elif self._state in ("opening", "thinking"):
            self._text, self._thought, self._lead = [*self._lead, *self._thought, rest], [], []
        elif self._state == "between":
            self._lead.append(rest)
        else:
            self._split_at_lone_closing()

    @property
    def thought(self) -> str:
        """The thinking. Valid after `finish`, like the properties below."""
        return join_pieces(self._thought).strip()

    @property
    def text(self) -> str:
        return join_pieces(self._text)

    @property
    def lead(self) -> str:
        """Everything before the text, including tags and space, in the form that goes back to the model."""
        return join_pieces(self._lead)

    def _deltas(self) -> Iterator[Delta]:
        if self._state == "opening":
            self._open()
        if self._state == "thinking" and (thought := self._think()):
            yield Delta("think", thought)
        if self._state == "between":
            self._skip_space()
        if self._state == "saying" and self._pending:
            text, self._pending = self._pending, ""
            self._text.append(text)
            yield Delta("respond", text)

    def _open(self) -> None:
        stripped = self._pending.lstrip()
        opening = next((tag for tag in _OPENINGS if stripped.startswith(tag)), None)
        if opening in TAGS:
            before = len(self._pending) - len(stripped) + len(opening)
            self._lead.append(self._pending[:before])
            self._pending, self._state, self._closing_tag = self._pending[before:], "thinking", TAGS[opening]
        elif opening:
            self._state = "harmony"
        elif not any(tag.startswith(stripped) for tag in _OPENINGS):
            self._state = "saying"

    def _think(self) -> str:
        closing = self._closing_tag
        thought, closing_tag, rest = self._pending.partition(closing)
        if closing_tag:
            self._pending, self._state = rest, "between"
            self._lead += [*self._thought, thought, closing_tag]
        else:
            pending_length = next(
                length for length in range(len(closing) - 1, -1, -1) if thought.endswith(closing[:length])
            )
            thought, self._pending = thought[: len(thought) - pending_length], thought[len(thought) - pending_length :]
        self._thought.append(thought)
        return thought

    def _skip_space(self) -> None:
        text = self._pending.lstrip()
        self._lead.append(self._pending[: len(self._pending) - len(text)])
        self._pending = text
        if text:
            self._state = "saying"

    def _split_at_lone_closing(self) -> None:
        """Separate thinking that ends with a closing tag and has no opening one."""
        text = "".join(self._text)
        closing = _LONE_CLOSING.search(text) if not self._thought else None
        if closing is None or is_in_code(text, closing.start("tag")):
            return
        has_blank_line = text[closing.end("tag") :].lstrip(" \t").startswith(("\n\n", "\r\n\r\n"))
        is_own_line = not text[: closing.start("tag")].rpartition("\n")[2].strip()
        if is_own_line or has_blank_line:
            self._thought, self._text = [text[: closing.start("tag")]], [text[closing.end() :]]
            self._lead = [text[: closing.end()]]
