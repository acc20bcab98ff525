"""generate: the request from the state, the answer of the model as it comes (seed D 2.3.3)."""

from contextlib import aclosing
from uuid import uuid4

from langchain_core.messages import AIMessage
from langgraph.runtime import Runtime as Run

from turnlog.agent.answering.pieces import Restarted, Round, Text
from turnlog.agent.answering.run import run
from turnlog.agent.models.protocol import ChatModel, ChatRequest, Completion
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.graph.request import build_request
from turnlog.consumers.langgraph.graph.route import GENERAL
from turnlog.consumers.langgraph.graph.state import ConversationState, RunNode, Update

TEXT, RESTART = "text", "restart"


def generate_node(model: ChatModel, settings: Settings) -> RunNode:
    async def generate(state: ConversationState, *, runtime: Run[None]) -> Update:
        """Writes {"kind": "text", "text"} for each piece, and {"kind": "restart"} when earlier pieces are void.

        Raises ModelError and WindowTooSmall; the state keeps the question then, and the run can be resumed.
        """
        request = build_request(state, settings, model.model)
        completion: Completion | None = None
        async with aclosing(run(model, ChatRequest(request.messages, restart=True))) as pieces:
            async for piece in pieces:
                match piece:
                    case Text(text):
                        runtime.stream_writer({"kind": TEXT, "text": text})
                    case Restarted():
                        runtime.stream_writer({"kind": RESTART})
                    case Round(completion):
                        pass
        assert completion is not None, "an answer ends with a round"
        return {"messages": [answer_message(completion, state.get("agent_type", GENERAL), request.context_hash)]}

    return generate


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
