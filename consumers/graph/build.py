"""The conversation graph (G7): route → recall → (retrieve) → generate → persist (seed D 2.3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore

from turnlog.agent.memories.service import Memories
from turnlog.agent.models.factory import Models
from turnlog.consumers.graph.generate import generate_node
from turnlog.consumers.graph.persist import persist_node
from turnlog.consumers.graph.recall import recall_node
from turnlog.consumers.graph.receipt import Receipts
from turnlog.consumers.graph.retrieve import retrieve_node
from turnlog.consumers.graph.route import Route, route_node
from turnlog.consumers.graph.state import ConversationState
from turnlog.consumers.runtime import Runtime

Graph = CompiledStateGraph[ConversationState, None, ConversationState, ConversationState]


@dataclass(frozen=True, slots=True)
class Deps:
    """What the nodes work with. The first route of the highest score wins; none means no retrieval."""

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
    graph.add_node("recall", recall_node(deps.runtime.pool, deps.models.embedder, settings))
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
