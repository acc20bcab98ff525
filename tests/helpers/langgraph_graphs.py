"""Builds graphs and threads for the tests of TurnlogSaver."""

from typing import Any

from helpers.servers import rows
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from turnlog.projectors.engine.writer import Connection


def config(thread: str = "t", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def one_node(state: Any, node: Any, saver: Any) -> Any:
    """Returns a graph of a single node."""
    graph = StateGraph(state)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=saver)


def chat(saver: Any, *replies: Any) -> Any:
    """Returns a graph that answers with the replies in turn, or with the number of messages that it saw."""
    left = list(replies)

    async def agent(state: MessagesState) -> Any:
        if left:
            return {"messages": left.pop(0)}
        return {"messages": [AIMessage(f"I saw {len(state['messages'])}")]}

    return one_node(MessagesState, agent, saver)


async def history(graph: Any, thread: str = "t") -> list[Any]:
    return [state async for state in graph.aget_state_history(config(thread))]


async def turns(db: Connection, thread: str = "t") -> list[Any]:
    return await rows(db, "SELECT role, content FROM messages WHERE thread_id = %s ORDER BY seq", thread)
