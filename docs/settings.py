"""Writes the tables of `settings.md` from the settings and their docstrings: `python -m docs.settings`.

A comment in the page names the first setting of its table. The table has the settings from there on, in the order of
their class, up to the first one of another table. So a new setting is written in one place. Of a docstring, the first
paragraph is for operators.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from pydantic import BaseModel

from turnkeeper.models.settings.settings import Settings

PAGE = Path(__file__).with_name("settings.md")

TABLE = re.compile(r"^<!-- settings from (?P<first>[\w.]+) -->\n(?:\|.*\n)*", re.MULTILINE)

HEAD = "| setting | default | allowed | meaning |\n|---|---|---|---|\n"


class Row(NamedTuple):
    """One setting, as the page has it."""

    name: str
    default: str
    allowed: str
    meaning: str


def page(text: str) -> str:
    """Return the page with its tables made anew."""
    firsts = {match["first"] for match in TABLE.finditer(text)}
    tables: dict[str, list[Row]] = {}
    first = ""
    for row in rows(Settings):
        first = row.name if row.name in firsts else first
        tables.setdefault(first, []).append(row)
    if set(tables) != firsts:
        raise ValueError(f"these tables have no setting, or these settings no table: {set(tables) ^ firsts}")

    def table(match: re.Match[str]) -> str:
        name = match["first"]
        lines = (f"| `{row.name}` | `{row.default}` | {row.allowed} | {row.meaning} |\n" for row in tables[name])
        return f"<!-- settings from {name} -->\n{HEAD}{''.join(lines)}"

    return TABLE.sub(table, text)


def rows(model: type[BaseModel], prefix: str = "", values: BaseModel | None = None) -> Iterator[Row]:
    """Yield the settings of a model and of those in it; `values`: what they are by default, if the model is in one."""
    schema, docstrings = model.model_json_schema(), dict(docstrings_of(model))
    for name, field in model.model_fields.items():
        value = getattr(values, name) if values else field.get_default()
        if isinstance(value, BaseModel):
            yield from rows(type(value), f"{prefix}{name}.", value)
            continue
        default = json.dumps(value.as_posix() if isinstance(value, PurePath) else value)
        allowed = allowed_by(schema["properties"][name], schema.get("$defs", {}))
        yield Row(prefix + name, default, allowed, meaning_of(docstrings.get(name, "")))


def docstrings_of(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    (body,) = (node.body for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef))
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                yield name, docstring


def meaning_of(docstring: str) -> str:
    """Return a docstring's first paragraph on one line, for operators."""
    text = " ".join(docstring.partition("\n\n")[0].split())
    text = re.sub(r" \([A-Z]{3}-\d+(?:, [A-Z]{3}-\d+)*\)", "", text)
    return re.sub(r"`?\bNone\b`?:", "`null`:", text).replace("|", "\\|")


def allowed_by(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return what a JSON schema allows, besides null."""
    match schema:
        case {"$ref": str(reference)}:
            return allowed_by(definitions[reference.rpartition("/")[2]], definitions)
        case {"anyOf": list(choices)}:
            return " or ".join(allowed_by(choice, definitions) for choice in choices if choice != {"type": "null"})
        case {"enum": list(values)}:
            return ", ".join(f"`{value}`" for value in values)
        case {"type": "boolean"}:
            return "`true`, `false`"
        case {"type": "integer" | "number"}:
            return _range(schema)
        case {"type": "array", "items": items}:
            return f"list of {allowed_by(items, definitions)}"
        case {"format": "path"}:
            return "path"
        case _:
            return "text"


def _range(schema: dict[str, Any]) -> str:
    low, above, high = (schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    if above is not None:
        return f"above {above:,}" if high is None else f"above {above:,}, to {high:,}"
    return f"from {low:,}" if high is None else f"{low:,} to {high:,}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
