"""The recall command's one question: the turns that answer it and, of a user, the memories, in one document or list."""

import time
from datetime import UTC, datetime
from typing import Any

from turnlog.agent.context import TokenCounter, counter_for
from turnlog.agent.memories.block import memory_line
from turnlog.agent.memories.policy import Policy
from turnlog.agent.memories.retrieval import MemoriesFound
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.recall.search import Recall, Recalled
from turnlog.agent.settings import Settings
from turnlog.consumers.archiving import restored_if_archived
from turnlog.consumers.cli.console import emit, err, out
from turnlog.consumers.recalling import BadQuery, RecallCommand, scope_of, search_turns
from turnlog.consumers.recalling_memories import MemoryChoice, recall_memories, recalled_document, recalled_lines
from turnlog.consumers.runtime import opened, projecting


async def recall_once(
    settings: Settings, command: RecallCommand, query: str | None, choice: MemoryChoice, explain: bool, as_json: bool
) -> int:
    if not query:
        raise BadQuery("give a question: `turnlog recall QUESTION --thread T`, or --batch FILE")
    _check(command, choice)
    scope = scope_of(command, command.thread)
    async with opened(settings) as runtime, projecting(runtime):
        await runtime.settle(names=("vectors", "thread_activity", "memories", "entities", "archives"))
        if command.thread is not None:
            async with runtime.pool.connection() as conn:
                await restored_if_archived(runtime, conn, command.tenant, command.thread)
        embedder = None if command.keyword_only else make_embedder(settings)
        recall = Recall(embedder)
        started = time.perf_counter()
        known = MemoriesFound()
        if command.user is not None:
            place = (command.tenant, command.user)
            known = await recall_memories(runtime.pool, settings, embedder, *place, query, command.k, choice)
        items = [] if choice.as_of else await search_turns(runtime, recall, scope, query, command.k)
        milliseconds = (time.perf_counter() - started) * 1000
    items = _that_fit(items, known, choice.max_tokens, counter_for(settings.model))
    for why in dict.fromkeys((recall.degraded, known.degraded)):
        if why:
            err.print(why, markup=False)
    if as_json:
        policy, now = Policy.of(settings), datetime.now(UTC)
        said: dict[str, Any] = {"query": query, "items": [item.document(explain) for item in items]}
        if command.user is not None:
            said["memories"] = [recalled_document(one, now, policy, explain) for one in known.memories]
            said["memories_degraded"] = known.degraded
        emit({**said, "milliseconds": round(milliseconds, 1), "degraded": recall.degraded})
    else:
        _show(items, known, explain, choice.max_tokens)
    return 0


def _check(command: RecallCommand, choice: MemoryChoice) -> None:
    if command.user is None and (choice.as_of or choice.history):
        raise BadQuery("--as-of and --history are about memories: say whose with --user")


def _that_fit(
    items: list[Recalled], known: MemoriesFound, max_tokens: int | None, counter: TokenCounter
) -> list[Recalled]:
    """Memories come first; turns take what they leave."""
    if max_tokens is None:
        return items
    left = max_tokens - sum(counter.text(memory_line(one.memory, counter)) for one in known.memories)
    kept = []
    for item in items:
        cost = counter.text(item.text)
        if cost <= left:
            left -= cost
            kept.append(item)
    return kept


def _show(items: list[Recalled], known: MemoriesFound, explain: bool, max_tokens: int | None) -> None:
    if not items and not known.memories:
        out.print("nothing found" if max_tokens is None else f"nothing found that fits in {max_tokens:,} tokens")
    for one in known.memories:
        for line in recalled_lines(one, explain):
            out.print(line, markup=False)
    if known.memories and items:
        out.print()
    for item in items:
        out.print(_line(item, explain), markup=False)


def _line(item: Recalled, explain: bool) -> str:
    source = f" {item.source_id}" if item.source_id else ""
    parts = "  (" + ", ".join(f"{k} {v:+.2f}" for k, v in item.parts.items()) + ")" if explain else ""
    text = " ".join(item.text.split())
    return f"{item.score:7.2f}  {item.seq:>7}{source}  {item.time:%Y-%m-%d}  {item.speaker}: {text}{parts}"
