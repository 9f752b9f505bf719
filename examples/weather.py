from typing import Literal

from turnkeeper import Agent, tool


@tool(effect="read")
async def forecast(city: str, unit: Literal["C", "F"] = "C") -> str:
    """The weather of tomorrow in a city."""
    return f"{city}: 12 {unit}, rain"


agent = Agent("weather", instructions="Answer in one sentence.", tools=[forecast])
