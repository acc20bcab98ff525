"""Runs LangGraph's own persistence on the same Postgres: a graph of messages with AsyncPostgresSaver.

Its packages are in the extra `bench`. They are imported by name, so that the other benchmarks run without them.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool


@dataclass(frozen=True, slots=True)
class Conversation:
    """One thread of a LangGraph application."""

    graph: Any
    config: dict[str, Any]

    async def record(self, *texts: str) -> None:
        """Updates the state once with a message for each text, alternately of the person and the assistant."""
        said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
        await self.graph.aupdate_state(self.config, {"messages": said}, as_node="agent")

    async def read(self) -> int:
        """Reads the state as an application does, and returns the number of its messages."""
        state = await self.graph.aget_state(self.config)
        return len(state.values["messages"])


@contextlib.asynccontextmanager
async def postgres_savers(database_url: str) -> AsyncIterator[Callable[[], Any]]:
    """Yields a function that makes an AsyncPostgresSaver; all share one pool. Raises ModuleNotFoundError without the
    extra."""
    savers = import_module("langgraph.checkpoint.postgres.aio")
    pool: AsyncConnectionPool[AsyncConnection[dict[str, Any]]] = AsyncConnectionPool(
        database_url,
        min_size=1,
        max_size=4,
        open=False,
        kwargs={
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": dict_row,
            "options": "-c search_path=public",  # because turnlog has tables of the same names in its schema
        },
    )
    async with pool:
        await savers.AsyncPostgresSaver(pool).setup()
        yield lambda: savers.AsyncPostgresSaver(pool)


@contextlib.asynccontextmanager
async def conversation(database_url: str) -> AsyncIterator[Conversation]:
    """Yields a conversation. Raises ModuleNotFoundError without the extra."""
    graphs = import_module("langgraph.graph")
    async with postgres_savers(database_url) as make_saver:
        graph = graphs.StateGraph(graphs.MessagesState)
        graph.add_node("agent", _silent)
        graph.add_edge(graphs.START, "agent")
        yield Conversation(graph.compile(checkpointer=make_saver()), {"configurable": {"thread_id": "long"}})


async def _silent(state: dict[str, Any]) -> dict[str, Any]:
    """The graph's only node. Does nothing, because `record` writes the states."""
    return {}
