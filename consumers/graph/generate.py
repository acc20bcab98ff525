"""generate: the request from the state, the answer of the model as it comes (seed D 2.3.3)."""

from collections.abc import Callable
from typing import Any

from langgraph.runtime import Runtime as Run

from turnlog.agent.models.protocol import ChatModel, ChatRequest, Completion
from turnlog.agent.settings import Settings
from turnlog.consumers.graph.messages import answer_message
from turnlog.consumers.graph.request import build_request
from turnlog.consumers.graph.route import GENERAL
from turnlog.consumers.graph.state import ConversationState, RunNode, Update

TEXT, RESTART = "text", "restart"
Tell = Callable[[Any], None]


def generate_node(model: ChatModel, settings: Settings) -> RunNode:
    async def generate(state: ConversationState, *, runtime: Run[None]) -> Update:
        """Raises ModelError and WindowTooSmall; the state keeps the question then, and the run can be resumed."""
        request = build_request(state, settings, model.model)
        completion = await _stream(model, ChatRequest(request.messages, restart=True), runtime.stream_writer)
        return {"messages": [answer_message(completion, state.get("agent_type", GENERAL), request.context_hash)]}

    return generate


async def _stream(model: ChatModel, request: ChatRequest, tell: Tell) -> Completion:
    """Tells {"kind": "text", "text"} of each piece, and {"kind": "restart"} when what was told is void."""
    final: Completion | None = None
    async for delta in model.stream(request):
        if delta.restarted:
            tell({"kind": RESTART})
        if delta.text:
            tell({"kind": TEXT, "text": delta.text})
        final = delta.final or final
    assert final is not None
    return final
