"""The memories in the answer of the recall command, and the commands' view of entities."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from turnlog.agent.context import counter_for
from turnlog.agent.memories.block import memory_line
from turnlog.agent.memories.policy import Policy
from turnlog.agent.memories.retrieval import MemoriesFound, MemoryRecall, QueryEmbedder, RecalledMemory
from turnlog.agent.settings import Settings
from turnlog.consumers.remembering import memory_document, source_line, time_of, validity, words_of
from turnlog.consumers.runtime import Pool
from turnlog.events.subjects import memory_thread
from turnlog.projectors.memory_lookup import StoredMemory
from turnlog.projectors.memory_search import MemoryScope


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """Which memories are asked: as_of: those that held then, as people write a time; history: ended ones too.
    max_tokens: of all that is shown."""

    as_of: str | None = None
    history: bool = False
    max_tokens: int | None = None


async def recall_memories(
    pool: Pool,
    settings: Settings,
    embedder: QueryEmbedder | None,
    tenant: str,
    user: str,
    question: str,
    k: int,
    choice: MemoryChoice,
) -> MemoriesFound:
    """Raises InvalidTime, InvalidToken."""
    now, counter = datetime.now(UTC), counter_for(settings.model)
    as_of = None if choice.as_of is None else time_of(choice.as_of, now, settings.zone)
    scope = MemoryScope(tenant, memory_thread(user), now, as_of, choice.history)

    def tokens_of(memory: StoredMemory) -> int:
        return counter.text(memory_line(memory, counter))

    recall = MemoryRecall(embedder, Policy.of(settings), zone=settings.zone)
    async with pool.connection() as conn:
        return await recall.search(conn, scope, question, k, max_tokens=choice.max_tokens, tokens_of=tokens_of)


def recalled_document(one: RecalledMemory, now: datetime, policy: Policy, explain: bool) -> dict[str, Any]:
    """As `turnlog memories --json` shows a memory; relevance: what ranks it here, explained where asked for."""
    relevance = {"relevance": round(one.rank.score, 6)} | ({"explain": one.explain()} if explain else {})
    return memory_document(one.memory, now, policy) | relevance


def recalled_lines(one: RecalledMemory, explain: bool) -> list[str]:
    row = one.memory
    lines = [
        f"{one.rank.score:7.3f}  {row.kind:<10}  {words_of(row)}",
        f"         {row.id}  {validity(row)}",
        *([f"         {source_line(row.sources[0])}"] if row.sources else []),
    ]
    return [*lines, f"         {explained(one)}"] if explain else lines


def explained(one: RecalledMemory) -> str:
    """similarity 0.52 (words 0.80 × 1, vector 0.31 × 0.5) × importance 0.75^0.1."""
    parts = ", ".join(f"{name} {part.value:.2f} × {part.weight:g}" for name, part in one.rank.parts.items())
    return f"similarity {one.rank.similarity:.2f} ({parts}) × importance {one.rank.importance:.2f}^{one.rank.power:g}"


def entity_lines(row: dict[str, Any]) -> list[str]:
    """An entity with what is known of it. row: as `entities_of` gives it."""
    said = f"  {' '.join(row['description'].split())}" if row["description"] else ""
    times = f"{row['mention_count']}×, last {row['last_seen_at']:%Y-%m-%d}"
    lines = [f"{row['type']:<8}  {row['name']}{said}  ({times})"]
    lines += [f"          {name}: {value}" for name, value in row["attributes"].items()]
    return lines + [f"          {one['type']} → {one['target']}" for one in row["relations"]]
