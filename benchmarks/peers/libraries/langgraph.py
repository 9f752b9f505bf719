"""LangGraph with its SQLite checkpointer, in one process: the state is written after each step of the graph."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import Path
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from benchmarks.peers import work
from benchmarks.peers.process import Ask

PACKAGES = ("langgraph", "langgraph-checkpoint-sqlite")


@tool
async def file_read(path: str) -> str:
    """Read a file."""
    return work.RESULT


async def call_model(state: MessagesState) -> MessagesState:
    """Answer at once."""
    since_prompt = takewhile(lambda message: not isinstance(message, HumanMessage), reversed(state["messages"]))
    if work.is_answer_due(sum(isinstance(message, ToolMessage) for message in since_prompt)):
        return MessagesState(messages=[AIMessage(work.ANSWER)])
    call = {"name": work.TOOL, "args": work.ARGUMENTS, "id": f"call-{uuid4()}"}
    return MessagesState(messages=[AIMessage(work.CALL_TEXT, tool_calls=[call])])


def graph() -> StateGraph:
    builder = StateGraph(MessagesState)
    builder.add_node("model", call_model)
    builder.add_node("tools", ToolNode([file_read]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder


@asynccontextmanager
async def running(place: str) -> AsyncIterator[Ask]:
    async with AsyncSqliteSaver.from_conn_string(str(Path(place) / "database")) as saver:
        agent = graph().compile(checkpointer=saver)

        async def ask(session: str, prompt: str) -> str:
            state = await agent.ainvoke(
                {"messages": [HumanMessage(prompt)]}, {"configurable": {"thread_id": session}, "recursion_limit": 100}
            )
            return str(state["messages"][-1].content)

        yield ask
