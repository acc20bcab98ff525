"""One message to the conversation graph, and its answer as it comes."""

from collections.abc import AsyncIterator
from uuid import uuid4

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from turnlog.consumers.graph.build import Graph
from turnlog.consumers.graph.generate import TEXT
from turnlog.consumers.graph.state import ConversationState

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
    async for told in graph.astream(given, config, stream_mode="custom", durability="sync"):
        yield told["text"] if told["kind"] == TEXT else STARTS_AGAIN


def thread_config(conversation_id: str, user_id: str | None = None) -> RunnableConfig:
    """user_id: whose data the checkpointer's events are."""
    return {"configurable": {"thread_id": conversation_id} | ({"user_id": user_id} if user_id else {})}
