"""The state of one conversation, passed from node to node (seed D 2.3.2), and the time limit of its sources.

Everything is plain JSON but the messages, so that any checkpointer can keep it.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, Protocol, Required, TypedDict, TypeVar

import psycopg
from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime as Run

from turnlog.events.errors import TurnlogError

PATIENCE_S = 5.0
T = TypeVar("T")
Update = dict[str, Any]


class ConversationState(TypedDict, total=False):
    """conversation_id: the checkpointer's thread_id. agent_type: who answers, `general` where no route matched.

    memory_context: long-term memories of the user, one a line; memory_ids: of those of P7 in it; memory_known: its
    preferences and entities. summary_seq: of the event that wrote the summary. topics: of the whole conversation, most
    mentioned first. episodic_memory: older turns, {"role", "content", "timestamp", "seq"}, in time order.
    evidence: what the older turns have for an answer (`Evidence`), None where that cannot be judged.
    retrieval_results: {"namespace", "key", "text", "score"}, best first. pruned_through: turns up to this sequence
    left the conversation; only the summary still covers them. debug: node → why a part is missing, or what it chose.
    """

    messages: Required[Annotated[list[AnyMessage], add_messages]]
    user_id: Required[str]
    conversation_id: Required[str]
    session_id: str

    memory_context: str | None
    memory_ids: list[str]
    memory_known: dict[str, Any] | None
    conversation_summary: str | None
    summary_seq: int | None
    topics: list[str]
    episodic_memory: list[dict[str, Any]] | None
    evidence: dict[str, Any] | None
    pruned_through: int

    kb_prefix: str | None
    agent_type: str
    use_retrieval: bool
    retrieval_results: list[dict[str, Any]] | None

    debug: dict[str, str]


def question(messages: Sequence[AnyMessage]) -> str:
    """The words of the user's latest message, '' when there is none."""
    return next((str(message.text) for message in reversed(messages) if message.type == "human"), "")


class Node(Protocol):
    """State in, the parts that change out."""

    async def __call__(self, state: ConversationState) -> Update: ...


class RunNode(Protocol):
    """A node that also takes the run's store and stream from LangGraph."""

    async def __call__(self, state: ConversationState, *, runtime: Run[None]) -> Update: ...


async def unless_away(work: Awaitable[T], empty: T) -> tuple[T, str]:
    """The work's result and '', or `empty` and the reason, after PATIENCE_S seconds at most (O3)."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work, ""
    except TimeoutError:
        return empty, f"no answer within {PATIENCE_S:g} s"
    except (TurnlogError, psycopg.Error, OSError) as error:
        return empty, str(error).strip() or repr(error)
