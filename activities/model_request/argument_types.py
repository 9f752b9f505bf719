"""Arguments of a type that the tool's schema does not have: small models write `"2"` for 2 (AGT-7).

Servers would convert them too. It is done when the answer arrives, so the arguments that people approve are those that
run.
"""

import json
import re
from collections.abc import Iterable

from pydantic import JsonValue

from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, ToolSpec

MAX_LEVELS = 20

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,14})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?([eE][+-]?\d{1,2})?")

Schema = JsonValue


def with_types(response: ModelResponse, tools: Iterable[ToolSpec]) -> ModelResponse:
    """Return the response, with texts in its calls' arguments converted where the schemas of `tools` say so."""
    schemas = {tool.name: tool.input_schema for tool in tools}
    parts = [
        _converted(part, schemas.get(part.name)) if isinstance(part, CallPart) else part for part in response.parts
    ]
    return response if parts == response.parts else response.model_copy(update={"parts": parts})


def _converted(call: CallPart, schema: Schema) -> CallPart:
    if isinstance(call.args, str):
        return call
    args = convert(call.args, schema)
    return call if args == call.args else call.model_copy(update={"args": args})


def convert(value: JsonValue, schema: Schema, levels: int = MAX_LEVELS) -> JsonValue:
    """Return `value` with numbers and booleans in place of texts that are exactly one, where `schema` has no text.

    >>> schema = {"properties": {"n": {"type": "integer"}, "all": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}}
    >>> convert({"n": "2", "all": "true", "text": "3"}, schema)
    {'n': 2, 'all': True, 'text': '3'}
    >>> [convert(text, {"type": "integer"}) for text in ("2.0", " 2", "02", "1e3", "9" * 16)]
    ['2.0', ' 2', '02', '1e3', '9999999999999999']
    >>> convert("2", {"type": ["integer", "string"]}), convert(["1.5"], {"items": {"type": "number"}})
    ('2', [1.5])
    """
    if not isinstance(schema, dict) or not levels:
        return value
    if isinstance(value, str):
        return _number_or_boolean(value, _types(schema))
    if isinstance(value, list):
        return [convert(item, schema.get("items"), levels - 1) for item in value]
    if isinstance(value, dict):
        properties = schema.get("properties")
        schemas = properties if isinstance(properties, dict) else {}
        return {key: convert(item, schemas.get(key), levels - 1) for key, item in value.items()}
    return value


def _number_or_boolean(text: str, types: set[str]) -> JsonValue:
    if "string" in types:
        return text
    is_one = (
        ("integer" in types and _INTEGER.fullmatch(text))
        or ("number" in types and _NUMBER.fullmatch(text))
        or ("boolean" in types and text in ("true", "false"))
    )
    value: JsonValue = json.loads(text) if is_one else text
    return value


def _types(schema: dict[str, JsonValue]) -> set[str]:
    """Return the types that a schema accepts; `string` if it does not say."""
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return {kind for option in options for kind in (_types(option) if isinstance(option, dict) else {"string"})}
    kind = schema.get("type", "string")
    return {one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)}
