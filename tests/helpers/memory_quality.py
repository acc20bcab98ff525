"""Measures stored memories: shares that quote the user, come from somebody else, or are duplicates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnlog.agent.memory.extraction.extraction_run import extraction_of
from turnlog.agent.memory.extraction.stages import UserConversation
from turnlog.agent.models.factory import make_models
from turnlog.agent.operations.importers import events, read
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event
from turnlog.projectors.models.memories.text import normal

_MEMORIES = """
SELECT m.user_id, m.kind, m.content, s->>'quote', t.role, t.content
FROM memories m CROSS JOIN LATERAL jsonb_array_elements(m.sources) s
LEFT JOIN messages t ON t.tenant = m.tenant AND t.thread_id = s->>'thread' AND t.event_id = (s->>'event_id')::uuid
WHERE m.status = 'valid' ORDER BY m.user_id, m.seq, m.id"""
_USERS = "SELECT DISTINCT tenant, user_id, thread_id FROM messages WHERE user_id IS NOT NULL ORDER BY 1, 2, 3"


@dataclass(frozen=True, slots=True)
class SourcedMemory:
    """A valid memory with one of its sources. role, text: those of the source turn; None if there is no such turn."""

    user: str
    kind: str
    content: str
    quote: str
    role: str | None
    text: str | None

    @property
    def is_quoted(self) -> bool:
        return self.text is not None and self.quote in self.text


@dataclass(frozen=True, slots=True)
class Quality:
    """Shares of the valid memories, 0 to 1."""

    memories: tuple[SourcedMemory, ...]

    @property
    def with_quote(self) -> float:
        return self._share([memory for memory in self.memories if memory.is_quoted])

    @property
    def of_others(self) -> float:
        return self._share([memory for memory in self.memories if memory.role != "user"])

    @property
    def duplicates(self) -> float:
        """Returns the share of memories with the same words as another of the same user and kind, ignoring case and
        order."""
        said = {
            (memory.user, memory.content): (memory.user, memory.kind, _words(memory.content))
            for memory in self.memories
        }
        return 1 - len(set(said.values())) / max(1, len(said))

    def _share(self, some: Sequence[SourcedMemory]) -> float:
        return len(some) / max(1, len(self.memories))


def _words(content: str) -> frozenset[str]:
    return frozenset(normal(content).replace("、", " ").replace(",", " ").split())


async def stored_quality(runtime: Runtime, files: Sequence[Path]) -> Quality:
    """Imports the files, lets the rules extract memories, and returns the quality of the stored memories."""
    for file in files:
        turns = [event for event in events(read(file), runtime.settings.tenant) if isinstance(event, Event)]
        await runtime.log.append_many(turns)
    await runtime.wait_until_projected()
    models = make_models(runtime.settings)
    extraction = extraction_of(runtime, models)
    async with runtime.pool.connection() as conn:
        for tenant, user, thread in await (await conn.execute(_USERS)).fetchall():
            await extraction.by_rules(conn, UserConversation(tenant, user, thread), finish=True)
        await runtime.wait_until_projected()
        rows = await (await conn.execute(_MEMORIES)).fetchall()
    await models.close()
    return Quality(tuple(SourcedMemory(*fields, _text(content)) for *fields, content in rows))


def _text(content: Any) -> str | None:
    """Returns the text of a message's stored content, a string or blocks."""
    if isinstance(content, list):
        return "\n".join(block["text"] for block in content if block["type"] == "text")
    return content
