"""The state of one conversation: what the nodes of the graph hand on (seed D 2.3.2).

Everything is plain JSON but the messages, so that any checkpointer can keep it.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol, Required, TypedDict

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime as Run

Update = dict[str, Any]


class ConversationState(TypedDict, total=False):
    """conversation_id: the checkpointer's thread_id. agent_type: who answers, `general` where no route matched.

    memory_context: long-term memories of the user, one a line; memory_ids: of those of P7 in it. summary_seq: of the
    event that wrote the summary. topics: of the whole conversation, most mentioned first. episodic_memory: older
    turns, {"role", "content", "timestamp", "seq"}, in time order.
    retrieval_results: {"namespace", "key", "text", "score"}, best first. pruned_through: turns up to this sequence
    left the conversation and only the summary tells of them. debug: node → why a part is missing, or what it chose.
    """

    messages: Required[Annotated[list[AnyMessage], add_messages]]
    user_id: Required[str]
    conversation_id: Required[str]
    session_id: str

    memory_context: str | None
    memory_ids: list[str]
    conversation_summary: str | None
    summary_seq: int | None
    topics: list[str]
    episodic_memory: list[dict[str, Any]] | None
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
