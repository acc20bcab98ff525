"""The state of the conversation graph, and how its nodes read and change it."""

from typing import Annotated, Any, Required, TypedDict

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages


class ConversationState(TypedDict, total=False):
    """The state of the graph: plain JSON apart from the messages, so that any checkpointer can store it.

    conversation_id: the checkpointer's thread_id. agent_type: the agent that answers; `general` if no route matched.
    memory_context: memories of the user in the store, one per line. retrieval_results: {"namespace", "key", "text",
    "score"}, best first. answer: of the last answer, its id, its usage and the basis of its receipt (None if unknown);
    None until the answer is made. debug: node → why a part is missing, or what the node chose.
    """

    messages: Required[Annotated[list[AnyMessage], add_messages]]
    user_id: Required[str]
    conversation_id: Required[str]
    session_id: str
    kb_prefix: str | None
    agent_type: str
    use_retrieval: bool
    memory_context: str | None
    retrieval_results: list[dict[str, Any]] | None
    answer: dict[str, Any] | None
    debug: dict[str, str]


def question(state: ConversationState) -> str:
    """Returns the words of the user's latest message; '' if there is none."""
    return next((str(message.text) for message in reversed(state["messages"]) if message.type == "human"), "")


def told(state: ConversationState, part: str, why: str) -> dict[str, str]:
    """Returns `debug` with why a part is missing; unchanged if `why` is ''."""
    return state.get("debug", {}) | ({part: why} if why else {})
