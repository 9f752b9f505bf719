"""Tools and calls in the form that both of OpenAI's APIs accept."""

import json
import logging
import re
from collections.abc import Sequence

from turnkeeper.activities.providers.request_encoding import Block, plain_schema
from turnkeeper.models.transcript.model_call import CallPart, ToolSpec

MAX_TOOLS = 128
"""OpenAI's maximum number of tools in one request: with more, it rejects every request."""

MAX_DESCRIPTION_CHARS = 1_024
"""OpenAI's maximum length of a tool's description."""

_CUT = "\n[... the rest is left out ...]"
_BOUNDARIES = (re.compile(r"(?s).*(?:[.!?](?=\s)|(?=\n))"), re.compile(r"(?s).*(?=\s)"))
_log = logging.getLogger(__name__)


def supported_tools(tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return the tools to offer, in their order: if there are too many, the built-in ones and the first others.

    >>> taken = supported_tools([*(ToolSpec(name=f"t{n}") for n in range(200)), ToolSpec(name="now", built_in=True)])
    >>> len(taken), [tool.name for tool in (taken[0], *taken[-2:])]
    (128, ['t0', 't126', 'now'])
    """
    ranked = sorted(range(len(tools)), key=lambda index: (not tools[index].built_in, index))
    return [tools[index] for index in sorted(ranked[:MAX_TOOLS])]


class OmittedToolsLog:
    """Logs tools that are omitted because there are too many; each one once."""

    def __init__(self) -> None:
        self._logged_names: set[str] = set()

    def warn_once(self, tools: Sequence[ToolSpec]) -> None:
        """Warn of those of `tools` that are not offered, unless already logged."""
        excluded = {tool.name for tool in supported_tools(tools)} | self._logged_names
        left_out = [tool.name for tool in tools if tool.name not in excluded]
        if left_out:
            self._logged_names.update(left_out)
            _log.warning("OpenAI's APIs take %d tools; not offered: %s", MAX_TOOLS, ", ".join(left_out))


def description_of(tool: ToolSpec) -> str:
    r"""Return the tool's description. If it is too long, it is cut after a line or a sentence, and says so.

    >>> description_of(ToolSpec(name="now", description="Tells the time. " * 100))[-62:]
    'Tells the time. Tells the time.\n[... the rest is left out ...]'
    """
    if len(tool.description) <= MAX_DESCRIPTION_CHARS:
        return tool.description
    text = tool.description[: MAX_DESCRIPTION_CHARS - len(_CUT)]
    ends = (match.end() for boundary in _BOUNDARIES if (match := boundary.match(text)))
    return text[: next((end for end in ends if end > len(text) // 2), None)].rstrip() + _CUT


def parameters_of(tool: ToolSpec) -> Block:
    """Return the schema of the tool's arguments in the form that OpenAI accepts: an object with properties.

    >>> parameters_of(ToolSpec(name="now", input_schema={"anyOf": [{"required": ["a"]}]}))
    {'type': 'object', 'properties': {}}
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
