"""Implements recall_memory, the tool with which the model searches turns outside its window."""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from turnlog.agent.models.protocol import asker_of
from turnlog.agent.recall.confidence import doubt
from turnlog.agent.recall.memory_search import memory_recall_of
from turnlog.agent.recall.search import Recall
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import ToolCall
from turnlog.events.local_time import day_text, local, zone_or
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.speech import RECALL_TOOL
from turnlog.projectors.models.memories.lookup import StoredMemory, preferences_set
from turnlog.projectors.models.memories.memory_candidates import MemoryScope

SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": RECALL_TOOL,
        "description": (
            "Search earlier parts of this conversation that are no longer in view, and what this user said in other "
            "conversations, by meaning and by words. Returns what was said, by whom and when."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for, in the conversation's language."},
                "k": {"type": "integer", "minimum": 1, "maximum": 20},
                "topic": {"type": "string", "description": "Only turns with this one of the recallable topics."},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    },
}
MAX_K = 20
MAX_TEXT = 600
UNSURE = "probably none of these answers it; if so, say that you do not know it"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call. text: sent to the model. chunks: ids of recalled chunks, for the receipt. memories:
    ids of memories in the text, which count as read.

    is_error: the call was invalid or failed, and the text says why.
    """

    text: str
    chunks: tuple[str, ...] = ()
    memories: tuple[UUID, ...] = ()
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class MemoriesOf:
    """Searches the asking user's long-term memories as of `now`."""

    runtime: Runtime
    tenant: str
    user: str | None
    now: datetime

    async def found(self, query: str, k: int) -> list[StoredMemory]:
        """Returns the k most relevant memories; [] without a user, or if MEMORY_LONG_TERM or the user's preference
        enable_memory is off."""
        runtime, tenant, user = self.runtime, self.tenant, self.user
        if not user or not runtime.settings.long_term:
            return []
        thread = memory_thread(user)
        async with runtime.pool.connection() as conn:
            preferences = await preferences_set(conn, tenant, thread)
            if preferences.enable_memory is False:
                return []
            now = local(self.now, zone_or(preferences.timezone, runtime.settings.zone))
            recall = memory_recall_of(runtime, asker_of(tenant, user))
            result = await recall.search(conn, MemoryScope(tenant, thread, now), query, k)
        return [recalled.memory for recalled in result.memories]


async def run_tool(
    call: ToolCall,
    conn: Connection,
    recall: Recall,
    scope: Scope,
    top_k: int,
    before_seq: int,
    memories: MemoriesOf | None = None,
) -> ToolResult:
    """Runs a call of the model. A mistake of the model becomes a result that it can read, not an error."""
    if call.name != RECALL_TOOL:
        return _mistaken(f"there is no tool {call.name!r}; use {RECALL_TOOL}")
    try:
        arguments = json.loads(call.arguments or "{}")
        query = str(arguments["query"])
        k = min(MAX_K, max(1, int(arguments.get("k") or top_k)))
        topic = str(arguments.get("topic") or "").strip() or None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        wanted = "{'query': text, 'k': number, 'topic': text}"
        return _mistaken(f"arguments must be {wanted}: {error!r}")
    turns = await recall.search(conn, replace(scope, topic=topic), query, k, before_seq)
    items = [
        {"time": day_text(turn.time), "speaker": turn.speaker, "text": turn.text[:MAX_TEXT], "seq": turn.seq}
        for turn in turns
    ]
    known = await memories.found(query, k) if memories and topic is None else []
    result: dict[str, Any] = {"items": items}
    if topic is not None and not items:
        result["note"] = f"no earlier turn has the topic {topic!r}; search again without it"
    if turns and doubt(recall.evidence, query, (memory.content for memory in known)):
        result["note"] = UNSURE
    if known:
        result["memories"] = [
            {"since": day_text(memory.said_from), "text": memory.content[:MAX_TEXT]} for memory in known
        ]
    return ToolResult(
        json.dumps(result, ensure_ascii=False),
        tuple(turn.chunk_id for turn in turns),
        tuple(memory.id for memory in known),
    )


def _mistaken(why: str) -> ToolResult:
    return ToolResult(json.dumps({"error": why}), is_error=True)
