"""An agent that hands work over to a second one, which has other tools and sees only what it is told.

`turnkeeper dev examples/research.py`, then: "Write a paragraph on the history of tea".
"""

from turnkeeper import Agent, tool

LIBRARY = {
    "tea": "Tea was drunk in China for over 2,000 years before it came to Europe in 1610, on Dutch ships.",
    "coffee": "Coffee houses opened in Mecca in the 15th century, and in Vienna in 1685.",
}


@tool(effect="read")
def search_library(topic: str) -> list[str]:
    """Search the library for texts on a topic."""
    return [text for name, text in LIBRARY.items() if name in topic.lower()]


researcher = Agent(
    "researcher",
    instructions="Search the library, and answer with the facts that you find there and with nothing else.",
    tools=[search_library],
)

agent = Agent(
    "writer",
    instructions=(
        "You write short texts. You know nothing by yourself: give each question of fact to the agent researcher "
        "with run_task, and use only what it answers."
    ),
    handoffs=[researcher],
)
