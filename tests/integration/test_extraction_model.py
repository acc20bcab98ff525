"""The extraction reactor makes one model call for each batch, even after redeliveries and crashes."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from helpers.extraction import (
    ANN_THREAD,
    ExtractingServer,
    append_texts,
    delivery,
    extracting_roles,
    extraction_events,
    extractions_of_stage,
    is_extraction,
    memory,
    stored_memories,
    turns_of,
    user_turn,
)
from helpers.lone_reactors import extracting
from helpers.openai_bodies import Step
from helpers.servers import eventually, rows
from helpers.stage import Play

from turnlog.agent.models.factory import make_models
from turnlog.consumers.workers.reactors.extraction import NAME, ExtractionReactor
from turnlog.events.contracts import ERASED
from turnlog.events.subjects import STREAM, memory_thread
from turnlog.projectors.engine.database import connect
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild.rebuild import rebuild

pytestmark = pytest.mark.slow

ROLES = ("projectors", "reactors")
LONG = "The committee met on Tuesday and talked about the roof of the school for a long time. " * 8
BERLIN = {
    "memories": [memory("Moved for a new position at a bakery", "took a position at the bakery", importance=3.0)],
    "entities": [
        {
            **{"type": "person", "name": "Mia", "turn": 1, "attributes": {"interestLevel": "high", "age": 40}},
            "relations": [{"type": "sister_of", "target": "user"}],
        }
    ],
}
TOLD = "Last spring I took a position at the bakery. Mia, my sister, found it for me."


@pytest.fixture
def model() -> Iterator[ExtractingServer]:
    with ExtractingServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: ExtractingServer) -> Play:
    return extracting_roles(nats_url, database_url, model, ROLES)


async def test_the_day_of_a_memory_follows_the_configured_timezone(play: Play, model: ExtractingServer) -> None:
    last_of_may = datetime(2026, 5, 31, 17, tzinfo=UTC)  # this is the 1st of June in Shanghai
    words = "I plan to go to Spain next month.", "我下个月想去西班牙旅行。", LONG
    async with play(timezone="Asia/Shanghai") as stage:
        told = [user_turn(text).model_copy(update={"time": last_of_may}) for text in words]
        await stage.runtime.log.append_many(told)
        await stage.rest(NAME)
        memories = sorted(await stored_memories(stage))
        sources: Any = await stage.rows("SELECT valid_from, sources -> 0 ->> 'said_at' FROM memories")
    assert memories == [
        ("Plan: go to Spain next month (2026-07)", "valid"),
        ("计划下个月（2026-07）去西班牙旅行", "valid"),
    ]
    assert set(sources) == {(last_of_may, "2026-06-01T01:00:00+08:00")}
    [body] = [body for body in model.bodies("chat") if is_extraction(body)]
    assert {turn["date"] for turn in turns_of(body)} == {"2026-06-01"}


async def test_everything_delivered_again_changes_nothing(play: Play, model: ExtractingServer) -> None:
    model.extracts = BERLIN
    async with play() as stage:
        await append_texts(stage, f"{TOLD} {LONG}", "I live in Berlin.")
        await stage.until("memories_extracted", 2, ANN_THREAD)
        await stage.rest(NAME)
        before = await extraction_events(stage)
        await stage.runtime.log.nc.jetstream().delete_consumer(STREAM, NAME)
    async with play() as stage:
        await stage.rest(NAME)
        assert await extraction_events(stage) == before
    assert len(model.extractions()) == 1


async def test_the_model_gets_a_batch_of_words_and_its_finds_are_recorded_with_their_cost(
    play: Play, model: ExtractingServer
) -> None:
    model.extracts = BERLIN
    async with play() as stage:
        await append_texts(stage, "Short.")
        await stage.rest(NAME)
        assert model.extractions() == []
        await append_texts(stage, f"{TOLD} {LONG}")
        await stage.until("entities_found", 1, ANN_THREAD)
        [recorded] = await stage.all("memory_recorded", ANN_THREAD)
        [done] = await extractions_of_stage(stage, "llm")
        [spent] = [usage for usage in await stage.all("usage_metered", ANN_THREAD) if usage.purpose == "extraction"]
        entities = await stage.rows("SELECT type, name, attributes, relations FROM entities")
        cache = await stage.rows("SELECT tenant, user_id, thread_id FROM model_cache WHERE response::text ~ 'bakery'")
    [asked] = model.extractions()
    assert asked[0] == "Short." and asked[1].startswith(TOLD)
    assert (recorded.memory.content, recorded.memory.origin) == ("Moved for a new position at a bakery", "llm")
    assert recorded.memory.sources[0].quote == "took a position at the bakery"
    assert 0 <= recorded.memory.importance <= 1
    assert recorded.derivation == done.derivation
    assert done.derivation is not None and done.derivation.tokens_in == spent.tokens_in > 0
    assert entities == [("PERSON", "Mia", {"interestLevel": "high"}, [{"type": "sister_of", "target": "user"}])]
    assert cache == [("default", "ann", "t")]


async def test_fewer_words_go_to_the_model_when_they_have_waited_long_enough(
    play: Play, model: ExtractingServer
) -> None:
    model.extracts = BERLIN
    async with play(extract_max_age_s=0.0) as stage:
        await append_texts(stage, TOLD)
        await stage.until("entities_found", 1, ANN_THREAD)
    assert model.extractions() == [[TOLD]]


async def test_turns_without_a_pending_extraction_are_found_when_a_worker_starts(
    play: Play, model: ExtractingServer
) -> None:
    async with play() as stage:
        await append_texts(stage, TOLD)
        await stage.rest(NAME)
    assert model.extractions() == []
    async with play(extract_max_age_s=0.0) as stage:
        await stage.until("memories_extracted", 1, ANN_THREAD)
    assert model.extractions() == [[TOLD]]


async def test_tool_results_without_a_pending_extraction_are_found_when_a_worker_starts(
    play: Play, model: ExtractingServer
) -> None:
    async with play(extract_tool_results=True) as stage:
        await append_texts(stage, TOLD, role="tool", tool_call_id="d")
        await stage.rest(NAME)
    assert model.extractions() == []
    async with play(extract_tool_results=True, extract_max_age_s=0.0) as stage:
        await stage.until("memories_extracted", 1, ANN_THREAD)
    assert model.extractions() == [[TOLD]]


async def test_turns_of_each_user_of_a_thread_are_found_when_a_worker_starts(
    play: Play, model: ExtractingServer
) -> None:
    async with play() as stage:
        await append_texts(stage, "Hello from me.", user="ben")
        await append_texts(stage, f"{TOLD} {LONG}", user="ann")
        await stage.until("memories_extracted", 1, ANN_THREAD)
        await stage.rest(NAME)
    async with play(extract_max_age_s=0.0) as stage:
        await stage.until("memories_extracted", 1, memory_thread("ben"))
    assert model.extractions() == [[f"{TOLD} {LONG}".strip()], ["Hello from me."]]


async def test_empty_turns_of_an_erased_user_are_not_extracted(play: Play, model: ExtractingServer) -> None:
    async with play(extract_max_age_s=0.0) as stage:
        await append_texts(stage, ERASED, user="ann")
        await append_texts(stage, TOLD, user="ben")
        await stage.until("memories_extracted", 1, memory_thread("ben"))
        await stage.rest(NAME)
        assert await stage.events(ANN_THREAD) == []
        assert await stage.rows("SELECT user_id FROM messages ORDER BY seq") == [("ann",), ("ben",)]
    assert model.extractions() == [[TOLD]]


async def test_a_memory_without_a_quote_of_the_user_is_refused_and_counted(play: Play, model: ExtractingServer) -> None:
    model.extracts = {
        "memories": [
            memory("Has a dog", "I have a dog"),
            memory("Sister's name is Mia", "Mia, my  sister"),
            {"type": "RUMOUR", "content": "x"},
            memory("Works since 2019 for 300 euros", "I took a position"),
        ],
        "entities": [{"type": "PERSON", "name": "Zoe"}],
    }
    async with play() as stage:
        await append_texts(stage, f"{TOLD} {LONG}")
        await stage.until("memories_extracted", 1, ANN_THREAD)
        [done] = await extractions_of_stage(stage, "llm")
        assert await stored_memories(stage) == [("Sister's name is Mia", "valid")]
    assert done.rejected == {"malformed": 1, "no-evidence": 2, "number-not-said": 1}


async def test_dying_between_the_models_answer_and_the_append_costs_no_second_call(
    play: Play, model: ExtractingServer, database_url: str
) -> None:
    """The ledger's table is locked, so that the work waits after the cached answer until the process has ended."""
    model.first["extract"] = [Step(text=json.dumps(BERLIN), until=(go := threading.Event()))]
    async with await connect(database_url) as conn:
        async with play(extract_max_age_s=0.0) as stage:
            await append_texts(stage, TOLD)

            async def is_asked_for() -> bool:
                return bool(model.extractions())

            async def is_answered() -> bool:
                return bool(await rows(conn, "SELECT FROM model_cache WHERE response::jsonb ? 'entities'"))

            await eventually(is_asked_for)
            await conn.execute("BEGIN")
            await conn.execute("LOCK TABLE reactor_spending IN ACCESS EXCLUSIVE MODE")
            go.set()
            await eventually(is_answered)
        await conn.execute("ROLLBACK")
    async with play("projectors") as stage:
        assert await stage.all("memory_recorded", ANN_THREAD) == []
        await append_texts(
            stage, "One more turn."
        )  # a longer batch is a different request; the existing answer is used
    async with play(extract_max_age_s=0.0) as stage:
        await stage.until("memory_recorded", 1, ANN_THREAD)
        await stage.until("memories_extracted", 2, ANN_THREAD)
        assert await stage.rows("SELECT sum(calls) FROM usage WHERE purpose = 'extraction'") == [(2,)]
    assert model.extractions() == [[TOLD], ["One more turn."]]


@pytest.mark.nightly
async def test_a_thousand_imported_turns_are_few_events_and_few_calls(play: Play, model: ExtractingServer) -> None:
    """Runs only the reactor, with deliveries like those of a bulk import."""
    async with play("projectors", extract_batch_tokens=2_000) as stage:
        seqs = await append_texts(stage, *(f"Well, that was number {n} of the meeting." for n in range(1_000)))
        await stage.runtime.wait_until_projected()
        models = make_models(stage.runtime.settings)
        reactor = ExtractionReactor(stage.runtime, models)
        for first in range(0, 1_000, 125):
            await reactor.work([delivery(seq) for seq in seqs[first : first + 125]])
        done = await extractions_of_stage(stage, "rules")
        await models.close()
    assert len(done) <= 8
    assert done[-1].through_seq == seqs[-1]
    assert 4 <= len(model.extractions()) <= 5
    assert all(len(turns) > 125 for turns in model.extractions())


async def test_while_the_model_is_down_the_rules_part_is_stored_and_the_rest_comes_later(
    play: Play, model: ExtractingServer
) -> None:
    """While the model is unavailable, only the rules extract."""
    model.extracts = BERLIN
    model.first["extract"] = [Step(status=500)] * 4  # the first try and its retries
    async with play("projectors") as stage, extracting(stage):
        await append_texts(stage, f"I live in Berlin. {TOLD} {LONG}")
        await stage.until("memory_recorded", 1, ANN_THREAD)
        assert ("Lives in Berlin", "valid") in await stored_memories(stage)
        await stage.until("memory_recorded", 2, ANN_THREAD)
        assert {extraction.error for extraction in await extractions_of_stage(stage, "llm")} == {None}


@pytest.mark.parametrize(
    "answer",
    ["I found nothing.", '{"memories": 3}', "[]", '{"memories": ' + "[" * 5_000],
    ids=["words", "shape", "list", "brackets without end"],
)
async def test_an_answer_in_another_format_is_requested_again_and_then_recorded_as_an_error(
    play: Play, model: ExtractingServer, answer: str
) -> None:
    model.extracts = answer
    async with play("projectors") as stage, extracting(stage):
        await append_texts(stage, f"I live in Berlin. {TOLD} {LONG}")
        await stage.until("memories_extracted", 2, ANN_THREAD)
        [done] = await extractions_of_stage(stage, "llm")
        assert await stored_memories(stage) == [("Lives in Berlin", "valid")]
        [failed] = [usage for usage in await stage.all("usage_metered", ANN_THREAD) if usage.error]
    assert done.error is not None and done.error.startswith("model-bad-answer")
    assert failed.purpose == "extraction"


async def test_over_the_hourly_budget_the_model_waits(play: Play, model: ExtractingServer) -> None:
    async with play(budget_calls_per_hour=0) as stage:
        await append_texts(stage, f"I live in Berlin. {TOLD} {LONG}", f"Second. {LONG}")
        await stage.rest(NAME)
        assert await stored_memories(stage) == [("Lives in Berlin", "valid")]
        assert len(model.extractions()) <= 1  # an empty budget window allows one call


async def test_a_rebuild_asks_no_model_and_gives_the_same_rows(play: Play, model: ExtractingServer) -> None:
    model.extracts = BERLIN
    async with play(embed_poll_s=0.1) as stage:
        await append_texts(stage, f"{TOLD} {LONG}", "I live in Berlin.")
        await stage.until("memories_extracted", 2, ANN_THREAD)

        async def have_vectors() -> bool:
            return await stage.rows("SELECT FROM memories WHERE embedding IS NULL") == []

        await eventually(have_vectors)
        await stage.runtime.wait_until_projected()
        before = await stage.rows("SELECT * FROM memories ORDER BY id")
        await rebuild(stage.runtime.log, stage.runtime.database_url, BY_NAME["memories"])
        assert await stage.rows("SELECT * FROM memories ORDER BY id") == before
    assert len(model.extractions()) == 1
