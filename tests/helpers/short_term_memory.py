"""Opens the short-term memory of the conversation `t`, for tests of its operations."""

from typing import Any

from helpers.servers import eventually
from helpers.stage import Stage

from turnlog.agent.conversations.sessions.session_memory import ShortTermMemory
from turnlog.agent.conversations.sessions.value import (
    MemoryContext,
    MemoryCreateRequest,
    MemoryQueryRequest,
    MemoryWriteRequest,
    SessionValue,
)
from turnlog.events.log import Log

SMALL = 600


def memory_of(stage: Stage, tenant: str | None = None, log: Log | None = None) -> ShortTermMemory:
    """Returns the short-term memory. log: a separate connection, as another process has."""
    return ShortTermMemory(log or stage.runtime.log, stage.runtime.pool, stage.runtime.settings, tenant)


def create(**more: Any) -> MemoryCreateRequest:
    return MemoryCreateRequest(**{"conversation_id": "t", "user_id": "ann", "model_context_window": SMALL, **more})


def query(words: str = "", **more: Any) -> MemoryQueryRequest:
    return MemoryQueryRequest(conversation_id="t", query=words, **more)


def write(number: int, words: str = "word " * 12) -> MemoryWriteRequest:
    return MemoryWriteRequest(
        conversation_id="t", user_query=f"question {number} {words}", agent_response=f"answer {number} {words}"
    )


async def write_turns(memory: ShortTermMemory, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await memory.write_turn(write(number))


async def until_mode(memory: ShortTermMemory, mode: str) -> SessionValue:
    async def has_it() -> bool:
        return (await memory.get("t")).message_context.mode == mode

    await eventually(has_it)
    return await memory.get("t")


def shown_turns(context: MemoryContext, last: int) -> list[int]:
    """Returns the numbers, up to `last`, of the turns that the history shows."""
    return [number for number in range(1, last + 1) if f"question {number} " in context.history]
