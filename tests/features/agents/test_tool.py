"""`@tool`: the schema, description and checks of a function (AGN-3)."""

from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ValidationError

from turnkeeper.features.agents.agent import Agent, AgentDefinitionError
from turnkeeper.features.agents.tool import Tool, ToolContext, ToolDefinitionError, tool


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Item(BaseModel):
    name: str
    count: int = 1


@tool(effect="idempotent")
def order(items: list[Item], size: Size, note: str | int | None = None, unit: Literal["C", "F"] = "C") -> Item:
    """Order items.

    They arrive tomorrow.

    Args:
        items: What to order,
            at most ten.
        unit (str): Of the temperature.

    Returns:
        The first one.
    """
    return items[0]


def test_agn_3_the_schema_has_nested_models_unions_enums_and_defaults() -> None:
    properties = order.input_schema["properties"]
    assert order.input_schema["required"] == ["items", "size"]
    assert properties["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert order.input_schema["$defs"]["Size"]["enum"] == ["small", "large"]
    assert [one["type"] for one in properties["note"]["anyOf"]] == ["string", "integer", "null"]
    assert properties["unit"]["enum"] == ["C", "F"]
    assert order.input_schema["additionalProperties"] is False


def test_agn_3_the_docstring_describes_the_tool_and_its_parameters() -> None:
    assert order.description == "Order items.\n\nThey arrive tomorrow."
    assert order.input_schema["properties"]["items"]["description"] == "What to order, at most ten."
    assert order.input_schema["properties"]["unit"]["description"] == "Of the temperature."


async def test_agn_3_a_function_gets_models_and_not_json() -> None:
    result = await order.run({"items": [{"name": "tea"}], "size": "small"}, ToolContext())
    assert result == Item(name="tea")
    with pytest.raises(ValidationError, match="size"):
        await order.run({"items": [], "size": "huge"}, ToolContext())


async def test_agn_3_the_first_parameter_may_be_the_context() -> None:
    @tool(effect="read")
    async def who(context: ToolContext, greeting: str) -> str:
        return f"{greeting} {context.user}"

    assert list(who.input_schema["properties"]) == ["greeting"]
    assert await who.run({"greeting": "hi"}, ToolContext(user="anna")) == "hi anna"


def no_type(city) -> str:  # type: ignore[no-untyped-def]
    return str(city)


def many(*cities: str) -> str:
    return str(cities)


def late(city: str, context: ToolContext) -> str:
    return city


def odd(city: Any, connection: "Tool.nothing") -> str:  # type: ignore[name-defined]
    return str(city)


class Plain:
    pass


def plain(city: Plain) -> str:
    return str(city)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (no_type, "'city' has no type"),
        (many, "can't fill in"),
        (late, "must be the first"),
        (plain, "without a JSON schema"),
        (lambda: "x", "needs another name"),
    ],
)
def test_agn_3_a_function_that_cannot_be_a_tool_says_why(function: Any, reason: str) -> None:
    with pytest.raises(ToolDefinitionError, match=reason):
        tool(effect="read")(function)


def test_agn_3_a_tool_must_name_its_effect() -> None:
    with pytest.raises(ToolDefinitionError, match=r"@tool\(effect='read'\), 'idempotent' or 'at_most_once'"):

        @tool
        def anything() -> str:
            return ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "My Agent"}, "another name"),
        ({"instructions": " "}, "no instructions"),
        ({"tools": [print]}, "neither a name nor a function with @tool"),
        ({"tools": [order, "order"]}, "'order' twice"),
    ],
)
def test_agn_2_an_agent_that_is_not_right_says_why(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(AgentDefinitionError, match=reason):
        Agent(**{"name": "shop", "instructions": "Sell.", **change})
