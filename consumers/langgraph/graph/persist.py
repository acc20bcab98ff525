"""persist: what an answer took, its receipt and the memories it read go on the log, once. The turns are there already:
the checkpointer's are events."""

from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from langchain_core.messages import AIMessage

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.graph.receipt import SOURCE, Receipts
from turnlog.consumers.langgraph.graph.state import ConversationState, Node, Update
from turnlog.events.contracts import Event, UsageMetered
from turnlog.events.log import Log


def persist_node(log: Log, memories: Memories, receipts: Receipts, settings: Settings) -> Node:
    async def persist(state: ConversationState) -> Update:
        """Raises LogUnavailable, LogFull; the answer stays in the state and the run can be resumed."""
        answer = state["messages"][-1] if state["messages"] else None
        if not isinstance(answer, AIMessage) or answer.usage_metadata is None:
            return {}
        usage = usage_event(settings.tenant, state, answer)
        await log.append(usage)
        no_receipt = await receipts.record(state, answer)
        await _note_access(memories, settings, state, usage.id)
        return {"debug": state.get("debug", {}) | {"persist receipt": no_receipt}} if no_receipt else {}

    return persist


async def _note_access(memories: Memories, settings: Settings, state: ConversationState, answer: UUID) -> None:
    """Once for each answer, however often the node runs. Raises LogUnavailable, LogFull."""
    read = [UUID(one) for one in state.get("memory_ids") or ()]
    if read and state["user_id"]:
        await memories.accessed(settings.tenant, state["user_id"], read, cause=answer)


def usage_event(tenant: str, state: ConversationState, answer: AIMessage) -> Event:
    return Event(
        id=usage_id(tenant, state["conversation_id"], answer.id or ""),
        source=SOURCE,
        tenant=tenant,
        thread=state["conversation_id"],
        user=state["user_id"],
        data=_metered(answer, answer.response_metadata),
    )


def usage_id(tenant: str, conversation: str, answer: str) -> UUID:
    """Derived from the answer: however often the node runs, it is one event."""
    return uuid5(NAMESPACE_OID, f"usage/{tenant}/{conversation}/{answer}")


def _metered(answer: AIMessage, about: Mapping[str, Any]) -> UsageMetered:
    used = answer.usage_metadata
    return UsageMetered(
        purpose="answer",
        agent=about.get("agent"),
        provider=about.get("model_provider", "unknown"),
        model=about.get("model_name", "unknown"),
        tokens_in=used["input_tokens"] if used else 0,
        tokens_out=used["output_tokens"] if used else 0,
        cost_usd=about.get("cost_usd", 0.0),
        latency_ms=about.get("latency_ms", 0.0),
    )
