"""A worker of one's own, with a workflow that asks an agent, and the agents beside it.

With a Temporal server at localhost:7233: `python examples/beside.py`. The workflow starts a session as its child and
reads the answer; people can see and continue that session in the chat page of `turnkeeper api`.
"""

import asyncio
from datetime import timedelta
from uuid import uuid4

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from turnkeeper import Agent, TurnkeeperPlugin, tool


@tool(effect="read")
def stock(article: str) -> int:
    """How many of an article there are."""
    return {"tea": 12}.get(article, 0)


agent = Agent("clerk", instructions="Answer in one sentence.", tools=[stock])


@workflow.defn
class Order:
    """Somebody's own workflow."""

    @workflow.run
    async def run(self, article: str) -> str:
        """Ask the agent about an article, and return how its session has ended."""
        session = {
            "agent": "clerk@1",
            "system_prompt": agent.instructions,
            "tools": ["app__stock"],
            "first_prompt": f"call stock with {article}",
        }
        child = await workflow.start_child_workflow(
            "AgenticAIWorkflow",
            session,
            id=f"{workflow.info().workflow_id}-agent",
            task_queue="turnkeeper",
            run_timeout=timedelta(minutes=5),
        )
        await child.signal("end_chat", "The order is placed.")
        end: dict[str, object] = await child
        return f"{end['status']} after {end['turn_count']} turn"


async def main(address: str = "localhost:7233") -> str:
    """Run the worker for one order."""
    client = await Client.connect(address, plugins=[TurnkeeperPlugin(agents=[agent])])
    async with Worker(client, task_queue="orders", workflows=[Order]):
        return await client.execute_workflow(Order.run, "tea", id=f"order-{uuid4()}", task_queue="orders")


if __name__ == "__main__":
    print(asyncio.run(main()))
