"""What is under way when somebody is erased, and what was left behind before: none of it keeps their words (M9)."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from extraction import ExtractingServer, memory, user_turn
from nats.js.errors import NoKeysError
from openai_server import Kind
from openai_wire import Step
from people import conversation, secret
from places import eventually
from pydantic import SecretStr
from samples import DERIVED, GPA, derivation, event, turn
from stage import Play, Stage, player, task_of

from turnlog.agent.memories.service import Memories
from turnlog.agent.models.factory import make_models
from turnlog.agent.privacy import erase as erasing
from turnlog.agent.privacy.erase import StringsTooShort, planned
from turnlog.agent.privacy.needles import Needles
from turnlog.agent.privacy.receipt import Receipt
from turnlog.agent.privacy.scanning import Scan, scan_bucket
from turnlog.agent.privacy.traces import OnProgress
from turnlog.agent.sessions.sessions import Sessions
from turnlog.consumers.embedding import embed_pending
from turnlog.consumers.erasing import person_of, surroundings
from turnlog.consumers.jobs.archiving import archive_cold
from turnlog.events.contracts import (
    AnswerReceipt,
    AnswerRequested,
    EventData,
    ReceiptTier,
    SummaryWritten,
    ThreadDeleted,
    ThreadOpened,
    TopicsTagged,
    UsageMetered,
)
from turnlog.events.memory_contracts import Memory, MemoryForgotten, MemoryRecorded, MemorySource
from turnlog.events.subjects import SESSION_BUCKET, memory_thread
from turnlog.projectors.build import building, ignore
from turnlog.projectors.registry import BY_NAME
from turnlog.projectors.shadow import create, schema_of

TOLD = "Last spring I took a position at the bakery. My sister Mia found it for me."
FOUND = {"memories": [memory("Moved for a new position at a bakery", "took a position at the bakery")], "entities": []}
ANNS = memory_thread("ann")
OF_BOB = """
SELECT sha256(convert_to(index_text, 'UTF8')) FROM memory_vectors WHERE user_id = 'bob'
UNION SELECT sha256(convert_to(content, 'UTF8')) FROM memories WHERE user_id = 'bob' ORDER BY 1"""
WORDS = ("memories", "entities", "model_cache", "messages", "memory_vectors", "conversation_summaries", "memory_topics")


class SlowServer(ExtractingServer):
    """Keeps every question about the bakery until `go` is set, and speaks of it to nobody else. asked_for: there was
    one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.go, self.asked_for = threading.Event(), threading.Event()

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        step = super().next_step(kind, body)
        if kind == "chat" and "bakery" not in json.dumps(body):
            return Step(text=step.text.replace("bakery", "weather"))
        if kind == "chat":
            self.asked_for.set()
            self.go.wait(30.0)
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
    given = {"api_base_url": model.url, "api_key": SecretStr(model.key), "extract_max_age_s": 0.0, "home": tmp_path}
    return player(nats_url, database_url, ["projectors", "reactors"], **given, archive_threads_after_days=30)


@pytest.fixture
async def room(play: Play) -> AsyncIterator[Stage]:
    async with play("projectors") as found:
        yield found


@contextlib.contextmanager
def quiet(label: str) -> Iterator[OnProgress]:
    yield lambda done, total: None


async def erase(stage: Stage, user: str = "ann", strings: Sequence[str] = ()) -> Receipt:
    at = surroundings(stage.runtime, quiet)
    return await erasing.erase(at, await planned(at, person_of("default", user), strings))


async def paid(stage: Stage, purpose: str, thread: str = "t") -> None:
    """Until the work of a model is over: what it cost is the last thing that a reactor tells."""

    async def is_metered() -> bool:
        return any(one.purpose == purpose for one in await stage.all("usage_metered", thread))

    await eventually(is_metered)
    await stage.runtime.settle()


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


async def test_what_an_extraction_under_way_finds_after_the_erasure_is_not_stored(
    play: Play, model: SlowServer
) -> None:
    async with play() as stage:
        await stage.runtime.log.append(user_turn(TOLD))
        await asyncio.to_thread(model.asked_for.wait, 30.0)
        assert (await erase(stage)).hits == {}
        model.go.set()
        await paid(stage, "extraction", ANNS)
        assert await bakeries(stage) == {}
        assert await stage.all("memory_recorded", ANNS) == []


async def test_what_an_extraction_under_way_finds_during_the_erasure_goes_too(
    play: Play, model: SlowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as the first memory of theirs that there ever was."""
    purge = erasing._purge_sessions

    async def is_told(stage: Stage) -> None:
        source = (await stage.events("t"))[0]
        made = {"id": source.id, "kind": "FACT", "content": TOLD, "importance": 0.5, "confidence": 0.5, "origin": "llm"}
        said = {"thread": "t", "seq": 1, "event_id": source.id, "quote": TOLD, "said_at": source.time}
        told = Memory(**made, valid_from=source.time, sources=(MemorySource(**said),))
        await stage.runtime.log.append(event(MemoryRecorded(memory=told), ANNS, user="ann"))

    async with play("projectors") as stage:

        async def late(*args: Any) -> None:
            await is_told(stage)
            await purge(*args)

        monkeypatch.setattr(erasing, "_purge_sessions", late)
        await stage.runtime.log.append(user_turn(TOLD))
        receipt = await erase(stage, strings=[TOLD])
        assert receipt.hits == {} and receipt.data.counts["late results overwritten"] == 1
        assert await bakeries(stage) == {}


async def test_a_models_answer_that_comes_after_the_erasure_is_not_kept_in_the_cache(
    play: Play, model: SlowServer
) -> None:
    async with play(extract=False) as stage:
        await stage.runtime.log.append_many([user_turn(f"{TOLD} {n}", minutes=n) for n in range(12)])
        await asyncio.to_thread(model.asked_for.wait, 30.0)
        assert [task_of(body) for body in model.bodies("chat")] == ["topics"]
        assert (await erase(stage)).hits == {}
        model.go.set()
        await paid(stage, "topics")
        assert await bakeries(stage) == {}


async def test_an_answer_that_is_cached_while_the_rows_go_is_cleared_as_well(
    room: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.runtime.log.append(user_turn(TOLD))
    purge = erasing._purge_sessions

    async def cached_late(*args: Any) -> None:
        columns = "request_hash, response, tenant, user_id, thread_id"
        insert = f"INSERT INTO model_cache ({columns}) VALUES (%s, %s, %s, %s, %s) RETURNING 1"
        await room.rows(insert, b"1", json.dumps(TOLD), "default", "ann", "t")
        await room.rows(insert, b"2", json.dumps("Hello."), "two", "ann", "t")
        await purge(*args)

    monkeypatch.setattr(erasing, "_purge_sessions", cached_late)
    receipt = await erase(room, strings=[TOLD])
    assert receipt.hits == {} and receipt.data.counts["cached answers"] == 1
    assert await room.rows("SELECT tenant FROM model_cache") == [("two",)]


async def test_an_answer_that_is_told_after_its_thread_was_erased_goes_too(
    room: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = user_turn(TOLD)
    request = event(AnswerRequested(turn_id=asked.id), user="ann")
    await room.runtime.log.append_many([asked, request])
    purge = erasing._purge_sessions

    async def answered_late(*args: Any) -> None:
        answer = turn(f"You said: {TOLD}", "assistant", user="ann").model_copy(update={"causation": request.id})
        await room.runtime.log.append_many([answer, user_turn("I am back.")])
        await purge(*args)

    monkeypatch.setattr(erasing, "_purge_sessions", answered_late)
    receipt = await erase(room, strings=[TOLD])
    assert receipt.hits == {} and receipt.data.counts["late results overwritten"] == 1
    assert await room.rows("SELECT content FROM messages") == [("I am back.",)]


async def test_a_summary_of_a_shared_thread_that_comes_late_goes_too(
    room: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.runtime.log.append_many([turn("Hello from Bob.", user="bob"), user_turn(TOLD)])
    late = SummaryWritten(summary=f"They said: {TOLD}", message_count=2, covered_seq=2, derivation=DERIVED)
    purge = erasing._purge_sessions

    async def told_late(*args: Any) -> None:
        await room.runtime.log.append(event(late, user="bob"))
        await purge(*args)

    monkeypatch.setattr(erasing, "_purge_sessions", told_late)
    receipt = await erase(room, strings=[TOLD])
    assert receipt.hits == {} and receipt.data.counts["late results overwritten"] == 1
    assert await bakeries(room) == {}
    assert await room.rows("SELECT content FROM messages WHERE user_id = 'bob'") == [("Hello from Bob.",)]


async def test_a_summary_under_way_when_one_of_several_speakers_is_erased_is_not_stored(
    play: Play, model: SlowServer
) -> None:
    async with play(extract=False) as stage:
        turns = [turn(f"Bob says {n}.", minutes=n, user="bob") for n in range(6)]
        await stage.runtime.log.append_many([*turns, *(user_turn(f"{TOLD} {n}", minutes=9 + n) for n in range(6))])
        await asyncio.to_thread(model.asked_for.wait, 30.0)
        assert (await erase(stage)).hits == {}
        model.go.set()
        await paid(stage, "topics")
        assert await bakeries(stage) == {}


async def test_a_thread_that_began_while_somebody_thought_about_the_plan_is_erased(room: Stage) -> None:
    await room.runtime.log.append_many(conversation("ann", 2))
    at = surroundings(room.runtime, quiet)
    plan = await planned(at, person_of("default", "ann"))
    await room.runtime.log.append(turn(secret("ann", "said", 9), thread="new", user="ann"))
    await room.runtime.log.append(turn("Bob joins.", thread="talk-ann", user="bob"))
    await erasing.erase(at, plan)
    await room.runtime.settle()
    assert await room.rows("SELECT count(*) FROM messages WHERE thread_id = 'new'") == [(0,)]
    assert await room.rows("SELECT content FROM messages WHERE user_id = 'bob'") == [("Bob joins.",)]


async def test_vectors_of_texts_whose_rows_went_before_leave_the_cache(room: Stage) -> None:
    """Of an archived conversation, a deleted one, and a forgotten memory; those of others stay."""
    await room.runtime.log.append_many(conversation("bob", 3))
    await room.runtime.log.append_many(
        [
            turn("Both said it.", thread="talk-bob", user="bob"),
            turn("Both said it.", thread="cold", user="ann"),
            turn("It is in the archive.", thread="cold", user="ann"),
            turn("It was deleted.", thread="deleted", user="ann"),
        ]
    )
    await Memories(room.runtime.log, room.runtime.pool).remember("default", "ann", "Ann forgot it", id_=GPA.id)
    await embedded(room)
    await room.runtime.log.append_many(
        [event(ThreadDeleted(), "deleted"), event(MemoryForgotten(memory_id=GPA.id), ANNS, user="ann")]
    )
    assert (await archive_cold(room.runtime, datetime.now(UTC), lambda done, total: None)).counts["archived"] == 1
    await erase(room)
    assert await cached(room) == await room.rows(OF_BOB)


async def test_what_a_killed_rebuild_left_behind_goes_and_what_is_in_use_stays(room: Stage) -> None:
    await room.runtime.log.append_many(conversation("ann", 2))
    await room.runtime.settle()
    async with (
        room.runtime.pool.connection() as conn,
        building(room.runtime.log, room.runtime.database_url, [BY_NAME["topics"]], "verify", ignore) as build,
    ):
        await create(conn, [BY_NAME["messages"]], "rebuild_messages")
        await conn.execute(f"INSERT INTO {schema_of('rebuild_messages')}.messages SELECT * FROM messages".encode())
        await conn.execute("CREATE SCHEMA turnlog_analytics")
        receipt = await erase(room)
        assert receipt.hits == {} and receipt.data.counts["abandoned rebuilds"] == 1
        left = await room.rows("SELECT nspname FROM pg_namespace WHERE nspname ~ '^turnlog_' ORDER BY 1")
        assert left == [("turnlog_analytics",), (schema_of(build.name),)]


async def test_strings_that_occur_by_chance_are_refused_before_anything_is_erased(room: Stage) -> None:
    await room.runtime.log.append(turn("李雷住在这里很久了", user="李雷"))
    with pytest.raises(StringsTooShort, match="1 of the strings"):
        await erase(room, "李雷", ["李雷", "李雷住在这里"])
    await room.runtime.settle()
    assert await room.rows("SELECT content FROM messages") == [("李雷住在这里很久了",)]
    assert (await erase(room, "李雷", ["李雷住在这里"])).hits == {}


async def test_a_session_that_goes_while_the_bucket_is_searched_hides_no_other(
    room: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.runtime.log.append_many(conversation("ann", 1) + conversation("bob", 1))
    await room.runtime.settle()
    async with Sessions(room.runtime.log, room.runtime.pool, "default") as sessions:
        await sessions.get("talk-ann")
        await sessions.get("talk-bob")

        async def both() -> bool:
            try:
                return len(await (await bucket()).keys()) == 2
            except NoKeysError:
                return False

        async def bucket() -> Any:
            return await room.runtime.log.nc.jetstream().key_value(SESSION_BUCKET)

        await eventually(both)
        first = (await (await bucket()).keys())[0]
        other = "bob" if first.endswith("ann") else "ann"
        keys = type(await bucket()).keys

        async def and_one_goes(self: Any, *args: Any) -> Any:
            found = await keys(self, *args)
            await self.purge(first)
            return found

        monkeypatch.setattr(type(await bucket()), "keys", and_one_goes)
        scan = Scan()
        await scan_bucket(room.runtime.log, Needles([secret(other, "snapshot")]), scan)
        assert scan.total > 0


async def test_what_models_derived_of_a_shared_thread_goes_and_receipts_without_it_stay(room: Stage) -> None:
    """Whoever is named in the event: the newest speaker is."""
    await room.runtime.log.append_many([turn("Hello from Bob.", user="bob"), user_turn(TOLD)])
    derived: list[EventData] = [
        SummaryWritten(summary=f"They said: {TOLD}", message_count=2, covered_seq=2, derivation=derivation(1, 2)),
        TopicsTagged(topics={"Lisbon bakery": 1}, derivation=derivation(1, 2)),
        receipt_of("Lisbon bakery"),
        receipt_of(),
    ]
    await room.runtime.log.append_many([event(data, user="bob") for data in derived])
    assert (await erase(room, strings=["Lisbon bakery"])).hits == {}
    kinds = [one.type for one in await room.events("t")]
    assert kinds == ["turn_recorded", "turn_recorded", "answer_receipt"]
    assert [one.tiers[0].topics for one in await room.all("answer_receipt")] == [()]
    assert await bakeries(room) == {}


def receipt_of(*topics: str) -> AnswerReceipt:
    ids = {"request_id": uuid4(), "turn_id": uuid4(), "answer_ids": (), "as_of_seq": 2}
    tier = ReceiptTier(tier="1", tokens=3, topics=topics)
    return AnswerReceipt(**ids, model="m", window=1, budget=1, tiers=(tier,), context_hash="00")


async def test_an_error_text_that_quotes_them_leaves_the_log_and_others_stay(room: Stage) -> None:
    failed = UsageMetered(purpose="answer", provider="local", model="m", error=f"model-refused: no answer to {TOLD}")
    plain = failed.model_copy(update={"error": "model-refused: no such model"})
    await room.runtime.log.append_many([user_turn(TOLD), event(failed, user="ann"), event(plain, user="ann")])
    assert (await erase(room)).hits == {}
    assert [one.error for one in await room.all("usage_metered")] == [plain.error]


async def test_what_everybodys_threads_are_called_is_nobodys_own(room: Stage) -> None:
    for user in ("ann", "bob"):
        opened = ThreadOpened(label="New conversation")
        await room.runtime.log.append_many(
            [event(opened, user, user=user), turn(f"It is {user}.", thread=user, user=user)]
        )
    assert (await erase(room)).hits == {}
    assert await room.rows("SELECT label FROM thread_activity") == [("New conversation",)]


async def test_of_the_only_one_there_was_the_planner_keeps_no_words(room: Stage) -> None:
    await room.runtime.log.append_many([user_turn(f"{TOLD} {n}", minutes=n) for n in range(40)])
    await room.runtime.settle()
    async with room.runtime.pool.connection() as conn:
        await conn.execute("ANALYZE messages")
    assert await room.rows("SELECT 1 FROM pg_stats WHERE histogram_bounds::text ~ 'bakery'")
    assert (await erase(room)).hits == {}
    assert await room.rows("SELECT 1 FROM pg_stats WHERE tablename = 'messages'") == []


async def test_a_row_that_no_projector_took_away_is_a_hit(room: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.runtime.log.append(user_turn("Hi."))
    vacuum = erasing._vacuum

    async def back_again(*args: Any) -> None:
        columns = "tenant, thread_id, seq, event_id, role, content, time"
        values = "'default', 't', 1, gen_random_uuid(), 'user', '\"Hi.\"', now()"
        await room.rows(f"INSERT INTO messages ({columns}) VALUES ({values}) RETURNING 1")
        await vacuum(*args)

    monkeypatch.setattr(erasing, "_vacuum", back_again)
    assert (await erase(room)).hits == {"rows left in messages": 1}


async def test_an_error_of_an_event_that_was_dropped_keeps_no_words(room: Stage) -> None:
    await room.runtime.log.append_many([user_turn(TOLD), turn("Bob.", thread="b", user="bob")])
    columns = "projection, build, seq, partition, tenant, thread_token, event_type, reason, error, status"
    for seq, thread in enumerate(("t", "b"), 1):
        values = f"'messages', 'live', {seq}, 0, 'default', '{thread}', 'x', 'poison', 'of {thread}', 'dropped'"
        await room.rows(f"INSERT INTO dead_letters ({columns}) VALUES ({values}) RETURNING 1")
    await erase(room)
    assert await room.rows("SELECT error FROM dead_letters ORDER BY seq") == [("erased",), ("of b",)]


async def test_two_erasures_of_one_person_at_once_both_end_well(room: Stage) -> None:
    """One finds gone what the other overwrote."""
    await room.runtime.log.append_many(conversation("ann", 2) + conversation("bob", 2))
    await room.runtime.settle()
    at = surroundings(room.runtime, quiet)
    plans = [await planned(at, person_of("default", "ann")) for _ in range(2)]
    receipts = await asyncio.gather(*(erasing.erase(at, plan) for plan in plans))
    assert [one.hits for one in receipts] == [{}, {}]
    assert await room.rows("SELECT DISTINCT user_id FROM messages") == [("bob",)]
