"""recall_memory: the tool the model may call for what is not in its window."""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from turnlog.agent.answering.recalled_memories import AnswerMemories
from turnlog.agent.recall.confidence import doubt
from turnlog.agent.recall.search import Recall
from turnlog.events.contracts import ToolCall
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.speech import RECALL_TOOL
from turnlog.projectors.models.memories.lookup import StoredMemory

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
    """text: sent to the model; chunks: for the receipt; memories: named in the text, so they count as read.

    is_error: the tool was not used as it can be, and the text says how.
    """

    text: str
    chunks: tuple[str, ...] = ()
    memories: tuple[UUID, ...] = ()
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class MemoriesOf:
    """Searches the asking user's memories as of `now`."""

    recall: AnswerMemories
    tenant: str
    user: str | None
    now: datetime

    async def found(self, query: str, k: int) -> list[StoredMemory]:
        found = await self.recall.found(self.tenant, self.user, query, k, self.now)
        return [one.memory for one in found.memories]


async def run_tool(
    call: ToolCall,
    conn: Connection,
    recall: Recall,
    scope: Scope,
    top_k: int,
    before_seq: int,
    memories: MemoriesOf | None = None,
) -> ToolResult:
    """A mistake of the model becomes a result that it can read; nothing is raised."""
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
    found = await recall.search(conn, replace(scope, topic=topic), query, k, before_seq)
    items = [
        {"time": f"{one.time:%Y-%m-%d}", "speaker": one.speaker, "text": one.text[:MAX_TEXT], "seq": one.seq}
        for one in found
    ]
    known = await memories.found(query, k) if memories and topic is None else []
    said: dict[str, Any] = {"items": items}
    if topic is not None and not items:
        said["note"] = f"no earlier turn has the topic {topic!r}; search again without it"
    if found and doubt(recall.evidence, query, (one.content for one in known)):
        said["note"] = UNSURE
    if known:
        said["memories"] = [{"since": f"{one.said_from:%Y-%m-%d}", "text": one.content[:MAX_TEXT]} for one in known]
    return ToolResult(
        json.dumps(said, ensure_ascii=False), tuple(one.chunk_id for one in found), tuple(one.id for one in known)
    )


def _mistaken(why: str) -> ToolResult:
    return ToolResult(json.dumps({"error": why}), is_error=True)
