"""Lets tests erase a user and search for remaining words."""

from collections.abc import Sequence
from typing import Any

from helpers.stage import Stage

from turnlog.agent.models.factory import make_models
from turnlog.agent.privacy.erasure.erasure_receipt import Receipt
from turnlog.agent.privacy.personal_data import erase_person, plan_erasure
from turnlog.agent.recall.embedding.embedder import embed_pending
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.subjects import memory_thread

BAKERY = "Last spring I took a position at the bakery. Mia, my sister, found it for me."
ANN_THREAD = memory_thread("ann")
TABLES = (
    "memories",
    "entities",
    "model_cache",
    "messages",
    "memory_vectors",
    "conversation_summaries",
    "memory_topics",
)


async def erase(stage: Stage, user: str = "ann", strings: Sequence[str] = ()) -> Receipt:
    reach = erasure_reach(stage.runtime.settings)
    plan = await plan_erasure(stage.runtime, "default", user, reach, strings=strings)
    return await erase_person(stage.runtime, plan, reach)


async def rows_with_bakery(stage: Stage) -> dict[str, list[Any]]:
    """Returns the rows that mention the bakery, by table; tables without such rows are left out."""
    rows = {name: await stage.rows(f"SELECT t::text FROM {name} t WHERE t::text ILIKE '%bakery%'") for name in TABLES}
    return {name: lines for name, lines in rows.items() if lines}


async def embed_all(stage: Stage) -> None:
    """Waits until all texts have vectors."""
    await stage.runtime.wait_until_projected()
    models = make_models(stage.runtime.settings)
    await embed_pending(stage.runtime, models.embedder)
    await models.close()
    await stage.runtime.wait_until_projected()


async def cached_hashes(stage: Stage) -> list[Any]:
    return await stage.rows("SELECT text_hash FROM embedding_cache ORDER BY 1")
