"""Makes old memories with vectors at given angles, each quoted from a stored turn, for tests of merging by a model."""

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from helpers.key_rings import KEK
from helpers.openai_server import OpenAIServer
from helpers.sample_events import turn
from helpers.servers import now, rows
from pgvector import HalfVector
from pydantic import SecretStr

from turnlog.agent.memory.deciding.writing import Place
from turnlog.agent.operations.jobs.compaction import compact
from turnlog.agent.operations.jobs.job import Done
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import Event, MemoriesEmbedded, Memory, MemoryRecorded, MemorySource
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.memories.lookup import StoredMemory, memories_by_id

ANN = Place("default", "ann")
MODEL = "unit-vectors"  # for this model the cosine is the similarity
NOW = now()
# since these times, the importance of a fact has decayed from 0.8 to 0.5 and to 0.25
LONG_AGO, FAINT = NOW - timedelta(days=30), NOW - timedelta(days=55)


def old(number: int, content: str, at: datetime = LONG_AGO, **fields: Any) -> Memory:
    """Returns a fact that a model extracted and whose content is the user's own words."""
    told: dict[str, Any] = {"kind": "FACT", "importance": 0.8, "confidence": 0.7, "origin": "llm", **fields}
    return Memory(id=UUID(int=number), content=content, valid_from=at, **told)


def merged_text(said: str | None) -> str:
    """Returns a model's answer to a request for a merge."""
    return json.dumps({"text": said}, ensure_ascii=False)


TEA = old(1, "likes green tea a lot")
TEA_FOND = old(2, "is really fond of tea that is green")
TEA_MERGED = "Likes green tea a lot and is really fond of it"
TEA_CN, TEA_RAIN_CN = old(3, "很喜欢喝绿茶"), old(4, "下雨天最爱喝绿茶")
TEA_CN_MERGED = "很喜欢喝绿茶，下雨天最爱喝"
TRIPS = [
    old(5, "went hiking near the lake in spring", FAINT),
    old(6, "goes hiking near the lake with Mia", FAINT),
    old(7, "has new hiking boots", FAINT),
]
SUMMARY = "Goes hiking near the lake with Mia and has new boots"
TEA_ANGLES = {TEA: 0.0, TEA_FOND: 30.0}
TRIP_ANGLES = dict(zip(TRIPS, (220.0, 180.0, 260.0), strict=True))


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as made:
        yield made


@pytest.fixture
def settings(nats_url: str, database_url: str, server: OpenAIServer) -> Settings:
    about: dict[str, Any] = {"api_base_url": server.url, "api_key": SecretStr(server.key)}
    return Settings(nats_url=nats_url, database_url=database_url, kek=SecretStr(KEK), **about)


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with opened(settings) as made, projecting(made):
        yield made


def with_settings(runtime: Runtime, **changed: Any) -> Runtime:
    settings = runtime.settings.model_copy(update=changed)
    return Runtime(settings, runtime.nats_url, runtime.database_url, runtime.log, runtime.pool)


async def merged_memory(runtime: Runtime) -> StoredMemory:
    [told] = [data for data in await memory_thread_events(runtime, "memories_compacted") if data.memory is not None]
    async with runtime.pool.connection() as conn:
        return (await memories_by_id(conn, ANN.tenant, ANN.thread, [told.memory.id]))[told.memory.id]


async def append_memories(runtime: Runtime, memories: Mapping[Memory, float], user: str = "ann") -> list[Memory]:
    """Appends memories with vectors and returns them with their sources. memories: the angle of each vector in degrees;
    20 degrees are a cosine of 0.94, 30 of 0.87."""
    turns = [
        turn(f"Well, {memory.content}.", "user", f"chat-{user}", user=user).model_copy(
            update={"time": memory.valid_from}
        )
        for memory in memories
    ]
    stored = await runtime.log.append_many(turns)
    told = [
        memory.model_copy(update={"sources": (_source(said, done.seq, memory.content),)})
        for memory, said, done in zip(memories, turns, stored, strict=True)
    ]
    about = {"thread": memory_thread(user), "user": user}
    await runtime.log.append_many(
        [Event(time=memory.valid_from, data=MemoryRecorded(memory=memory), **about) for memory in told]
    )
    await embed(runtime, {memory.content: degrees for memory, degrees in memories.items()})
    ids = tuple(memory.id for memory in told)
    embedded = MemoriesEmbedded(model=MODEL, dimensions=2, memory_ids=ids)
    await runtime.log.append(Event(time=NOW, data=embedded, **about))
    await runtime.wait_until_projected()
    return told


async def embed(runtime: Runtime, contents: Mapping[str, float]) -> None:
    async with runtime.pool.connection() as conn:
        for content, degrees in contents.items():
            turned = [float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))]
            await conn.execute(
                "INSERT INTO embedding_cache (model, text_hash, embedding) VALUES (%s, %s, %s::halfvec)",
                (MODEL, hashlib.sha256(content.encode()).digest(), HalfVector(turned).to_text()),
            )


async def run_compaction(runtime: Runtime) -> Done:
    done = await compact(runtime, NOW, lambda done, total: None)
    await runtime.wait_until_projected()
    return done


async def valid_contents(runtime: Runtime, user: str = "ann") -> list[str]:
    query = "SELECT content FROM memories WHERE thread_id = %s AND status = 'valid' ORDER BY seq, id"
    async with runtime.pool.connection() as conn:
        return [content for (content,) in await rows(conn, query, memory_thread(user))]


async def memory_thread_events(runtime: Runtime, kind: str) -> list[Any]:
    return [
        recorded.event.data
        async for recorded in runtime.log.read_thread("default", ANN.thread)
        if recorded.event.type == kind
    ]


def _source(said: Event, seq: int, quote: str) -> MemorySource:
    return MemorySource(thread=said.thread, seq=seq, event_id=said.id, quote=quote, said_at=said.time)
