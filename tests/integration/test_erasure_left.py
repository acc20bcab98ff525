"""Leftovers from before an erasure, and everything that a search for the person's words finds, are removed."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from helpers.erased_users import ANN_THREAD, BAKERY, cached_hashes, embed_all, erase, rows_with_bakery
from helpers.extraction import user_turn
from helpers.memory_events import recorded
from helpers.personal_events import conversation, secret
from helpers.sample_events import GPA, derivation, event, turn
from helpers.servers import eventually
from helpers.stage import Play, Stage, player
from nats.js.errors import NoKeysError
from pydantic import TypeAdapter

from turnlog.agent.answering.context import AnswerBasis, context_of
from turnlog.agent.answering.receipts import GivenReceipts
from turnlog.agent.conversations.sessions.sessions import Sessions
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.operations.jobs.archiving import archive_cold
from turnlog.agent.privacy.erasure import erase as erasing
from turnlog.agent.privacy.erasure.erasure_plan import StringsTooShort
from turnlog.agent.privacy.erasure.scanning import Scan, bucket_entries, scan_buckets
from turnlog.agent.privacy.erasure.string_search import SearchStrings, words_of
from turnlog.agent.privacy.personal_data import plan_erasure
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.contracts import (
    AnswerReceipt,
    EventData,
    MemoryForgotten,
    ReceiptTier,
    SummaryWritten,
    ThreadDeleted,
    ThreadOpened,
    ToolCall,
    TopicsTagged,
    TurnRecorded,
    UsageMetered,
)
from turnlog.events.progress import no_progress
from turnlog.events.subjects import RECEIPT_BUCKET, SESSION_BUCKET, receipt_key
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild.build import building
from turnlog.projectors.rebuild.shadow import create, schema_of

pytestmark = pytest.mark.slow

OF_BOB = """
SELECT sha256(convert_to(index_text, 'UTF8')) FROM memory_vectors WHERE user_id = 'bob'
UNION SELECT sha256(convert_to(content, 'UTF8')) FROM memories WHERE user_id = 'bob' ORDER BY 1"""


@pytest.fixture
def play(nats_url: str, database_url: str, tmp_path: Path) -> Play:
    return player(nats_url, database_url, ["projectors"], home=tmp_path, archive_threads_after_days=30)


@pytest.fixture
async def room(play: Play) -> AsyncIterator[Stage]:
    async with play("projectors") as opened:
        yield opened


async def test_vectors_of_texts_without_rows_are_removed_from_the_cache(room: Stage) -> None:
    """Tests an archived and a deleted conversation and a forgotten memory; other people's vectors stay."""
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
    await embed_all(room)
    await room.runtime.log.append_many(
        [event(ThreadDeleted(), "deleted"), event(MemoryForgotten(memory_id=GPA.id), ANN_THREAD, user="ann")]
    )
    assert (await archive_cold(room.runtime, datetime.now(UTC), lambda done, total: None)).counts["archived"] == 1
    await erase(room)
    assert await cached_hashes(room) == await room.rows(OF_BOB)


async def test_an_unencrypted_call_id_is_not_taken_for_words_of_the_person(room: Stage) -> None:
    call = ToolCall(id="532515270", name="recall_memory", arguments='{"query": "the bakery in Berlin"}')
    asked = TurnRecorded(role="assistant", tool_calls=(call,))
    answered = TurnRecorded(role="tool", content="I work at the bakery.", tool_call_id=call.id)
    await room.runtime.log.append_many([event(asked, user="ann"), event(answered, user="ann")])
    receipt = await erase(room)
    assert receipt.data.strings_searched >= 2 and receipt.hits == {}


async def test_leftovers_of_a_killed_rebuild_are_removed_and_used_tables_stay(room: Stage) -> None:
    await room.runtime.log.append_many(conversation("ann", 2))
    await room.runtime.wait_until_projected()
    async with (
        room.runtime.pool.connection() as conn,
        building(room.runtime.database_url, [BY_NAME["topics"]], "verify", no_progress) as build,
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
    await room.runtime.wait_until_projected()
    assert await room.rows("SELECT content FROM messages") == [("李雷住在这里很久了",)]
    assert (await erase(room, "李雷", ["李雷住在这里"])).hits == {}


async def test_a_session_deleted_during_the_search_does_not_hide_others(
    room: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.runtime.log.append_many(conversation("ann", 1) + conversation("bob", 1))
    await room.runtime.wait_until_projected()
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
            session_keys = await keys(self, *args)
            await self.purge(first)
            return session_keys

        monkeypatch.setattr(type(await bucket()), "keys", and_one_goes)
        scan = Scan()
        await scan_buckets(room.runtime.log, SearchStrings([secret(other, "snapshot")]), scan)
        assert scan.total > 0


async def test_data_derived_from_a_shared_thread_is_removed_and_receipts_without_it_stay(room: Stage) -> None:
    """The events are deleted although they name bob, the newest speaker, and ann is erased."""
    await room.runtime.log.append_many([turn("Hello from Bob.", user="bob"), user_turn(BAKERY)])
    derived: list[EventData] = [
        SummaryWritten(summary=f"They said: {BAKERY}", message_count=2, covered_seq=2, derivation=derivation(1, 2)),
        TopicsTagged(topics={"Lisbon bakery": 1}, derivation=derivation(1, 2)),
        receipt_of("Lisbon bakery"),
        receipt_of().model_copy(update={"notes": (BAKERY,)}),
        receipt_of(),
    ]
    await room.runtime.log.append_many([event(data, user="bob") for data in derived])
    await room.runtime.wait_until_projected()
    bucket_key = await give(room, "bob", (await context_of(room.runtime, "default", "t", user="bob")).receipt)
    assert (await erase(room, strings=["Lisbon bakery"])).hits == {}
    assert bucket_key not in [key async for key, _ in bucket_entries(room.runtime.log, RECEIPT_BUCKET)]
    kinds = [event.type for event in await room.events("t")]
    assert kinds == ["turn_recorded", "turn_recorded", "answer_receipt"]
    assert [receipt.tiers[0].topics for receipt in await room.all("answer_receipt")] == [()]
    assert await rows_with_bakery(room) == {}


def receipt_of(*topics: str) -> AnswerReceipt:
    ids = {"request_id": uuid4(), "turn_id": uuid4(), "answer_ids": (), "as_of_seq": 2}
    tier = ReceiptTier(tier="1", tokens=3, topics=topics)
    return AnswerReceipt(**ids, model="m", window=1, budget=1, tiers=(tier,), context_hash="00")


async def test_an_error_text_that_quotes_the_person_is_removed_and_others_stay(room: Stage) -> None:
    failed = UsageMetered(purpose="answer", provider="local", model="m", error=f"model-refused: no answer to {BAKERY}")
    plain = failed.model_copy(update={"error": "model-refused: no such model"})
    await room.runtime.log.append_many([user_turn(BAKERY), event(failed, user="ann"), event(plain, user="ann")])
    assert (await erase(room)).hits == {}
    assert [usage.error for usage in await room.all("usage_metered")] == [plain.error]


async def test_a_common_thread_name_is_not_personal(room: Stage) -> None:
    for user in ("ann", "bob"):
        opened = ThreadOpened(label="New conversation")
        await room.runtime.log.append_many(
            [event(opened, user, user=user), turn(f"It is {user}.", thread=user, user=user)]
        )
    assert (await erase(room)).hits == {}
    assert await room.rows("SELECT label FROM thread_activity") == [("New conversation",)]


async def test_postgres_statistics_keep_no_words_of_the_only_user(room: Stage) -> None:
    await room.runtime.log.append_many([user_turn(f"{BAKERY} {n}", minutes=n) for n in range(40)])
    await room.runtime.wait_until_projected()
    async with room.runtime.pool.connection() as conn:
        await conn.execute("ANALYZE messages")
    assert await room.rows("SELECT 1 FROM pg_stats WHERE histogram_bounds::text ~ 'bakery'")
    assert (await erase(room)).hits == {}
    assert await room.rows("SELECT 1 FROM pg_stats WHERE tablename = 'messages'") == []


async def test_receipts_that_others_got_with_contexts_are_not_taken_for_words_of_the_person(room: Stage) -> None:
    """Both ask the same. Both receipts contain turnlog's own text around memories, which is not personal."""
    runtime, question = room.runtime, "What is my dog called?"
    await runtime.log.append_many([recorded("I love hiking in the Alps", user=user) for user in ("ann", "bob")])
    for user in ("ann", "bob"):
        basis = (await context_of(runtime, "default", f"of-{user}", query=question, user=user)).receipt
        assert any("[LONG-TERM MEMORIES]" in note for note in basis.notes)
        await give(room, user, basis)
        if user == "ann":
            noted = receipt_of().model_copy(update={"notes": basis.notes, "known": basis.context.known})
            asked = turn(f"{question} It slept on my sofa.", thread="of-ann", user="ann")
            assert list(words_of(noted)) == []
            await runtime.log.append_many([asked, event(noted, "of-ann", user="ann")])
    plan = await plan_erasure(runtime, "default", "ann", erasure_reach(runtime.settings))
    assert "It slept on my sofa." in plan.search_strings.strings and question not in plan.search_strings.strings


async def give(stage: Stage, user: str, basis: AnswerBasis) -> str:
    """Stores the basis as a receipt that the user got with a context, and returns its key."""
    id_ = await GivenReceipts(stage.runtime).keep("default", user, TypeAdapter(AnswerBasis).dump_json(basis))
    assert id_ is not None
    return receipt_key("default", user, id_.hex)


async def test_a_row_that_no_projector_removed_is_a_hit(room: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.runtime.log.append(user_turn("Hi."))
    vacuum = erasing._vacuum

    async def back_again(*args: Any) -> None:
        columns = "tenant, thread_id, seq, event_id, role, content, time, origin"
        values = "'default', 't', 1, gen_random_uuid(), 'user', '\"Hi.\"', now(), 'person'"
        await room.rows(f"INSERT INTO messages ({columns}) VALUES ({values}) RETURNING 1")
        await vacuum(*args)

    monkeypatch.setattr(erasing, "_vacuum", back_again)
    assert (await erase(room)).hits == {"rows left in messages": 1}


async def test_an_error_of_an_event_that_was_dropped_keeps_no_words(room: Stage) -> None:
    await room.runtime.log.append_many([user_turn(BAKERY), turn("Bob.", thread="b", user="bob")])
    columns = "projection, build, seq, partition, tenant, thread_token, event_type, reason, error, status"
    for seq, thread in enumerate(("t", "b"), 1):
        values = f"'messages', 'live', {seq}, 0, 'default', '{thread}', 'x', 'poison', 'of {thread}', 'dropped'"
        await room.rows(f"INSERT INTO dead_letters ({columns}) VALUES ({values}) RETURNING 1")
    await erase(room)
    assert await room.rows("SELECT error FROM dead_letters ORDER BY seq") == [("erased",), ("of b",)]
