"""Memories that a language model merged can be recalled, undone, forgotten, erased and rebuilt."""

import asyncio
import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from helpers.openai_server import OpenAIServer
from helpers.projection_spec import Spec
from helpers.sample_events import DERIVED, SOURCE
from helpers.servers import now, rows
from helpers.similar_memories import (
    ANN,
    FAINT,
    NOW,
    SUMMARY,
    TEA,
    TEA_ANGLES,
    TEA_FOND,
    TEA_MERGED,
    TRIP_ANGLES,
    TRIPS,
    append_memories,
    merged_memory,
    merged_text,
    old,
    run_compaction,
    valid_contents,
    with_settings,
)
from helpers.similar_memories import runtime as runtime
from helpers.similar_memories import server as server
from helpers.similar_memories import settings as settings

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.deciding.writing import MemoryWriter
from turnlog.agent.memory.upkeep.compaction import undo_compaction
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.models.spending_limit import ledger
from turnlog.agent.privacy.erasure.event_scan import person_of
from turnlog.agent.privacy.export import user_export
from turnlog.agent.privacy.personal_data import erase_person, plan_erasure
from turnlog.agent.recall.embedding.embedder import embed_memories
from turnlog.agent.recall.memory_search import MemoryRecall
from turnlog.agent.runtime import Runtime
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.contracts import (
    Event,
    Interval,
    MemoriesCompacted,
    MemoriesRevised,
    MemoryForgotten,
    MemoryRecorded,
)
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.lookup import memories_as_of
from turnlog.projectors.models.memories.memory_candidates import MemoryScope
from turnlog.projectors.models.memories.projection import MEMORIES
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild.rebuild import rebuild_several

pytestmark = pytest.mark.slow


def memories_of(runtime: Runtime) -> Memories:
    return Memories(runtime.log, runtime.pool)


async def every_row(runtime: Runtime) -> list[Any]:
    async with runtime.pool.connection() as conn:
        return [
            *await rows(conn, "SELECT m::text FROM memories m ORDER BY id"),
            *await rows(conn, "SELECT c::text FROM memory_compactions c ORDER BY event_id"),
        ]


async def sequences(runtime: Runtime) -> list[int]:
    return [recorded.seq async for recorded in runtime.log.read_thread("default", ANN.thread)]


async def test_after_an_undo_the_members_are_valid_and_not_merged_again(runtime: Runtime, server: OpenAIServer) -> None:
    await append_memories(runtime, TRIP_ANGLES)
    async with runtime.pool.connection() as conn:
        before = await rows(conn, "SELECT m::text FROM memories m ORDER BY id")
    server.reply(merged_text(SUMMARY))
    await run_compaction(runtime)
    async with runtime.pool.connection() as conn:
        [(made,)] = await rows(conn, "SELECT event_id FROM memory_compactions")
    reopened = await undo_compaction(MemoryWriter(runtime.log, runtime.pool), ANN, made)
    assert set(reopened) == {memory.id for memory in TRIPS}
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        assert await rows(conn, "SELECT m::text FROM memories m WHERE origin = 'llm' ORDER BY id") == before
    counts = (await run_compaction(runtime)).counts
    assert (counts["calls"], counts["closed"]) == (0, 0)
    assert await valid_contents(runtime) == [memory.content for memory in TRIPS]


async def test_forgetting_a_member_forgets_the_merged_memory_and_restores_the_others(
    runtime: Runtime, server: OpenAIServer
) -> None:
    await append_memories(runtime, TRIP_ANGLES)
    server.reply(merged_text(SUMMARY))
    await run_compaction(runtime)
    await memories_of(runtime).forget("default", "ann", TRIPS[1].id)
    await runtime.wait_until_projected()
    assert await valid_contents(runtime) == [TRIPS[0].content, TRIPS[2].content]
    async with runtime.pool.connection() as conn:
        for table in ("memories", "memory_compactions", "model_cache"):
            assert await rows(conn, f"SELECT FROM {table} t WHERE t::text ~ 'Mia'") == [], table
    assert (await run_compaction(runtime)).counts["calls"] == 0


async def test_forgetting_a_merged_memory_forgets_its_members(runtime: Runtime, server: OpenAIServer) -> None:
    await append_memories(runtime, TEA_ANGLES)
    server.reply(merged_text(TEA_MERGED))
    await run_compaction(runtime)
    await memories_of(runtime).forget("default", "ann", (await merged_memory(runtime)).id)
    await runtime.wait_until_projected()
    assert await valid_contents(runtime) == []


async def test_a_member_that_is_forgotten_during_the_model_call_is_not_merged(
    runtime: Runtime, server: OpenAIServer
) -> None:
    await append_memories(runtime, TEA_ANGLES)
    server.reply(merged_text(TEA_MERGED), until=(go := threading.Event()))
    running = asyncio.create_task(run_compaction(runtime))
    await asyncio.to_thread(server.wait_for_requests, 1)
    await memories_of(runtime).forget("default", "ann", TEA.id)
    go.set()
    assert (await running).counts["merged"] == 0
    assert await valid_contents(runtime) == [TEA_FOND.content]
    async with runtime.pool.connection() as conn:
        assert await rows(conn, "SELECT FROM model_cache") == []


async def test_reverting_to_a_member_makes_the_others_valid_too(runtime: Runtime, server: OpenAIServer) -> None:
    await append_memories(runtime, TRIP_ANGLES)
    server.reply(merged_text(SUMMARY))
    await run_compaction(runtime)
    await memories_of(runtime).revert("default", "ann", TRIPS[0].id)
    await runtime.wait_until_projected()
    assert await valid_contents(runtime) == [memory.content for memory in TRIPS]
    assert (await run_compaction(runtime)).counts["calls"] == 0


async def test_a_rebuild_gives_the_same_rows_without_a_call(runtime: Runtime, server: OpenAIServer) -> None:
    await append_memories(runtime, {**TEA_ANGLES, **TRIP_ANGLES})
    server.reply(merged_text(TEA_MERGED))
    server.reply(merged_text(SUMMARY))
    await run_compaction(runtime)
    before = await every_row(runtime)
    await rebuild_several(runtime.log, runtime.database_url, [BY_NAME["memories"]])
    assert await every_row(runtime) == before
    assert len(server.bodies()) == 2


async def test_a_merged_memory_gets_a_vector_and_is_recalled_by_its_content(
    runtime: Runtime, server: OpenAIServer
) -> None:
    await append_memories(runtime, {**TRIP_ANGLES, old(8, "has a cello", FAINT): 90.0})
    server.reply(merged_text(SUMMARY))
    await run_compaction(runtime)
    embedder = make_embedder(with_settings(runtime, embedding_model="small").settings)
    async with runtime.pool.connection() as conn:
        budget = ledger("embedder", runtime.settings, True)
        await embed_memories(runtime, conn, embedder, budget, asyncio.Event(), lambda: False)
        [(model,)] = await rows(conn, "SELECT embedding_model FROM memories WHERE kind = 'SUMMARY'")
        scope = MemoryScope(ANN.tenant, ANN.thread, now())
        recalled = await MemoryRecall(embedder).search(conn, scope, "Who goes hiking at the lake?", 5)
    await embedder.close()
    assert model == "small"
    assert recalled.memories[0].memory.content == SUMMARY
    assert f"{recalled.memories[0].memory.first_said_at:%Y-%m-%d}" == f"{FAINT:%Y-%m-%d}"


async def test_before_the_merge_the_members_were_valid(runtime: Runtime, server: OpenAIServer) -> None:
    await append_memories(runtime, TEA_ANGLES)
    server.reply(merged_text(TEA_MERGED))
    await run_compaction(runtime)
    async with runtime.pool.connection() as conn:
        then = await memories_as_of(conn, ANN.tenant, ANN.thread, NOW - timedelta(days=1))
        later = await memories_as_of(conn, ANN.tenant, ANN.thread, now())
    assert {memory.content for memory in then} == {TEA.content, TEA_FOND.content}
    assert [memory.content for memory in later] == [TEA_MERGED]


async def test_the_text_of_a_merged_memory_is_sealed_in_the_log(runtime: Runtime, server: OpenAIServer) -> None:
    await append_memories(runtime, TEA_ANGLES)
    server.reply(merged_text(TEA_MERGED))
    await run_compaction(runtime)
    kinds = [recorded.event.type async for recorded in runtime.log.read_thread("default", ANN.thread)]
    stored = [await runtime.log.stored(seq) for seq in await sequences(runtime)]
    assert "memories_compacted" in kinds
    assert not any(b"green tea" in record.body for record in stored)


async def test_an_erased_users_answers_and_memories_are_gone(runtime: Runtime, server: OpenAIServer) -> None:
    await append_memories(runtime, {**TEA_ANGLES, **TRIP_ANGLES})
    server.reply(merged_text(TEA_MERGED))
    server.reply(merged_text("Goes hiking near the lake with Mia since 1999"))
    await run_compaction(runtime)
    reach = erasure_reach(runtime.settings)
    await erase_person(runtime, await plan_erasure(runtime, "default", "ann", reach), reach)
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        assert await rows(conn, "SELECT FROM memories") == []
        assert await rows(conn, "SELECT FROM memory_compactions") == []
        assert await rows(conn, "SELECT FROM model_cache") == []
    assert (await run_compaction(runtime)).counts["calls"] == 0


async def test_an_export_contains_a_merged_memory_and_its_members(runtime: Runtime, server: OpenAIServer) -> None:
    await append_memories(runtime, TEA_ANGLES)
    server.reply(merged_text(TEA_MERGED))
    await run_compaction(runtime)
    async with runtime.pool.connection() as conn:
        pieces = [piece async for piece in user_export(conn, runtime.log, person_of("default", "ann"), None)]
    exported = json.loads("".join(pieces))["memories"]
    assert {memory["content"] for memory in exported} == {TEA.content, TEA_FOND.content, TEA_MERGED}


async def test_repeated_events_leave_the_same_rows(db: Connection) -> None:
    told = [memory.model_copy(update={"sources": (SOURCE,)}) for memory in TRIPS]
    about = {"thread": ANN.thread, "user": ANN.user, "time": NOW}
    made = old(99, SUMMARY, NOW, kind="SUMMARY", origin="compaction", sources=(SOURCE,))
    ends = [Interval(memory_id=memory.id, valid_to=NOW, replaced_by=made.id, reason="merged") for memory in told]
    data = MemoriesCompacted(
        method="summary",
        members=tuple(memory.id for memory in told),
        memory=made,
        intervals=tuple(ends),
        derivation=DERIVED,
    )
    spec = Spec(db, MEMORIES).given(*(Event(data=MemoryRecorded(memory=memory), **about) for memory in told))
    spec = spec.when(Event(data=data, **about))
    held = "SELECT content, kind FROM memories WHERE status = 'valid' ORDER BY id"
    await spec.then(held, [(SUMMARY, "SUMMARY")])
    forgotten = [MemoryForgotten(memory_id=id_) for id_ in (told[1].id, made.id)]
    again = MemoriesRevised(intervals=tuple(Interval(memory_id=memory.id) for memory in (told[0], told[2])))
    spec = spec.when(*(Event(data=change, **about) for change in (*forgotten, again)))
    await spec.then(held, [(told[0].content, "FACT"), (told[2].content, "FACT")])
    await spec.then("SELECT id FROM memories WHERE content = '' ORDER BY id", [(told[1].id,), (made.id,)])
