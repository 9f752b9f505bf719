"""Writes what is generated in `docs/`: `python -m docs.reference`. A test says when a page has to be written again.

- `cli.md`, from the Typer application: every command with its arguments and options.
- `settings.md`: its tables, from the settings and their docstrings. A comment in the page names the first setting of
  its table, which has the settings from there on, in the order of their class, up to the first one of another table.
  Of a docstring, the first paragraph is for operators.
- `http.md`: its table of routes, from the OpenAPI document.
- `export.schema.json`, from the model of exported sessions.
"""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import typer
from pydantic import BaseModel

from turnkeeper.api.app import create_app
from turnkeeper.cli import commands
from turnkeeper.features.copies.document.document import schema_text
from turnkeeper.models.settings.settings import Settings

DOCS = Path(__file__).parent

ROUTES = re.compile(r"^\| route \| role \|.*\n(?:\|.*\n)*", re.MULTILINE)

TABLE = re.compile(r"^<!-- settings from (?P<first>[\w.]+) -->\n(?:\|.*\n)*", re.MULTILINE)

HEAD = "| setting | default | allowed | meaning |\n|---|---|---|---|\n"


class Row(NamedTuple):
    """One setting, as the page has it."""

    name: str
    default: str
    allowed: str
    meaning: str


def settings_page(text: str) -> str:
    """Return the page of settings with today's tables."""
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


def http_page(text: str) -> str:
    """Return the page with a row for each operation: method and path, the role that it needs, its first sentence."""
    rows = ["| route | role | what it does |", "|---|---|---|"]
    for path, methods in create_app(Settings()).openapi()["paths"].items():
        for method, operation in methods.items():
            sentence = operation["description"].partition("\n")[0]
            rows.append(f"| `{method.upper()} {path}` | {operation['x-role']} | {sentence} |")
    return ROUTES.sub(lambda _: "\n".join(rows) + "\n", text)


CLI_HEAD = """# The command line

Every command with its arguments and options; `--help` shows the same. In a clone the program is
`.venv/bin/turnkeeper`. This page is made from the code.
"""


def cli_page(_: str = "") -> str:
    """Return the page of the command line."""
    return CLI_HEAD + "".join(_sections(typer.main.get_command(commands), "turnkeeper"))


def _sections(command: Any, name: str) -> Iterator[str]:
    if subcommands := getattr(command, "commands", None):
        for subname, subcommand in sorted(subcommands.items()):
            yield from _sections(subcommand, f"{name} {subname}")
    elif not command.hidden:
        parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        arguments = [_usage(parameter) for parameter in parameters if parameter.param_type_name == "argument"]
        yield f"\n## `{' '.join([name, *arguments])}`\n\n{' '.join(command.help.split())}\n"
        if parameters:
            yield "\n| argument or option | default | meaning |\n|---|---|---|\n" + "".join(map(_row, parameters))


def _usage(argument: Any) -> str:
    return argument.metavar if argument.required or argument.metavar.startswith("[") else f"[{argument.metavar}]"


def _row(parameter: Any) -> str:
    match parameter.default:
        case _ if parameter.required:
            default = "required"
        case None | "":
            default = "none"
        case False:
            default = "off"
        case value:
            default = f"`{value}`"
    names = [parameter.metavar] if parameter.param_type_name == "argument" else parameter.opts
    value = f" {parameter.metavar}" if parameter.param_type_name == "option" and parameter.metavar else ""
    return f"| {', '.join(f'`{name}{value}`' for name in names)} | {default} | {parameter.help} |\n"


PAGES: dict[str, Callable[[str], str]] = {
    "cli.md": cli_page,
    "settings.md": settings_page,
    "http.md": http_page,
    "export.schema.json": lambda _: schema_text(),
}
"""How each page follows from the code and, where people write the rest of it, from its text."""


if __name__ == "__main__":
    for name, write in PAGES.items():
        page = DOCS / name
        page.write_text(write(page.read_text() if page.exists() else ""))
