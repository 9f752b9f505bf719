"""Tools and calls in the form that both of OpenAI's APIs accept."""

import json
import logging
from collections.abc import Sequence

from turnkeeper.activities.providers.request_encoding import Block
from turnkeeper.activities.providers.tool_schemas import plain_schema
from turnkeeper.models.transcript.model_call import MAX_TOOLS, CallPart, ToolSpec, supported_tools

_log = logging.getLogger(__name__)


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
