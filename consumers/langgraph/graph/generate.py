"""generate: the request from the state, the answer of the model as it comes (seed D 2.3.3)."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage
from langgraph.runtime import Runtime as Run

from turnlog.agent.models.protocol import ChatModel, ChatRequest, Completion
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.graph.request import build_request
from turnlog.consumers.langgraph.graph.route import GENERAL
from turnlog.consumers.langgraph.graph.state import ConversationState, RunNode, Update

TEXT, RESTART = "text", "restart"
Write = Callable[[Any], None]


def generate_node(model: ChatModel, settings: Settings) -> RunNode:
    async def generate(state: ConversationState, *, runtime: Run[None]) -> Update:
        """Raises ModelError and WindowTooSmall; the state keeps the question then, and the run can be resumed."""
        request = build_request(state, settings, model.model)
        completion = await _stream(model, ChatRequest(request.messages, restart=True), runtime.stream_writer)
        return {"messages": [answer_message(completion, state.get("agent_type", GENERAL), request.context_hash)]}

    return generate


async def _stream(model: ChatModel, request: ChatRequest, write: Write) -> Completion:
    """Writes {"kind": "text", "text"} for each piece, and {"kind": "restart"} when earlier pieces are void."""
    final: Completion | None = None
    async for delta in model.stream(request):
        if delta.restarted:
            write({"kind": RESTART})
        if delta.text:
            write({"kind": TEXT, "text": delta.text})
        final = delta.final or final
    assert final is not None
    return final


def answer_message(completion: Completion, agent: str, context_hash: str) -> AIMessage:
    """The answer for the state; its response_metadata holds all that meters it."""
    return AIMessage(
        completion.text,
        id=str(uuid4()),
        usage_metadata={
            "input_tokens": completion.tokens_in,
            "output_tokens": completion.tokens_out,
            "total_tokens": completion.tokens_in + completion.tokens_out,
        },
        response_metadata={
            "model_name": completion.model,
            "model_provider": completion.provider,
            "finish_reason": completion.finish_reason,
            "cost_usd": completion.cost_usd,
            "latency_ms": completion.latency_ms,
            "agent": agent,
            "context_hash": context_hash,
        },
    )
