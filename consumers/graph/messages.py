"""LangChain's messages ⇄ ours. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import NAMESPACE_OID, uuid4, uuid5

from langchain_core.messages import AIMessage, AnyMessage
from pydantic_core import to_json

from turnlog.agent.models.protocol import Completion
from turnlog.consumers.langgraph.messages import said, turn_of
from turnlog.events.contracts import TurnRecorded
from turnlog.projectors.message import Message

_EPOCH = datetime.fromtimestamp(0, UTC)


def to_messages(messages: Sequence[AnyMessage], conversation_id: str) -> list[Message]:
    """The messages that say something, as a context is built from them; seq: the place in the state, from 1."""
    turns = [(place, message.id, turn_of(message)) for place, message in enumerate(messages, 1)]
    return [_message(place, f"{conversation_id}/{name}", turn) for place, name, turn in turns if turn is not None]


def _message(seq: int, place: str, turn: TurnRecorded) -> Message:
    # Token counts are kept by event id, and a message of the same id may get other words.
    identity = uuid5(NAMESPACE_OID, f"{place}/{to_json(turn).decode()}")
    return Message(seq, identity, turn.role, time=_EPOCH, **said(turn))


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
