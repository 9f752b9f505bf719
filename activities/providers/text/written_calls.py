r"""Reading calls that a model has written as text, since its server doesn't know its form of calls (AGT-4). Pure.

    <tool_call>{"name": "now", "arguments": {}}</tool_call>              Hermes, Qwen
    <tool_call><function=now><parameter=at>x</parameter></function>      Qwen Coder, also without `<tool_call>`
    [TOOL_CALLS][{"name": "now", "arguments": {}}]                       Mistral, also `[TOOL_CALLS]now[ARGS]{}`

They are calls only if they begin a line outside of code, nothing follows them, and all name offered tools. Any other
text that mentions them is text.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from pydantic import JsonValue

from turnkeeper.activities.providers.answer_fields import arguments_of


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
    """Return the calls that the text has from `position` on; none if it has anything else."""
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
    """Return the calls of an object, or of a list of them."""
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
