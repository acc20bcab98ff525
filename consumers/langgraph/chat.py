"""A chat with the conversation graph in one process: opens the graph, and yields the pieces of its answers."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from turnlog.agent.settings import Settings, application_settings
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.consumers.langgraph.conversation import Graph, conversation_graph
from turnlog.consumers.langgraph.conversation_routes import Route as Route
from turnlog.consumers.langgraph.conversation_state import ConversationState
from turnlog.consumers.langgraph.store.store import TurnlogStore
from turnlog.consumers.runtime import in_own_thread, opened, projecting

STARTS_AGAIN = "\n[the answer starts again]\n"


@contextlib.asynccontextmanager
async def opened_graph(routes: Sequence[Route] = (), settings: Settings | None = None) -> AsyncIterator[Graph]:
    """Yields the graph, with servers, models, TurnlogSaver and TurnlogStore (`graph.store`) open during the block.
    Raises TurnlogErrors.
    """
    chosen = settings or application_settings()
    async with opened(chosen, "turnlog-graph") as runtime, in_own_thread(runtime, projecting):
        store = TurnlogStore(runtime.log, runtime.pool, chosen.tenant, settings=chosen)
        async with contextlib.aclosing(store):
            saver = TurnlogSaver(runtime.log, runtime.pool, chosen.tenant)
            yield conversation_graph(runtime, routes, checkpointer=saver, store=store)


async def converse(graph: Graph, conversation_id: str, user_id: str, text: str | None) -> AsyncIterator[str]:
    """Yields the pieces of the answer to show; the recorded answer is the last message of the graph's state.

    text: None continues where the last run failed, for example because the model was unavailable. Raises ModelError and
    the checkpointer's errors; the message then stays in the conversation.
    """
    state: ConversationState | None = None
    if text is not None:
        asked = HumanMessage(text, id=str(uuid4()))
        state = {"messages": [asked], "user_id": user_id, "conversation_id": conversation_id}
    config = thread_config(conversation_id, user_id)
    # "sync": a node begins only when the earlier steps are on the log, because the context is made of them. It also
    # means that a process that is killed before persist need not make the answer again.
    async for piece in graph.astream(state, config, stream_mode="custom", durability="sync"):
        yield piece.get("text", STARTS_AGAIN)


def thread_config(conversation_id: str, user_id: str | None = None) -> RunnableConfig:
    """Returns the config of a conversation's runs. user_id: the owner of the checkpointer's events."""
    return {"configurable": {"thread_id": conversation_id} | ({"user_id": user_id} if user_id else {})}
