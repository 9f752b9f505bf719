"""Tools as every vendor accepts them: their schemas, and what is said of them besides (AGT-4). Pure.

Vendors reject a whole request for one schema: with alternatives at its top, with an array that doesn't say what is in
it. So alternatives at the top are merged into one object, and every array gets `items`. A call's arguments are
validated against the tool's own schema before it runs, so nothing wrong runs; and where one object can't say all that
the schema says, the schema stands in the description too.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue

from turnkeeper.activities.providers.request_encoding import Block
from turnkeeper.models.bounds import bound_text
from turnkeeper.models.transcript.model_call import MAX_DESCRIPTION_CHARS, ToolSpec

MAX_MERGED = 200
"""Maximum of schemas that are merged into one: references may double at every level."""

_ALTERNATIVES = ("allOf", "anyOf", "oneOf")
_NOT_AT_THE_TOP = frozenset({*_ALTERNATIVES, "enum", "not", "$ref"})
_DEFINITIONS = ("$defs", "definitions")
_MERGED_KEYS = frozenset({"type", "title", "properties", "required", "additionalProperties", "$schema", *_DEFINITIONS})
"""Keywords that a branch may have without any loss."""

_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS})
_LISTS = frozenset({*_ALTERNATIVES, "prefixItems"})
_SINGLE = frozenset({"items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"})


def plain_schema(tool: ToolSpec) -> Block:
    """Return the schema of the tool's arguments: an object without alternatives at its top, its arrays with `items`.

    >>> forms = [{"properties": {"text": {"type": "string"}}}, {"properties": {"lines": {"type": "array"}}}]
    >>> plain_schema(ToolSpec(name="write", input_schema={"oneOf": forms}))
    {'properties': {'text': {'type': 'string'}, 'lines': {'type': 'array', 'items': {}}}, 'type': 'object'}
    """
    merged, _ = _Merge(tool.input_schema).result()
    return {**_with_items(merged), "type": "object"}


def description_of(tool: ToolSpec) -> str:
    """Return the tool's description, with its schema if `plain_schema` says less than that.

    >>> description_of(ToolSpec(name="now", description="The time.", input_schema={"type": "object"}))
    'The time.'
    >>> description_of(ToolSpec(name="now", input_schema={"anyOf": [{"required": ["at"]}, {"required": ["in"]}]}))
    'Its arguments, as JSON Schema: {"anyOf": [{"required": ["at"]}, {"required": ["in"]}]}'
    """
    _, is_exact = _Merge(tool.input_schema).result()
    description = (tool.description if tool.description.strip() else "") if is_exact else description_with_schema(tool)
    return bound_text(description, MAX_DESCRIPTION_CHARS, 4 * MAX_DESCRIPTION_CHARS)


def description_with_schema(tool: ToolSpec) -> str:
    """Return the tool's description, and behind it the schema of its arguments as text."""
    schema = json.dumps(tool.input_schema, ensure_ascii=False)
    return f"{tool.description}\n\nIts arguments, as JSON Schema: {schema}".strip()


class _Merge:
    """Merges the alternatives at the top of one schema."""

    def __init__(self, schema: Block) -> None:
        self._root = schema
        self._merged = 0

    def result(self) -> tuple[Block, bool]:
        """Return the schema without alternatives at its top, and whether it says the same."""
        return self._merge(self._root)

    def _merge(self, schema: Block) -> tuple[Block, bool]:
        self._merged += 1
        own = {key: value for key, value in schema.items() if key not in _NOT_AT_THE_TOP}
        is_exact = schema.keys().isdisjoint({"enum", "not"})
        for keyword, branches in _branches_of(schema):
            objects = [self._resolved(branch) for branch in branches]
            merged = [self._merge(branch) for branch in objects if branch is not None and self._merged < MAX_MERGED]
            is_exact &= len(merged) == len(branches) and all(exact for _, exact in merged)
            is_exact &= keyword == "allOf" or len(branches) == 1
            own, is_joined = _joined(own, [branch for branch, _ in merged], is_alternative=keyword != "allOf")
            is_exact &= is_joined
        return own, is_exact

    def _resolved(self, branch: JsonValue) -> Block | None:
        """Return the schema of a branch, which may be a reference; `None` if it is none of an object."""
        if not isinstance(branch, dict) or branch.get("type", "object") != "object":
            return None
        reference = branch.get("$ref")
        return self._target(reference) if isinstance(reference, str) and len(branch) == 1 else branch

    def _target(self, reference: str) -> Block | None:
        target: JsonValue = self._root
        for name in reference.removeprefix("#/").split("/") if reference.startswith("#/") else [""]:
            target = target.get(name) if isinstance(target, dict) else None
        return target if isinstance(target, dict) and target.get("type", "object") == "object" else None


def _branches_of(schema: Block) -> Iterable[tuple[str, Sequence[JsonValue]]]:
    """Yield each keyword with the schemas that it combines; a reference is one that must hold."""
    if "$ref" in schema:
        yield "allOf", [{"$ref": schema["$ref"]}]
    for keyword in _ALTERNATIVES:
        branches = schema.get(keyword)
        if isinstance(branches, list) and branches:
            yield keyword, branches


def _joined(own: Block, branches: Sequence[Block], *, is_alternative: bool) -> tuple[Block, bool]:
    """Return `own` with what the branches add, and whether it says all that they say.

    Of a property with several schemas any may hold; one that `own` has stays as it is there.
    """
    properties = dict(_mapping(own.get("properties")))
    added: dict[str, list[JsonValue]] = {}
    for branch in branches:
        for name, schema in _mapping(branch.get("properties")).items():
            if schema not in added.setdefault(name, []):
                added[name].append(schema)
    is_exact = all(branch.keys() <= _MERGED_KEYS for branch in branches)
    for name, schemas in added.items():
        is_exact &= len(schemas) == 1 and properties.get(name, schemas[0]) == schemas[0]
        properties.setdefault(name, schemas[0] if len(schemas) == 1 else {"anyOf": schemas})
    required = list[JsonValue](_names(own))
    by_branch = [_names(branch) for branch in branches]
    for name in dict.fromkeys(name for names in by_branch for name in names):
        is_required = all(name in names for names in by_branch) if is_alternative else True
        required += [name] if is_required and name not in required else []
    joined = {**own, **({"properties": properties} if properties else {})}
    return {**joined, **({"required": required} if required else {})}, is_exact


def _mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _names(schema: Block) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _with_items(schema: Block) -> Block:
    """Return the schema with `items` in each array, at every level: OpenAI and Gemini reject one without.

    >>> _with_items({"properties": {"a": {"type": ["array", "null"]}, "b": {"items": True, "type": "array"}}})
    {'properties': {'a': {'type': ['array', 'null'], 'items': {}}, 'b': {'items': {}, 'type': 'array'}}}
    """
    completed = {key: _inner(key, value) for key, value in schema.items()}
    kind = schema.get("type")
    if kind == "array" or (isinstance(kind, list) and "array" in kind):
        completed["items"] = {} if completed.get("items") in (None, True) else completed["items"]
    return completed


def _inner(key: str, value: JsonValue) -> JsonValue:
    if key in _BY_NAME and isinstance(value, dict):
        return {name: _of_schema(schema) for name, schema in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [_of_schema(schema) for schema in value]
    return _of_schema(value) if key in _SINGLE else value


def _of_schema(value: JsonValue) -> JsonValue:
    return _with_items(value) if isinstance(value, dict) else value
