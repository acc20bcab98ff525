"""Erasing somebody in a test, and looking for what is left of their words."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from stage import Stage

from turnlog.agent.models.factory import make_models
from turnlog.agent.privacy import erase as erasing
from turnlog.agent.privacy.erase import planned
from turnlog.agent.privacy.receipt import Receipt
from turnlog.agent.privacy.traces import OnProgress
from turnlog.consumers.embedding import embed_pending
from turnlog.consumers.erasing import person_of, surroundings
from turnlog.events.subjects import memory_thread

TOLD = "Last spring I took a position at the bakery. My sister Mia found it for me."
ANNS = memory_thread("ann")
WORDS = ("memories", "entities", "model_cache", "messages", "memory_vectors", "conversation_summaries", "memory_topics")


@contextlib.contextmanager
def quiet(label: str) -> Iterator[OnProgress]:
    yield lambda done, total: None


async def erase(stage: Stage, user: str = "ann", strings: Sequence[str] = ()) -> Receipt:
    at = surroundings(stage.runtime, quiet)
    return await erasing.erase(at, await planned(at, person_of("default", user), strings))


async def bakeries(stage: Stage) -> dict[str, list[Any]]:
    """Table → rows that speak of it; only tables that have some."""
    found = {name: await stage.rows(f"SELECT t::text FROM {name} t WHERE t::text ILIKE '%bakery%'") for name in WORDS}
    return {name: lines for name, lines in found.items() if lines}


async def embedded(stage: Stage) -> None:
    """Until everything has its vector."""
    await stage.runtime.settle()
    models = make_models(stage.runtime.settings)
    await embed_pending(stage.runtime, models.embedder)
    await models.close()
    await stage.runtime.settle()


async def cached(stage: Stage) -> list[Any]:
    return await stage.rows("SELECT text_hash FROM embedding_cache ORDER BY 1")
