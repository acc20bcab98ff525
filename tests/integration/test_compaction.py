"""Memories with the same meaning are merged by events that can be undone."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from uuid import UUID

import numpy as np
import pytest
from helpers.sample_events import MAY_8, event, memory_event, memory_of
from helpers.servers import rows
from pgvector import HalfVector

from turnlog.agent.memory.deciding.writing import MemoryWriter, Place
from turnlog.agent.memory.upkeep.compaction import undo_compaction
from turnlog.agent.operations.jobs.compaction import SKIPPED, compact
from turnlog.agent.operations.jobs.job import Done
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import MemoriesCompacted, MemoriesEmbedded, Memory
from turnlog.events.errors import NotFound
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild.rebuild import rebuild_several

ANN = Place("default", "ann")
NOW = MAY_8 + timedelta(days=1)
MODEL = "unit-vectors"  # for this model the cosine is the similarity


@pytest.fixture
async def runtime(nats_url: str, database_url: str) -> AsyncIterator[Runtime]:
    async with opened(Settings(nats_url=nats_url, database_url=database_url)) as made, projecting(made):
        yield made


def at(degrees: float) -> list[float]:
    return [float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))]


async def remember(runtime: Runtime, memories: Mapping[Memory, float], user: str = "ann") -> None:
    """Appends memories with vectors at these angles; 20 degrees are a cosine of 0.94, 30 of 0.87."""
    await runtime.log.append_many([memory_event(memory, user) for memory in memories])
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        for memory, degrees in memories.items():
            key = hashlib.sha256(memory.content.encode()).digest()
            await conn.execute(
                "INSERT INTO embedding_cache (model, text_hash, embedding) VALUES (%s, %s, %s::halfvec)",
                (MODEL, key, HalfVector(at(degrees)).to_text()),
            )
    ids = tuple(memory.id for memory in memories)
    told = MemoriesEmbedded(model=MODEL, dimensions=2, memory_ids=ids)
    await runtime.log.append(event(told, memory_thread(user), user=user))
    await runtime.wait_until_projected()


async def run(runtime: Runtime) -> Done:
    done = await compact(runtime, NOW, lambda done, total: None)
    await runtime.wait_until_projected()
    return done


async def valid(runtime: Runtime, user: str = "ann") -> list[int]:
    query = "SELECT id FROM memories WHERE thread_id = %s AND status = 'valid' ORDER BY id"
    async with runtime.pool.connection() as conn:
        return [id_.int for (id_,) in await rows(conn, query, memory_thread(user))]


async def compactions(runtime: Runtime) -> list[UUID]:
    async with runtime.pool.connection() as conn:
        return [id_ for (id_,) in await rows(conn, "SELECT event_id FROM memory_compactions ORDER BY compacted_at")]


TEA = memory_of(1, content="likes green tea a lot", importance=0.5)
TEA_AGAIN = memory_of(2, content="really is fond of green tea", importance=0.8)
HIKING = memory_of(3, content="often goes hiking on weekends")
TEA_CN = memory_of(4, content="很喜欢喝绿茶")
TEA_CN_AGAIN = memory_of(5, content="她非常爱喝绿茶")


async def test_the_most_important_of_duplicate_memories_stays(runtime: Runtime) -> None:
    await remember(runtime, {TEA: 0, TEA_AGAIN: 20, HIKING: 90})
    assert (await run(runtime)).counts == SKIPPED | {"looked_at": 3, "groups": 1, "closed": 1}
    assert await valid(runtime) == [2, 3]
    async with runtime.pool.connection() as conn:
        ended = await rows(conn, "SELECT id, replaced_by, closed_reason, content FROM memories WHERE status = 'closed'")
    assert ended == [(TEA.id, TEA_AGAIN.id, "duplicate", "likes green tea a lot")]


async def test_duplicate_chinese_memories_are_merged(runtime: Runtime) -> None:
    await remember(runtime, {TEA_CN: 0, TEA_CN_AGAIN: 10})
    await run(runtime)
    assert len(await valid(runtime)) == 1


async def test_less_similar_memories_are_not_merged(runtime: Runtime) -> None:
    await remember(runtime, {TEA: 0, TEA_AGAIN: 30})
    assert (await run(runtime)).counts["groups"] == 0
    assert await valid(runtime) == [1, 2]


async def test_similar_memories_that_differ_in_a_number_negation_or_name_are_not_duplicates(runtime: Runtime) -> None:
    told = ["has 2 cats at home", "has 3 cats at home", "has not 2 cats at home", "住在北京", "住在上海"]
    await remember(runtime, {memory_of(n, content=text): float(n) for n, text in enumerate(told, 1)})
    assert (await run(runtime)).counts["groups"] == 0


async def test_a_memory_similar_only_to_a_duplicate_is_not_merged(runtime: Runtime) -> None:
    first, second = (
        memory_of(6, content="enjoys tea from green leaves"),
        memory_of(7, content="green tea is a favourite"),
    )
    await remember(runtime, {TEA: 0, TEA_AGAIN: 20, first: 40, second: 60})
    await run(runtime)
    assert 2 in await valid(runtime)
    assert 7 in await valid(runtime)


async def test_other_users_and_other_kinds_are_left_alone(runtime: Runtime) -> None:
    await remember(runtime, {TEA: 0, TEA_AGAIN.model_copy(update={"kind": "PREFERENCE"}): 1})
    await remember(runtime, {memory_of(8, content="likes it when tea is green"): 0}, "bob")
    await run(runtime)
    assert (await valid(runtime), await valid(runtime, "bob")) == ([1, 2], [8])


async def test_a_second_run_finds_nothing(runtime: Runtime) -> None:
    await remember(runtime, {TEA: 0, TEA_AGAIN: 5})
    await run(runtime)
    head = await runtime.log.thread_head("default", ANN.thread)
    assert (await run(runtime)).counts["groups"] == 0
    assert await runtime.log.thread_head("default", ANN.thread) == head


async def test_an_undone_compaction_leaves_the_rows_as_before(runtime: Runtime) -> None:
    await remember(runtime, {TEA: 0, TEA_AGAIN: 5, HIKING: 90})
    query = "SELECT m::text FROM memories m ORDER BY id"
    async with runtime.pool.connection() as conn:
        before = await rows(conn, query)
        await run(runtime)
        assert await rows(conn, query) != before
        [made] = await compactions(runtime)
        assert await undo_compaction(MemoryWriter(runtime.log, runtime.pool), ANN, made) == [TEA.id]
        await runtime.wait_until_projected()
        assert await rows(conn, query) == before
    await rebuild_several(runtime.log, runtime.database_url, [BY_NAME["memories"]])
    async with runtime.pool.connection() as conn:
        assert await rows(conn, query) == before


async def test_separated_memories_are_not_merged_again_by_the_job(runtime: Runtime) -> None:
    await remember(runtime, {TEA: 0, TEA_AGAIN: 5})
    await run(runtime)
    writer, [made] = MemoryWriter(runtime.log, runtime.pool), await compactions(runtime)
    await undo_compaction(writer, ANN, made)
    assert await undo_compaction(writer, ANN, made) == []
    await runtime.wait_until_projected()
    assert (await run(runtime)).counts["groups"] == 0
    assert await valid(runtime) == [1, 2]


async def test_an_unknown_compaction_cannot_be_undone(runtime: Runtime) -> None:
    with pytest.raises(NotFound, match="no compaction"):
        await undo_compaction(MemoryWriter(runtime.log, runtime.pool), ANN, UUID(int=404))


async def test_the_event_names_the_merged_memories_and_their_similarity(runtime: Runtime) -> None:
    await remember(runtime, {TEA: 0, TEA_AGAIN: 20})
    await run(runtime)
    events = [recorded.event.data async for recorded in runtime.log.read_thread("default", ANN.thread)]
    [told] = [data for data in events if isinstance(data, MemoriesCompacted)]
    assert (told.method, told.members, told.kept) == ("dedupe", (TEA_AGAIN.id, TEA.id), TEA_AGAIN.id)
    assert told.similarity == pytest.approx(np.cos(np.radians(20)), abs=1e-3)
