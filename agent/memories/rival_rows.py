"""The memories that candidates may contradict, confirm or repeat."""

from collections.abc import Sequence

from turnlog.agent.memories.writing import Rows
from turnlog.events.memory_contracts import Memory
from turnlog.projectors.memory_lookup import StoredMemory, rivals
from turnlog.projectors.memory_text import content_key


async def rivals_of(rows: Rows, candidates: Sequence[Memory]) -> list[StoredMemory]:
    return await rivals(
        rows.conn,
        rows.place.tenant,
        rows.place.thread,
        [one.dedupe_key for one in candidates if one.dedupe_key is not None],
        [content_key(one.kind, one.content) for one in candidates],
        [one.id for one in candidates],
    )
