"""Foreign tools' JSON Schemas: whether vendors accept them, and whether arguments match them.

A schema is a small foreign program: 1 KB of it can take hours to evaluate, if its references double at every level. So
every evaluation counts its steps and stops after `MAX_STEPS`. Keywords whose single step could take long are not
checked at all: patterns, uniqueness, comparisons of lists and objects. The server validates its arguments anyway; we do
it so that the model gets a better message before anything happens.

The library's keywords are wrapped for that. A validator in Rust (jsonschema-rs) is faster, but can't be stopped once
its references double: what it would cost has to be foreseen, and an error there would stop the worker.

A vendor rejects a request for one tool with a bad schema, and with it every request of the session. Such a tool is
offered with an open schema, and its own schema as text.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import create
from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]
from pydantic import JsonValue
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.texts import is_nested_over

MAX_STEPS = 100_000
"""Steps for validating the arguments of one call: about 0.1 s."""

MAX_SCHEMA_STEPS = 1_000_000
"""Steps for validating a schema itself, once: enough for 100 KB."""

MAX_SCHEMA_LEVELS = 50
"""Maximum levels of lists and objects in a schema: far below the limit of Python's stack, so that every worker comes to
the same result."""

MAX_ARGUMENT_ERRORS = 5

ANY_OBJECT: dict[str, JsonValue] = {"type": "object"}
"""A schema for any arguments, which every vendor accepts."""

_DIALECT = "https://json-schema.org/draft/2020-12/"
"""The dialect of MCP and of the vendors. Schemas of older dialects are nearly always valid in this one too."""

_PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Anthropic accepts no other names."""

_UNCHECKED = ("pattern", "format", "uniqueItems", "dependentRequired", "unevaluatedItems", "unevaluatedProperties")
"""Keywords whose cost is not limited by the size of their value, or can't be counted."""

_UNKNOWN_WAYS = {"$id", "$schema", "$anchor", "$dynamicRef", "$dynamicAnchor", "patternProperties"}
"""Keys below the top that disable validation with a schema: resolving its references would search all of it."""


class _TooManyStepsError(TurnkeeperError):
    """The evaluation takes too many steps."""


class _StepBudget(threading.local):
    """The current evaluation in this thread: the steps that are left, and the steps that an error costs."""

    steps_left = MAX_STEPS
    error_cost = 1


_budget = _StepBudget()


@lru_cache(maxsize=1_024)
def schema_problem(schema_json: str) -> str | None:
    """Return why a vendor would reject a tool with this schema; `None` if it would not.

    >>> schema_problem('{"type": "object", "properties": {"a": {"type": "string"}}}')
    >>> schema_problem('{"properties": {"a b": {}}}')
    "'a b' is no name of a property that every vendor takes"
    >>> schema_problem('{"properties": {"a": {"type": "any"}}}')
    'properties.a.type: it is no valid JSON Schema of draft 2020-12'
    """
    schema = json.loads(schema_json)
    if is_nested_over(schema, MAX_SCHEMA_LEVELS):
        return f"it is nested over {MAX_SCHEMA_LEVELS} levels"
    try:
        error = next(_errors(_META_VALIDATOR, schema, most_steps=MAX_SCHEMA_STEPS), None)
    except (_TooManyStepsError, RecursionError):
        return "it is too large"
    if error is not None:
        return f"{error.json_path.removeprefix('$').lstrip('.')}: it is no valid JSON Schema of draft 2020-12"
    for name in schema.get("properties", {}):
        if not _PROPERTY_NAME.fullmatch(name):
            return f"{name!r:.80} is no name of a property that every vendor takes"
    return next(_dangling_references(schema), None)


def argument_errors(schema_json: str, args: Mapping[str, JsonValue]) -> list[ValidationError]:
    """Return the first few errors in `args`; empty if they fit, or if only the server can check them."""
    validator = None if schema_problem(schema_json) else _validator_of(schema_json)
    if validator is None:
        return []
    try:
        return list(islice(_errors(validator, args, most_steps=MAX_STEPS), MAX_ARGUMENT_ERRORS))
    except Exception:  # noqa: BLE001  # too many steps, or whatever a foreign schema raises
        return []


@lru_cache(maxsize=1_024)
def _validator_of(schema_json: str) -> Validator | None:
    """Return the validator of a valid schema; `None` if it has keys that disable validation."""
    schema = {key: value for key, value in json.loads(schema_json).items() if key not in ("$schema", "$id")}
    for node in _objects_in(schema):
        if node.keys() & _UNKNOWN_WAYS:
            return None
    _budget.steps_left = MAX_STEPS  # creating it takes steps too, and an earlier evaluation may have used all
    # An empty registry prevents downloads of what a foreign schema refers to.
    validator: Validator = _Counting(schema, registry=Registry())
    return validator


def _dangling_references(schema: dict[str, Any]) -> Iterator[str]:
    """Yield an error for each reference without a target in the schema."""
    for node in _objects_in(schema):
        reference = node.get("$ref")
        if isinstance(reference, str) and not _leads_somewhere(reference, schema):
            yield f"{reference!r:.80} is a reference to nothing in it"


def _leads_somewhere(reference: str, schema: dict[str, Any]) -> bool:
    if reference == "#":
        return True
    target: Any = schema
    if not reference.startswith("#/"):
        return False
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return False
    return True


def _objects_in(value: JsonValue) -> Iterator[dict[str, JsonValue]]:
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


# Counted evaluation


def _errors(validator: Validator, instance: Any, *, most_steps: int) -> Iterator[ValidationError]:
    _budget.steps_left = most_steps
    # Each error message contains the instance and schema, which is expensive if they are large.
    _budget.error_cost = 1 + len(json.dumps([instance, validator.schema], default=str)) // 200
    return validator.iter_errors(instance)


def _spend(steps: int) -> None:
    _budget.steps_left -= steps
    if _budget.steps_left < 0:
        raise _TooManyStepsError


def _counted_keywords(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    _spend(1 + len(schema))
    return list(schema.items())


Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


def _count_steps(check: Keyword) -> Keyword:
    def step(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _spend(1 + _size(value) + (0 if isinstance(instance, str) else _size(instance)))
        for error in check(validator, value, instance, schema) or ():
            _spend(_budget.error_cost)
            yield error

    return step


def _of_single_values(check: Keyword) -> Keyword:
    return lambda validator, value, instance, schema: (
        () if isinstance(instance, list | dict) else check(validator, value, instance, schema)
    )


def _size(value: Any) -> int:
    if isinstance(value, list | dict):
        return len(value)
    return len(value) // 4 if isinstance(value, str) else 0  # a text may be a reference, which is resolved part by part


def _counting_keywords() -> Iterator[tuple[str, Keyword]]:
    for keyword, check in Draft202012Validator.VALIDATORS.items():
        if keyword not in _UNCHECKED:
            yield keyword, _count_steps(_of_single_values(check) if keyword in ("enum", "const") else check)


_created: Any = create  # its type hints are too narrow
_Counting = _created(
    meta_schema=Draft202012Validator.META_SCHEMA,
    validators=dict(_counting_keywords()),
    type_checker=Draft202012Validator.TYPE_CHECKER,
    id_of=Draft202012Validator.ID_OF,
    applicable_validators=_counted_keywords,
)
"""Validates like `Draft202012Validator`, with counted steps."""


def _without_dialect(schema: Any) -> Any:
    """Return the schema without its dialect, which would switch to a validator that doesn't count."""
    return {key: value for key, value in schema.items() if key != "$schema"}


_META_VALIDATOR: Validator = _Counting(
    _without_dialect(Draft202012Validator.META_SCHEMA),
    registry=Registry()
    .with_resources(
        (uri, DRAFT202012.create_resource(_without_dialect(SPECIFICATIONS.contents(uri))))
        for uri in SPECIFICATIONS
        if uri.startswith(_DIALECT)
    )
    .crawl(),
)
