"""Rows of tools as servers give them: each vendor's rules for schemas, names and descriptions (F2, L1, L8, L11)."""

from collections.abc import Iterator
from typing import Any

from tests.faults.matrix.playing import PLAIN, TEXT, Row, RowSession, is_answered, tool
from tests.vendors.flavours.flavours import FLAVOURS
from turnkeeper.models.transcript.model_call import ToolSpec


def of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


SHAPES: dict[str, list[ToolSpec]] = {
    "array without items": [tool("odd", of({"a": {"type": "array"}}))],
    "nested arrays": [tool("odd", of({"a": {"type": "array", "items": {"type": "array"}}}))],
    "array or null": [tool("odd", of({"a": {"type": ["array", "null"]}}))],
    "array in anyOf": [tool("odd", of({"a": {"anyOf": [{"type": "array"}, {"type": "string"}]}}))],
    "items: true": [tool("odd", of({"a": {"type": "array", "items": True}}))],
    "anyOf at the top": [
        tool("odd", {"type": "object", "anyOf": [of({"content": {"type": "string"}}), of({"url": {"type": "string"}})]})
    ],
    "oneOf without type": [tool("odd", {"oneOf": [of({"x": {"type": "string"}}), of({"y": {"type": "number"}})]})],
    "allOf with references": [
        tool("odd", {"type": "object", "allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": of({"x": {"type": "string"}})}})
    ],
    "enum of numbers": [tool("odd", of({"size": {"type": "integer", "enum": [1, 2, 3]}}))],
    "enum without type": [tool("odd", of({"size": {"enum": ["a", 1, None]}}))],
    "odd keys": [tool("odd", of({"$filter": {"type": "string"}, "a b": {"type": "string"}, "é": {"type": "string"}}))],
    "recursive": [
        tool("odd", {**of({"tree": {"$ref": "#/$defs/T"}}), "$defs": {"T": of({"left": {"$ref": "#/$defs/T"}})}})
    ],
    "dangling reference": [tool("odd", of({"a": {"$ref": "#/$defs/Gone"}}))],
    "no schema at all": [tool("odd", {})],
    "boolean property": [tool("odd", of({"a": True, "b": {}}))],
    "long description": [tool("odd", TEXT, "It says much. " * 280)],
    "blank description": [tool("odd", TEXT, "  ")],
    "200 tools": [tool(f"t{number}") for number in range(200)],
}


def rows() -> Iterator[Row]:
    for name, tools in SHAPES.items():
        for flavour in FLAVOURS:
            yield Row(f"tools: {name}", flavour, _play, tools=(*PLAIN[:2], *tools))


async def _play(run: RowSession) -> None:
    turns = [await run.turn("p1", ["look"]), await run.turn("p2", ["look"])]
    assert any(map(is_answered, turns)), f"{[turn.error for turn in turns]}"
    assert is_answered(turns[-1]), f"not answered after all: {turns[-1].error}"
    assert [call.result for step in turns[-1].steps if step.kind == "model" for call in step.tool_calls]
    refused = len(run.line.refused)
    assert is_answered(await run.turn("p3", ["look"])), run.turns[-1].error
    assert len(run.line.refused) == refused, f"refused again: {run.line.refused[-1].violation}"
