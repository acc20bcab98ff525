"""Work that is running during an erasure keeps none of the person's words."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.erased_users import ANN_THREAD, BAKERY, erase, rows_with_bakery
from helpers.extraction import ExtractingServer, memory, user_turn
from helpers.openai_bodies import Step
from helpers.openai_server import Kind
from helpers.personal_events import conversation, secret
from helpers.sample_events import DERIVED, event, turn
from helpers.servers import eventually
from helpers.stage import Play, Stage, player, task_of
from pydantic import SecretStr

from turnlog.agent.privacy.erasure import erase as erasing
from turnlog.agent.privacy.personal_data import erase_person, plan_erasure
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.contracts import AnswerRequested, Memory, MemoryRecorded, MemorySource, SummaryWritten

pytestmark = pytest.mark.slow

FOUND = {"memories": [memory("Moved for a new position at a bakery", "took a position at the bakery")], "entities": []}


class SlowServer(ExtractingServer):
    """Holds every request about the bakery until `go` is set, and never mentions it otherwise. asked_for: set by such a
    request."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.go, self.asked_for = threading.Event(), threading.Event()

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        step = super().next_step(kind, body)
        if kind == "chat" and "bakery" not in json.dumps(body):
            return Step(text=step.text.replace("bakery", "weather"))
        if kind == "chat":
            self.asked_for.set()
            self.go.wait(120.0)
        return step


@pytest.fixture
def model() -> Iterator[SlowServer]:
    with SlowServer() as server:
        server.extracts = FOUND
        server.said |= {"topics": '{"bakery": 2}', "summary": "She works at the bakery."}
        yield server
        server.go.set()


@pytest.fixture
def play(nats_url: str, database_url: str, model: SlowServer, tmp_path: Path) -> Play:
    settings = {"api_base_url": model.url, "api_key": SecretStr(model.key), "extract_max_age_s": 0.0, "home": tmp_path}
    return player(nats_url, database_url, ["projectors", "reactors"], **settings, archive_threads_after_days=30)


@pytest.fixture
async def room(play: Play) -> AsyncIterator[Stage]:
    async with play("projectors") as opened:
        yield opened


async def paid(stage: Stage, purpose: str, thread: str = "t") -> None:
    """Waits until a model's work is finished; a reactor records its cost last."""

    async def is_metered() -> bool:
        return any(usage.purpose == purpose for usage in await stage.all("usage_metered", thread))

    await eventually(is_metered)
    await stage.runtime.wait_until_projected()


async def test_results_of_a_running_extraction_are_not_stored_after_the_erasure(play: Play, model: SlowServer) -> None:
    async with play() as stage:
        await stage.runtime.log.append(user_turn(BAKERY))
        assert await asyncio.to_thread(model.asked_for.wait, 120.0)
        assert (await erase(stage)).hits == {}
        model.go.set()
        await paid(stage, "extraction", ANN_THREAD)
        assert await rows_with_bakery(stage) == {}
        assert await stage.all("memory_recorded", ANN_THREAD) == []


async def test_results_of_a_running_extraction_are_removed_by_the_erasure(
    play: Play, model: SlowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also tests a person who had no memories before."""
    purge = erasing._purge_buckets

    async def is_told(stage: Stage) -> None:
        source = (await stage.events("t"))[0]
        made = {
            "id": source.id,
            "kind": "FACT",
            "content": BAKERY,
            "importance": 0.5,
            "confidence": 0.5,
            "origin": "llm",
        }
        said = {"thread": "t", "seq": 1, "event_id": source.id, "quote": BAKERY, "said_at": source.time}
        told = Memory(**made, valid_from=source.time, sources=(MemorySource(**said),))
        await stage.runtime.log.append(event(MemoryRecorded(memory=told), ANN_THREAD, user="ann"))

    async with play("projectors") as stage:

        async def late(*args: Any) -> None:
            await is_told(stage)
            await purge(*args)

        monkeypatch.setattr(erasing, "_purge_buckets", late)
        await stage.runtime.log.append(user_turn(BAKERY))
        receipt = await erase(stage, strings=[BAKERY])
        assert receipt.hits == {} and receipt.data.counts["late results overwritten"] == 1
        assert await rows_with_bakery(stage) == {}


async def test_a_models_answer_that_comes_after_the_erasure_is_not_kept_in_the_cache(
    play: Play, model: SlowServer
) -> None:
    async with play(extract=False) as stage:
        await stage.runtime.log.append_many([user_turn(f"{BAKERY} {n}", minutes=n) for n in range(12)])
        assert await asyncio.to_thread(model.asked_for.wait, 120.0)
        assert [task_of(body) for body in model.bodies("chat")] == ["topics"]
        assert (await erase(stage)).hits == {}
        model.go.set()
        await paid(stage, "topics")
        assert await rows_with_bakery(stage) == {}


async def test_an_answer_cached_during_the_erasure_is_cleared_too(room: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.runtime.log.append(user_turn(BAKERY))
    purge = erasing._purge_buckets

    async def cached_late(*args: Any) -> None:
        columns = "request_hash, response, tenant, user_id, thread_id"
        insert = f"INSERT INTO model_cache ({columns}) VALUES (%s, %s, %s, %s, %s) RETURNING 1"
        await room.rows(insert, b"1", json.dumps(BAKERY), "default", "ann", "t")
        await room.rows(insert, b"2", json.dumps("Hello."), "two", "ann", "t")
        await purge(*args)

    monkeypatch.setattr(erasing, "_purge_buckets", cached_late)
    receipt = await erase(room, strings=[BAKERY])
    assert receipt.hits == {} and receipt.data.counts["cached answers"] == 1
    assert await room.rows("SELECT tenant FROM model_cache") == [("two",)]


async def test_an_answer_recorded_after_its_thread_was_erased_is_removed_too(
    room: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = user_turn(BAKERY)
    request = event(AnswerRequested(turn_id=asked.id), user="ann")
    await room.runtime.log.append_many([asked, request])
    purge = erasing._purge_buckets

    async def answered_late(*args: Any) -> None:
        answer = turn(f"You said: {BAKERY}", "assistant", user="ann").model_copy(update={"causation": request.id})
        await room.runtime.log.append_many([answer, user_turn("I am back.")])
        await purge(*args)

    monkeypatch.setattr(erasing, "_purge_buckets", answered_late)
    receipt = await erase(room, strings=[BAKERY])
    assert receipt.hits == {} and receipt.data.counts["late results overwritten"] == 1
    assert await room.rows("SELECT content FROM messages") == [("I am back.",)]


async def test_a_late_summary_of_a_shared_thread_is_removed_too(room: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.runtime.log.append_many([turn("Hello from Bob.", user="bob"), user_turn(BAKERY)])
    late = SummaryWritten(summary=f"They said: {BAKERY}", message_count=2, covered_seq=2, derivation=DERIVED)
    purge = erasing._purge_buckets

    async def told_late(*args: Any) -> None:
        await room.runtime.log.append(event(late, user="bob"))
        await purge(*args)

    monkeypatch.setattr(erasing, "_purge_buckets", told_late)
    receipt = await erase(room, strings=[BAKERY])
    assert receipt.hits == {} and receipt.data.counts["late results overwritten"] == 1
    assert await rows_with_bakery(room) == {}
    assert await room.rows("SELECT content FROM messages WHERE user_id = 'bob'") == [("Hello from Bob.",)]


async def test_a_summary_under_way_when_one_of_several_speakers_is_erased_is_not_stored(
    play: Play, model: SlowServer
) -> None:
    async with play(extract=False) as stage:
        turns = [turn(f"Bob says {n}.", minutes=n, user="bob") for n in range(6)]
        await stage.runtime.log.append_many([*turns, *(user_turn(f"{BAKERY} {n}", minutes=9 + n) for n in range(6))])
        assert await asyncio.to_thread(model.asked_for.wait, 120.0)
        assert (await erase(stage)).hits == {}
        model.go.set()
        await paid(stage, "topics")
        assert await rows_with_bakery(stage) == {}


async def test_a_thread_that_began_after_the_plan_is_erased_too(room: Stage) -> None:
    await room.runtime.log.append_many(conversation("ann", 2))
    reach = erasure_reach(room.runtime.settings)
    plan = await plan_erasure(room.runtime, "default", "ann", reach)
    await room.runtime.log.append(turn(secret("ann", "said", 9), thread="new", user="ann"))
    await room.runtime.log.append(turn("Bob joins.", thread="talk-ann", user="bob"))
    await erase_person(room.runtime, plan, reach)
    await room.runtime.wait_until_projected()
    assert await room.rows("SELECT count(*) FROM messages WHERE thread_id = 'new'") == [(0,)]
    assert await room.rows("SELECT content FROM messages WHERE user_id = 'bob'") == [("Bob joins.",)]


async def test_two_erasures_of_one_person_at_once_both_end_well(room: Stage) -> None:
    """Each erasure may find that the other has already overwritten an event."""
    await room.runtime.log.append_many(conversation("ann", 2) + conversation("bob", 2))
    await room.runtime.wait_until_projected()
    reach = erasure_reach(room.runtime.settings)
    plans = [await plan_erasure(room.runtime, "default", "ann", reach) for _ in range(2)]
    receipts = await asyncio.gather(*(erase_person(room.runtime, plan, reach) for plan in plans))
    assert [receipt.hits for receipt in receipts] == [{}, {}]
    assert await room.rows("SELECT DISTINCT user_id FROM messages") == [("bob",)]
