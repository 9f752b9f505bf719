"""What foreign servers say of their tools' arguments: whether it can be told to a vendor, and whether arguments fit it.

A schema is a small program, and a foreign one: 1 KB of it can take hours to evaluate, if its references double at every
level. So every evaluation is counted in steps, and given up after `MAX_STEPS`. What a single step could take long for
is not checked at all: patterns, uniqueness, comparisons of lists and objects. The server checks its arguments in any
case; we do so that the model is told of a mistake in a better way, and before anything happens.

A vendor refuses a request for one tool whose schema it does not take, and with it every request of the session. Such a
tool is offered with a schema that says nothing, and its own as text.
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

from turnkeeper.models.bounds import is_nested_over

MAX_STEPS = 100_000
"""How much is done to check the arguments of one call: about 0.1 s."""

MAX_SCHEMA_STEPS = 1_000_000
"""How much is done to check a schema itself, once: enough for one of 100 KB."""

MAX_SCHEMA_LEVELS = 50
"""Most levels of lists and objects in a schema: much less than an evaluation has room for on Python's stack, so that
every worker comes to the same verdict, wherever it evaluates."""

MAX_ARGUMENT_ERRORS = 5

ANY_OBJECT: dict[str, JsonValue] = {"type": "object"}
"""The schema that every vendor takes, of whatever arguments."""

_DIALECT = "https://json-schema.org/draft/2020-12/"
"""The one of MCP and of the vendors; schemas that declare an older one are nearly always good in this one too."""

_PROPERTY_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Anthropic takes no others."""

_UNCHECKED = ("pattern", "format", "uniqueItems", "dependentRequired", "unevaluatedItems", "unevaluatedProperties")
"""Keywords whose evaluation is not bounded by the size of what they are about, or not counted where it happens."""

_UNKNOWN_WAYS = {"$id", "$schema", "$anchor", "$dynamicRef", "$dynamicAnchor", "patternProperties"}
"""Keys below the top with which a schema is not used for checks: its references would be searched for all over it."""


class _TooManyStepsError(Exception):
    """It would take too many steps."""


class _StepBudget(threading.local):
    """The evaluation that goes on in this thread: how many steps it has left, and how many an error costs."""

    steps_left = MAX_STEPS
    error_cost = 1


_budget = _StepBudget()


@lru_cache(maxsize=1_024)
def schema_problem(schema_json: str) -> str | None:
    """Say why a vendor would refuse a tool for this schema of its arguments; `None`: it would not.

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
    """Return the first few things that are wrong with `args`: none if they fit, or if that is left to the server."""
    validator = None if schema_problem(schema_json) else _validator_of(schema_json)
    if validator is None:
        return []
    try:
        return list(islice(_errors(validator, args, most_steps=MAX_STEPS), MAX_ARGUMENT_ERRORS))
    except Exception:  # noqa: BLE001  # too much work, or whatever a foreign schema can make of its evaluation
        return []


@lru_cache(maxsize=1_024)
def _validator_of(schema_json: str) -> Validator | None:
    """Return what checks arguments against a good schema; `None`: it is not one for us."""
    schema = {key: value for key, value in json.loads(schema_json).items() if key not in ("$schema", "$id")}
    for node in _objects_in(schema):
        if node.keys() & _UNKNOWN_WAYS:
            return None
    _budget.steps_left = MAX_STEPS  # to look at its keys is a step too, and the evaluation before may have had too few
    # With a registry of its own it does not fetch what a foreign schema refers to.
    validator: Validator = _Counting(schema, registry=Registry())
    return validator


def _dangling_references(schema: dict[str, Any]) -> Iterator[str]:
    """Say of each reference that it leads nowhere, or out of the schema."""
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
    """Yield what does not fit. Raises `_TooManyStepsError` after so many steps."""
    _budget.steps_left = most_steps
    # What is wrong is told with what it is about, each time: that is not free where it is large.
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
    return len(value) // 4 if isinstance(value, str) else 0  # of a reference: it is walked part by part


def _counting_keywords() -> Iterator[tuple[str, Keyword]]:
    for keyword, check in Draft202012Validator.VALIDATORS.items():
        if keyword not in _UNCHECKED:
            yield keyword, _count_steps(_of_single_values(check) if keyword in ("enum", "const") else check)


_created: Any = create  # its types are narrower than what it takes
_Counting = _created(
    meta_schema=Draft202012Validator.META_SCHEMA,
    validators=dict(_counting_keywords()),
    type_checker=Draft202012Validator.TYPE_CHECKER,
    id_of=Draft202012Validator.ID_OF,
    applicable_validators=_counted_keywords,
)
"""Evaluates as `Draft202012Validator` does, in counted steps."""


def _without_dialect(schema: Any) -> Any:
    """Return a schema that names no dialect: by its name an evaluation would go on uncounted."""
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
