"""Tools and calls as both of OpenAI's APIs take them."""

import json

from activities.providers.verbatim import Block
from models.model_call import CallPart, ToolSpec

_NOT_AT_THE_TOP = frozenset({"oneOf", "anyOf", "allOf", "enum", "not"})


def parameters_of(tool: ToolSpec) -> Block:
    """Return the schema of the tool's arguments as one that is taken: of an object, with properties.

    What says more at the top level would get the whole request refused; it is left out. The call's arguments are
    checked against the tool's own schema in any case.

    >>> parameters_of(ToolSpec(name="now", input_schema={"anyOf": [{"required": ["a"]}]}))
    {'type': 'object', 'properties': {}}
    """
    kept = {key: value for key, value in tool.input_schema.items() if key not in _NOT_AT_THE_TOP}
    return {"type": "object", "properties": {}, **kept} | {"type": "object"}


def written_arguments(call: CallPart) -> str:
    r"""Return the call's arguments as the text of a JSON object.

    Where the model wrote none, it is to see what it wrote; but chat templates read arguments as JSON, and fail over
    what is none, for good: it would be part of every later request.

    >>> written_arguments(CallPart(kind="call", id="c", name="look", args={"at": "é"}))
    '{"at": "é"}'
    >>> written_arguments(CallPart(kind="call", id="c", name="look", args='{"at": '))
    '{"invalid_json": "{\\"at\\": "}'
    """
    args = {"invalid_json": call.args} if isinstance(call.args, str) else call.args
    return json.dumps(args, ensure_ascii=False)
