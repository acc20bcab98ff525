"""Recall of memories on real rows by words, vectors, entities and dates; current or past; of one user only."""

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from conftest import Settled
from helpers.memory_events import (
    NOW,
    WordVectors,
    cached_vectors,
    embedded,
    entities,
    event,
    memory_id,
    recorded,
    said_again,
)
from numpy.typing import NDArray

from turnlog.agent.memory.deciding.policy import SEED, importance_now
from turnlog.agent.models.errors import ModelUnavailable
from turnlog.agent.recall.memory_search import DEFAULT, MemoriesFound, MemoryRecall
from turnlog.agent.recall.search import QueryEmbedder
from turnlog.events.contracts import Event, Interval, MemoriesAccessed, MemoryForgotten
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories import memory_candidates
from turnlog.projectors.models.memories.lookup import StoredMemory
from turnlog.projectors.models.memories.memory_candidates import (
    WHOLE_UP_TO,
    MemoryQuery,
    MemoryScope,
    ThreadSize,
    candidates,
    thread_size,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("running_projectors")]

YEAR = timedelta(days=365)


class Remembering:
    def __init__(self, log: Log, db: Connection, settled: Settled) -> None:
        self.log, self.db, self.settled = log, db, settled

    async def given(self, *events: Event) -> None:
        await self.log.append_many(list(events))
        await self.settled("memories", "entities")

    async def ask(
        self,
        question: str,
        k: int = 5,
        user: str = "ann",
        *,
        now: datetime = NOW,
        as_of: datetime | None = None,
        history: bool = False,
        kinds: tuple[str, ...] = (),
        min_importance: float = 0.0,
        embedder: QueryEmbedder | None = None,
        zone: tzinfo = UTC,
        max_tokens: int | None = None,
        tokens_of: Callable[[StoredMemory], int] | None = None,
    ) -> MemoriesFound:
        scope = MemoryScope("default", memory_thread(user), now, as_of, history, kinds, min_importance)
        recall = MemoryRecall(embedder, zone=zone)
        return await recall.search(self.db, scope, question, k, max_tokens=max_tokens, tokens_of=tokens_of)


@pytest.fixture
def ann(log: Log, db: Connection, settled: Settled, running_projectors: Runner) -> Remembering:
    return Remembering(log, db, settled)


def contents(recalled: MemoriesFound) -> list[str]:
    return [memory.memory.content for memory in recalled.memories]


async def test_the_memory_that_shares_the_rarest_words_comes_first(ann: Remembering) -> None:
    await ann.given(
        recorded("My favorite color is blue"),
        recorded("My favorite food is ramen"),
        recorded("I live in Berlin"),
    )
    assert contents(await ann.ask("What is my favorite color?"))[0] == "My favorite color is blue"
    assert contents(await ann.ask("Where do I live?")) == ["I live in Berlin"]


async def test_the_search_keeps_to_kinds_and_to_a_current_importance(ann: Remembering) -> None:
    old = NOW - timedelta(days=60)
    await ann.given(
        recorded("I like blue tea", kind="PREFERENCE"),
        recorded("My tea is blue", old, importance=0.9),
        recorded("The blue tea is mine", importance=0.4),
    )
    assert contents(await ann.ask("blue tea", kinds=("PREFERENCE",))) == ["I like blue tea"]
    assert set(contents(await ann.ask("blue tea", min_importance=0.35))) == {"I like blue tea", "The blue tea is mine"}
    assert contents(await ann.ask("blue tea", kinds=("FACT",), min_importance=0.35)) == ["The blue tea is mine"]


async def test_chinese_memories_are_found_by_their_words(ann: Remembering) -> None:
    await ann.given(recorded("我的GPA是3.8"), recorded("我最喜欢的颜色是蓝色"), recorded("我养了一只叫豆豆的猫"))
    assert contents(await ann.ask("我喜欢什么颜色？"))[0] == "我最喜欢的颜色是蓝色"
    assert contents(await ann.ask("我的GPA是多少？"))[0] == "我的GPA是3.8"
    assert contents(await ann.ask("我的猫是哪只猫？"))[0] == "我养了一只叫豆豆的猫"


async def test_a_vector_finds_memories_that_the_words_do_not(ann: Remembering) -> None:
    said = [f"note {n} about nothing at all" for n in range(30)] + ["my pet is a small rabbit"]
    await cached_vectors(ann.db, said)
    await ann.given(*(recorded(content) for content in said), embedded(*said))
    recalled = await ann.ask("is a small pet", embedder=WordVectors())
    assert recalled.degraded is None
    assert contents(recalled)[0] == "my pet is a small rabbit"
    assert recalled.memories[0].explain()["vector"]["value"] > 0.5


async def test_an_entity_in_the_question_brings_the_memories_about_it(ann: Remembering) -> None:
    await ann.given(
        entities(("PERSON", "Maria Lopez"), ("SCHOOL", "清华大学")),
        recorded("She plays the violin", entities=("Maria Lopez",)),
        recorded("He plays the drums"),
        recorded("申请截止日期是一月", entities=("清华大学",)),
    )
    recalled = await ann.ask("What does maria lopez play?")
    assert contents(recalled)[0] == "She plays the violin"
    assert recalled.names == ("Maria Lopez",)
    assert recalled.memories[0].explain()["entity"]["value"] == 1.0
    assert contents(await ann.ask("清华大学那边怎么样了？"))[0] == "申请截止日期是一月"


@pytest.mark.parametrize("question", ["What about Berlin?", "what about berlin?"])
async def test_an_entity_is_the_same_in_any_spelling(ann: Remembering, question: str) -> None:
    await ann.given(
        entities(("PLACE", "berlin")),
        recorded("it was cold there", entities=("Berlin",)),
        recorded("the food was good", entities=("BERLIN",)),
        recorded("the dog barks"),
    )
    assert sorted(contents(await ann.ask(question))) == ["it was cold there", "the food was good"]


async def test_a_date_in_the_question_prefers_memories_of_that_time(ann: Remembering) -> None:
    march, may = datetime(2026, 3, 5, tzinfo=UTC), datetime(2026, 5, 5, tzinfo=UTC)
    await ann.given(recorded("I travelled to Rome", march), recorded("I travelled to Oslo", may))
    assert contents(await ann.ask("Where did I travel last March?"))[0] == "I travelled to Rome"
    assert contents(await ann.ask("Where did I travel in May?"))[0] == "I travelled to Oslo"
    assert contents(await ann.ask("五月呢？5月我去了哪里"))[0] == "I travelled to Oslo"
    assert [date.text for date in (await ann.ask("去年三月")).dates] == ["去年三月"]


@pytest.mark.parametrize("question", ["What did I buy yesterday?", "昨天我买了什么？"])
async def test_yesterday_is_the_day_before_in_the_users_timezone(ann: Remembering, question: str) -> None:
    lamp, chair = datetime(2026, 11, 20, 10, tzinfo=UTC), datetime(2026, 11, 21, 10, tzinfo=UTC)
    await ann.given(recorded("I 买 buy a lamp", lamp), recorded("I 买 buy a chair", chair))
    seven = datetime(2026, 11, 21, 23, tzinfo=UTC)  # this is 07:00 of the 22nd in Shanghai
    there = await ann.ask(question, now=seven, zone=ZoneInfo("Asia/Shanghai"))
    assert contents(there)[0] == "I 买 buy a chair"
    assert [(date.from_time, date.to_time) for date in there.dates] == [
        (datetime(2026, 11, 20, 16, tzinfo=UTC), datetime(2026, 11, 21, 16, tzinfo=UTC))
    ]
    assert contents(await ann.ask(question, now=seven))[0] == "I 买 buy a lamp"


async def test_a_superseded_memory_is_found_only_when_asked_for(ann: Remembering) -> None:
    old, new = NOW - 2 * YEAR, NOW - YEAR
    closed = Interval(
        memory_id=memory_id("I live in Berlin"),
        valid_to=new,
        replaced_by=memory_id("I live in Rome"),
        reason="superseded",
    )
    await ann.given(recorded("I live in Berlin", old), recorded("I live in Rome", new, intervals=(closed,)))
    assert contents(await ann.ask("Where do I live?")) == ["I live in Rome"]
    assert contents(await ann.ask("Where do I live?", as_of=new - timedelta(days=1))) == ["I live in Berlin"]
    assert set(contents(await ann.ask("Where do I live?", history=True))) == {"I live in Rome", "I live in Berlin"}
    assert contents(await ann.ask("Where do I live?", as_of=old - timedelta(days=1))) == []


async def test_expired_and_forgotten_memories_are_not_found(ann: Remembering) -> None:
    await ann.given(
        recorded("The parcel comes on Monday", expires_at=NOW - timedelta(hours=1)),
        recorded("The parcel was lost"),
        event(MemoryForgotten(memory_id=memory_id("The parcel was lost"))),
    )
    assert contents(await ann.ask("Where is the parcel?")) == []
    assert contents(await ann.ask("Where is the parcel?", history=True)) == ["The parcel comes on Monday"]


async def test_one_user_never_sees_another_ones_memories(ann: Remembering) -> None:
    await ann.given(
        recorded("My secret word is falcon", user="bob"),
        recorded("My secret word is falcon", tenant="other"),
        entities(("PERSON", "Falcon"), user="bob"),
    )
    assert (await ann.ask("What is the secret word falcon?")).memories == ()
    assert (await ann.ask("falcon", user="carl")).memories == ()


async def test_the_more_important_of_two_equal_memories_comes_first(ann: Remembering) -> None:
    await ann.given(recorded("I like tea a lot", importance=0.3), recorded("I like tea a bit", importance=0.9))
    recalled = await ann.ask("Do I like tea?")
    assert contents(recalled) == ["I like tea a bit", "I like tea a lot"]
    first = recalled.memories[0].explain()
    assert first["score"] == pytest.approx(first["similarity"] * first["importance"] ** DEFAULT.importance, abs=1e-3)


async def test_importance_decays_until_now_and_access_adds_to_it(ann: Remembering) -> None:
    then = NOW - timedelta(days=30)
    await ann.given(
        recorded("I like tea", then),
        event(MemoriesAccessed(memory_ids=(memory_id("I like tea"),))),
    )
    (memory,) = (await ann.ask("tea")).memories
    assert memory.memory.access_count == 1
    assert memory.explain()["importance"] == round(importance_now(memory.memory, NOW, SEED), 4) < 0.8


async def test_every_part_is_explained_with_its_value_and_weight(ann: Remembering) -> None:
    said = ["I met Ann Lee in Rome"]
    await cached_vectors(ann.db, said)
    await ann.given(recorded(said[0], entities=("Ann Lee",)), embedded(*said), entities(("PERSON", "Ann Lee")))
    (memory,) = (await ann.ask("Where did I meet Ann Lee yesterday?", embedder=WordVectors())).memories
    shown = memory.explain()
    parts = ("words", "vector", "entity", "time")
    assert all(0 <= shown[name]["value"] <= 1 and shown[name]["weight"] > 0 for name in parts)
    total = sum(shown[name]["value"] * shown[name]["weight"] for name in parts)
    assert shown["similarity"] == pytest.approx(total / sum(shown[name]["weight"] for name in parts), abs=1e-3)
    json.dumps(shown)


class Away:
    model = "words"

    async def embed_query(self, text: str, asker: str | None = None) -> NDArray:  # type: ignore[type-arg]
        raise ModelUnavailable("the embedding server is away")


class Wider(WordVectors):
    async def embed_query(self, text: str, asker: str | None = None) -> NDArray:  # type: ignore[type-arg]
        return (await super().embed_query(text))[:32]


@pytest.mark.parametrize(("embedder", "why"), [(Away(), "is away"), (Wider(), "32 dimensions"), (None, "left out")])
async def test_without_the_embedding_model_words_entities_and_dates_still_find(
    ann: Remembering, embedder: object, why: str
) -> None:
    await cached_vectors(ann.db, ["我喜欢喝茶"])
    await ann.given(recorded("我喜欢喝茶"), embedded("我喜欢喝茶"))
    recalled = await ann.ask("昨天说喜欢喝什么？", embedder=embedder)
    assert contents(recalled) == ["我喜欢喝茶"]
    assert recalled.degraded is not None
    assert "words, entities and dates only" in recalled.degraded
    assert why in recalled.degraded


async def test_an_embedding_model_that_does_not_answer_is_not_waited_for(ann: Remembering) -> None:
    class Silent(WordVectors):
        async def embed_query(self, text: str, asker: str | None = None) -> NDArray[np.float32]:
            await asyncio.Event().wait()
            raise AssertionError

    await cached_vectors(ann.db, ["I like tea"])
    await ann.given(recorded("I like tea"), embedded("I like tea"))
    scope = MemoryScope("default", memory_thread("ann"), NOW)
    recalled = await MemoryRecall(Silent(), patience_s=0.01).search(ann.db, scope, "What tea do I like?")
    assert contents(recalled) == ["I like tea"]
    assert "after 0.01 s" in (recalled.degraded or "")


@pytest.mark.parametrize("question", ["tea\0 Maria\0Lopez", "tea \ud800 喜欢\udfff"])
async def test_a_question_may_contain_characters_that_postgres_refuses(ann: Remembering, question: str) -> None:
    await ann.given(recorded("I like tea"))
    assert contents(await ann.ask(question)) == ["I like tea"]


async def test_memories_that_have_no_vector_yet_are_said_to_have_none(ann: Remembering) -> None:
    await ann.given(recorded("I like tea"))
    recalled = await ann.ask("tea", embedder=WordVectors())
    assert contents(recalled) == ["I like tea"]
    assert "yet" in (recalled.degraded or "")


async def test_no_more_than_max_tokens_come_back_and_a_large_one_makes_room(ann: Remembering) -> None:
    await ann.given(
        recorded("tea " * 40, importance=1.0), recorded("I like green tea"), recorded("I drink tea at night")
    )

    def tokens_of(memory: StoredMemory) -> int:
        return len(memory.content.split())

    recalled = await ann.ask("tea", max_tokens=10, tokens_of=tokens_of)
    assert sorted(contents(recalled)) == ["I drink tea at night", "I like green tea"]
    assert len(contents(await ann.ask("tea", max_tokens=5, tokens_of=tokens_of))) == 1
    assert len((await ann.ask("tea", k=2)).memories) == 2


async def test_in_a_large_thread_a_long_question_is_decided_by_the_word_that_a_memory_has(ann: Remembering) -> None:
    await ann.given(*(recorded(f"note number{n} of the diary") for n in range(WHOLE_UP_TO + 100)))
    await ann.given(recorded("my GPA is 3.8"))
    unknown = (
        "graduate applications, scholarships, recommendation letters, transcripts, interviews, deadlines, universities"
    )
    assert contents(await ann.ask(f"Considering {unknown}: what GPA did I tell you?"))[:1] == ["my GPA is 3.8"]


async def test_in_a_large_thread_both_words_count_more_than_the_rarer_word_alone(ann: Remembering) -> None:
    rare, common = range(150), range(150, WHOLE_UP_TO + 100)
    both = [f"a ceramic purple bowl, target{n}" for n in range(5)]
    await ann.given(*(recorded(f"a ceramic thing, number{n}") for n in rare))
    await ann.given(*(recorded(f"a purple thing, number{n}") for n in common), *map(recorded, both))
    assert sorted(contents(await ann.ask("Which ceramic is purple?"))) == both


@pytest.mark.parametrize("count", [5, WHOLE_UP_TO + 100])
async def test_a_zero_vector_is_similar_to_no_memory(ann: Remembering, count: int) -> None:
    class Zeros(WordVectors):
        async def embed_query(self, text: str, asker: str | None = None) -> NDArray[np.float32]:
            return np.zeros_like(await super().embed_query(text))

    said = [*(f"note {n} about nothing" for n in range(count)), "my pet is a small rabbit"]
    first = min(said[:-1], key=memory_id)  # so that it is in the sample
    await cached_vectors(ann.db, said)
    await ann.db.execute(
        "UPDATE embedding_cache SET embedding = array_fill(0, ARRAY[vector_dims(embedding)])::halfvec "
        "WHERE text_hash = sha256(%s::bytea)",
        (first.encode(),),
    )
    await ann.given(*map(recorded, said), embedded(*said))
    [best, *_] = (await ann.ask("is a small pet", embedder=WordVectors())).memories
    assert best.memory.content == "my pet is a small rabbit"
    assert 0 < best.rank.parts["vector"].value <= 1
    of_first = [
        memory
        for memory in (await ann.ask("nothing note", 10, embedder=WordVectors())).memories
        if memory.memory.content == first
    ]
    assert all("vector" not in memory.rank.parts for memory in of_first)
    for memory in (await ann.ask("is a small pet", embedder=Zeros())).memories:
        assert "vector" not in memory.rank.parts


@pytest.mark.parametrize("size", [1, WHOLE_UP_TO + 1])
async def test_memories_that_were_erased_since_they_were_counted_are_not_found(db: Connection, size: int) -> None:
    scope, asked = MemoryScope("default", memory_thread("ann"), NOW), MemoryQuery(["falcon"])
    assert await candidates(db, scope, asked, ThreadSize(size, None, ())) == []


@pytest.mark.parametrize(("counted", "rare"), [(2_000, 1_000), (100, 0)])
async def test_in_a_large_thread_each_search_method_adds_results(
    ann: Remembering, monkeypatch: pytest.MonkeyPatch, counted: int, rare: int
) -> None:
    monkeypatch.setattr(memory_candidates, "COUNT_UP_TO", counted)
    monkeypatch.setattr(memory_candidates, "RARE_UP_TO", rare)
    count = WHOLE_UP_TO + 300
    many = [f"common words here number{n}" for n in range(count)]
    asked = datetime(2020, 3, 5, tzinfo=UTC)
    special = [
        recorded("The falcon nests on the tower"),
        recorded("It is about somebody", entities=("Maria Lopez",)),
        recorded("Something of long ago", asked),
        recorded("Something said again", datetime(2018, 1, 1, tzinfo=UTC)),
        said_again("Something said again", datetime(2019, 7, 9, tzinfo=UTC)),
        recorded("unrelated but near in space"),
        recorded("common words and here again with both together"),
    ]
    await cached_vectors(ann.db, [*many[:50], "unrelated but near in space"])
    await ann.given(*(recorded(content) for content in many), *special, entities(("PERSON", "Maria Lopez")))
    await ann.given(embedded(*many[:50], "unrelated but near in space"))

    async def first(question: str, embedder: QueryEmbedder | None = None) -> Sequence[str]:
        return contents(await ann.ask(question, embedder=embedder))

    assert (await first("Where does the falcon nest?"))[0] == "The falcon nests on the tower"
    assert (await first("What of Maria Lopez?"))[0] == "It is about somebody"
    assert "Something of long ago" in await first("What was in March 2020?")
    assert "Something said again" in await first("What was in July 2019?")
    assert "unrelated but near in space" in await first("near unrelated space", embedder=WordVectors())
    assert (await first("both together common words"))[0] == "common words and here again with both together"
    assert contents(await ann.ask("falcon", user="bob")) == []
    scope = MemoryScope("default", memory_thread("ann"), NOW)
    size = await thread_size(ann.db, scope, "falcon", None)
    assert size.memories == count + len(special) - 1 if counted > count else size.memories > counted
