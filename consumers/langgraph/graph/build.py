"""The conversation graph (G7): route → recall → (retrieve) → generate → persist (seed D 2.3.4)."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models.factory import Models, make_models
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings, application_settings
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.consumers.langgraph.graph.generate import TEXT, generate_node
from turnlog.consumers.langgraph.graph.persist import Receipts, persist_node
from turnlog.consumers.langgraph.graph.recall import recall_node
from turnlog.consumers.langgraph.graph.retrieve import retrieve_node
from turnlog.consumers.langgraph.graph.route import Route, route_node
from turnlog.consumers.langgraph.graph.state import ConversationState
from turnlog.consumers.langgraph.store.store import TurnlogStore
from turnlog.consumers.runtime import in_own_thread, opened, projecting

Graph = CompiledStateGraph[ConversationState, None, ConversationState, ConversationState]


@dataclass(frozen=True, slots=True)
class Deps:
    """What the nodes work with. The first route of the highest score wins; without routes nothing is retrieved."""

    runtime: Runtime
    models: Models
    routes: Sequence[Route] = ()


def conversation_graph(
    deps: Deps, *, checkpointer: BaseCheckpointSaver[str] | None = None, store: BaseStore | None = None
) -> Graph:
    """Invoke it with thread_id = the state's conversation_id, or through `converse`."""
    settings = deps.runtime.settings
    graph = StateGraph(ConversationState)
    graph.add_node("route", route_node(deps.routes))
    graph.add_node("recall", recall_node(deps.runtime.pool, deps.models.embedder, settings, deps.models.reranker))
    graph.add_node("retrieve", retrieve_node(settings.recall_top_k))
    graph.add_node("generate", generate_node(deps.models.chat, settings))
    memories = Memories(deps.runtime.log, deps.runtime.pool)
    receipts = Receipts(deps.runtime.log, deps.runtime.pool, settings, deps.models.chat.model)
    graph.add_node("persist", persist_node(deps.runtime.log, memories, receipts, settings))
    graph.add_edge(START, "route")
    graph.add_edge("route", "recall")
    graph.add_conditional_edges("recall", after_recall)
    graph.add_edge("retrieve", "generate")
    graph.add_edge("generate", "persist")
    graph.add_edge("persist", END)
    return graph.compile(checkpointer=checkpointer, store=store, name="conversation")


def after_recall(state: ConversationState) -> Literal["retrieve", "generate"]:
    return "retrieve" if state.get("use_retrieval") else "generate"


@contextlib.asynccontextmanager
async def opened_graph(routes: Sequence[Route] = (), settings: Settings | None = None) -> AsyncIterator[Graph]:
    """Servers, models, TurnlogSaver and TurnlogStore (`graph.store`) while the block runs. Raises TurnlogErrors."""
    chosen = settings or application_settings()
    async with (
        opened(chosen, "turnlog-graph") as runtime,
        in_own_thread(runtime, projecting),
        contextlib.AsyncExitStack() as stack,
    ):
        models = make_models(chosen)
        stack.push_async_callback(models.close)
        store = TurnlogStore(runtime.log, runtime.pool, chosen.tenant, settings=chosen)
        stack.push_async_callback(store.aclose)
        saver = TurnlogSaver(runtime.log, runtime.pool, chosen.tenant)
        yield conversation_graph(Deps(runtime, models, routes), checkpointer=saver, store=store)


STARTS_AGAIN = "\n[the answer starts again]\n"


async def converse(graph: Graph, conversation_id: str, user_id: str, text: str | None) -> AsyncIterator[str]:
    """The pieces of the answer to show; the answer of record is the last message of the graph's state.

    text None: goes on where the last run failed, as when the model was away. Raises ModelError and what the
    checkpointer raises; the message stays in the conversation then.
    """
    given: ConversationState | None = None
    if text is not None:
        asked = HumanMessage(text, id=str(uuid4()))
        given = {"messages": [asked], "user_id": user_id, "conversation_id": conversation_id}
    config = thread_config(conversation_id, user_id)
    # "sync": the answer is on the log before persist meters it, so a kill in between costs no second answer.
    async for piece in graph.astream(given, config, stream_mode="custom", durability="sync"):
        yield piece["text"] if piece["kind"] == TEXT else STARTS_AGAIN


def thread_config(conversation_id: str, user_id: str | None = None) -> RunnableConfig:
    """user_id: whose data the checkpointer's events are."""
    return {"configurable": {"thread_id": conversation_id} | ({"user_id": user_id} if user_id else {})}
