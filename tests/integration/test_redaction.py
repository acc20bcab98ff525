"""Words of a turn, or the entire turn, are redacted from the log, read models and caches; a rebuild gives equal
rows."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from helpers.erased_users import cached_hashes, embed_all
from helpers.redactions import replaced_in_log
from helpers.sample_events import DERIVED, GPA, MAY_8, event, turn
from helpers.servers import eventually, unlike_a_rebuild
from helpers.stage import Play, Stage, player
from nats.aio.client import Client

from turnlog.agent.operations.tailing import tail
from turnlog.agent.privacy.personal_data import erase_person, plan_erasure
from turnlog.agent.privacy.redaction import redact, replacing
from turnlog.agent.privacy.redaction.redact import RedactionReceipt, plan_redaction, redact_turn
from turnlog.agent.privacy.redaction.striking import InvalidWords
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.append import recently_stored
from turnlog.events.codec import encode
from turnlog.events.contracts import (
    AnswerReceipt,
    Blob,
    CheckpointSaved,
    EntitiesFound,
    Entity,
    EventData,
    EventRedacted,
    ForkedSummary,
    Memory,
    MemoryRecorded,
    MemorySource,
    ProfileWritten,
    RunToolAnswered,
    SessionCreated,
    SessionUpdated,
    SummaryWritten,
    ThreadForked,
    ThreadOpened,
    TopicsTagged,
    TurnRecorded,
    UsageMetered,
)
from turnlog.events.errors import NotFound
from turnlog.events.log import Log
from turnlog.events.publish import Key
from turnlog.events.read import read_to, replacements
from turnlog.events.redactions import Replacements
from turnlog.events.subjects import REDACTIONS, STORED_PREFIX, memory_thread
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.rebuild import rebuild_several

pytestmark = pytest.mark.slow

SECRET = "Zebrafish-77"
SAID = f"My locker opens with {SECRET}, and I like tea."
TABLES = sorted(
    {table.name for projection in PROJECTIONS for table in projection.tables} | {"embedding_cache", "dead_letters"}
)


@pytest.fixture
def play(nats_url: str, database_url: str, tmp_path: Path) -> Play:
    return player(nats_url, database_url, ["projectors"], home=tmp_path)


@pytest.fixture
async def room(play: Play) -> AsyncIterator[Stage]:
    """Yields a stage without keys, so that a search of the log's bytes finds unencrypted words."""
    async with play("projectors", kek=None) as opened:
        yield opened


@pytest.fixture
async def sealed_room(play: Play) -> AsyncIterator[Stage]:
    async with play("projectors") as opened:
        yield opened


async def told(stage: Stage) -> tuple[int, dict[str, Any]]:
    """Appends a conversation about the secret and everything that was derived from it; returns the sequence of its
    turn."""
    asked = turn(SAID, user="ann")
    seq = (await stage.runtime.log.append(asked)).seq
    source = MemorySource(thread="t", seq=seq, event_id=asked.id, quote=f"opens with {SECRET}", said_at=MAY_8)
    about = GPA.model_copy(update={"content": f"Locker: {SECRET}", "value": SECRET, "sources": (source,)})
    tea = Memory.model_validate({**GPA.model_dump(), "id": UUID(int=101), "content": "Likes tea", "dedupe_key": None})
    blob = b64encode(b"\xa0" + SECRET.encode()).decode()
    derived: list[EventData] = [
        ThreadOpened(label=f"Locker {SECRET}"),
        SessionCreated(user_snapshot={"locker": SECRET}),
        SessionUpdated(global_state={"slots": {SECRET: [SECRET.upper()]}}),
        SummaryWritten(summary=f"Ann uses {SECRET}.", message_count=1, covered_seq=seq, derivation=DERIVED),
        TopicsTagged(topics={SECRET: 1, "locker": 2}, derivation=DERIVED),
        CheckpointSaved(
            checkpoint_id="1ef",
            checkpoint={"v": 4, "channel_values": {"note": SECRET}, "channel_versions": {"x": "1.0"}},
            metadata={"step": 1},
            blobs=(Blob(channel="x", version="1.0", encoding="msgpack", data=blob),),
        ),
        RunToolAnswered(
            run_id=UUID(int=5), agent="a", depth=0, call_id="c", tool="look", result=json.dumps({"x": SECRET})
        ),
        AnswerReceipt(
            request_id=UUID(int=8),
            turn_id=asked.id,
            answer_ids=(),
            as_of_seq=seq,
            model="m",
            window=1,
            budget=1,
            tiers=(),
            context_hash="00",
            notes=(f"They said {SECRET}",),
        ),
        UsageMetered(purpose="answer", provider="local", model="m", error=f"no answer to {SECRET}"),
    ]
    memories = memory_thread("ann")
    await stage.runtime.log.append_many(
        [
            *(event(data, user="ann") for data in derived),
            turn(f"Noted: {SECRET}.", "assistant", user="ann"),
            turn("And what about Monday?", user="ann", minutes=3),
            event(
                ThreadForked(
                    parent="t",
                    at_seq=seq,
                    summary=ForkedSummary(summary=f"Of {SECRET}", message_count=1, covered_seq=seq, model="m"),
                    topics={SECRET: 1},
                ),
                "fork",
                user="ann",
            ),
            event(MemoryRecorded(memory=about), memories, user="ann"),
            event(MemoryRecorded(memory=tea), memories, user="ann"),
            event(
                ProfileWritten(
                    sentences=(f"They use {SECRET}.",),
                    memories=((tea.id,),),
                    lines=(tea.id,),
                    source_ids=(asked.id,),
                    derivation=DERIVED,
                ),
                memories,
                user="ann",
            ),
            event(
                EntitiesFound(entities=(Entity(type="CODE", name=SECRET), Entity(type="DRINK", name="tea"))), memories
            ),
            turn(f"bob says {SECRET}", thread="of-bob", user="bob"),
        ]
    )
    await stage.runtime.wait_until_projected()
    return seq, {"asked": asked}


async def rows_with(stage: Stage, words: str, but: str = "of-bob") -> dict[str, list[Any]]:
    """Returns the rows with the words by table, without those of another person's thread."""
    query = "SELECT t::text FROM {} t WHERE t::text ILIKE %s AND t::text NOT LIKE %s"
    rows = {name: await stage.rows(query.format(name), f"%{words}%", f"%{but}%") for name in TABLES}
    return {name: lines for name, lines in rows.items() if lines}


async def stored_bodies(log: Log) -> list[bytes]:
    """Returns the bytes of every stored message except that of another person."""
    every = [stored async for stored in read_to(log.nc, [f"{STORED_PREFIX}.>"], 1, as_stored=True)]
    return [stored.body for stored in every if b"of-bob" not in stored.body]


async def struck(stage: Stage, seq: int, words: str | None = SECRET, **more: Any) -> RedactionReceipt:
    reach = erasure_reach(stage.runtime.settings)
    return await redact_turn(stage.runtime, "default", "t", seq, reach, words, **more)


async def test_a_word_is_redacted_in_log_and_read_models_alike(room: Stage) -> None:
    runtime = room.runtime
    seq, _ = await told(room)
    await embed_all(room)
    assert (await rows_with(room, SECRET)).keys() >= {"messages", "memories", "conversation_summaries", "sessions"}
    assert any(SECRET.encode() in body for body in await stored_bodies(runtime.log))
    vectors = len(await cached_hashes(room))
    receipt = await struck(room, seq, by="ann", reason="a secret")
    assert await rows_with(room, SECRET) == {}
    assert not any(SECRET.lower() in body.decode().lower() for body in await stored_bodies(runtime.log))
    assert not any(b64encode(SECRET.encode())[:12] in body for body in await stored_bodies(runtime.log))
    assert await unlike_a_rebuild(runtime.log, runtime.database_url) == {}
    turns = await room.rows("SELECT seq, content #>> '{}' FROM messages WHERE thread_id = 't' ORDER BY seq")
    assert turns[0] == (seq, "My locker opens with [redacted], and I like tea.")
    assert [text for _, text in turns[1:]] == ["Noted: [redacted].", "And what about Monday?"]
    memories = await room.rows("SELECT id, status, content FROM memories ORDER BY id")
    assert memories == [(UUID(int=100), "forgotten", ""), (UUID(int=101), "valid", "Likes tea")]
    assert await room.rows("SELECT name FROM entities") == [("tea",)]
    assert await room.rows("SELECT sentences FROM profile_texts") == [(["They use [redacted]."],)]
    assert len(await cached_hashes(room)) < vectors
    assert receipt.data.events and receipt.data.memories == 1 and receipt.data.by == "ann"
    # Another person said the same independently; those words stay, and the receipt names their location.
    assert "table turnlog.messages" in receipt.hits and receipt.data.hits
    assert "rows of the threads in messages" not in receipt.hits and "events of the threads" not in receipt.hits


async def test_a_rebuild_after_a_redaction_of_sealed_words_gives_the_same_rows(sealed_room: Stage) -> None:
    runtime = sealed_room.runtime
    seq, _ = await told(sealed_room)
    await struck(sealed_room, seq)
    assert await rows_with(sealed_room, SECRET) == {}
    await runtime.log.append(turn("Later.", user="ann"))
    await runtime.wait_until_projected()
    query = "SELECT t::text FROM {} t ORDER BY 1"
    before = {name: await sealed_room.rows(query.format(name)) for name in TABLES}
    await rebuild_several(runtime.log, runtime.database_url, PROJECTIONS)
    assert {name: await sealed_room.rows(query.format(name)) for name in TABLES} == before
    said = [event.data.content for event in await sealed_room.events("t") if isinstance(event.data, TurnRecorded)]
    assert said[0] == "My locker opens with [redacted], and I like tea."


@pytest.mark.nightly
async def test_a_whole_turn_is_redacted_with_its_derived_data(room: Stage) -> None:
    runtime = room.runtime
    seq, _ = await told(room)
    receipt = await struck(room, seq, None)
    assert receipt.data.whole and receipt.data.removed == 3
    assert await room.rows("SELECT content #>> '{}' FROM messages WHERE seq = %s", seq) == [("[redacted]",)]
    assert await room.rows("SELECT summary FROM conversation_summaries") == []
    assert await room.rows("SELECT status FROM memories WHERE id = %s", UUID(int=100)) == [("forgotten",)]
    assert await unlike_a_rebuild(runtime.log, runtime.database_url) == {}
    assert receipt.data.found_in is None or "rows of the threads in messages" not in receipt.data.found_in


@pytest.mark.nightly
async def test_a_second_redaction_of_a_turn_leaves_nothing_of_the_first(room: Stage) -> None:
    runtime = room.runtime
    seq, _ = await told(room)
    await struck(room, seq)
    await struck(room, seq, "locker opens")
    again = await struck(room, seq, "locker opens")
    assert again.data.events == 0 and "events of the threads" not in again.hits
    assert await room.rows("SELECT content #>> '{}' FROM messages WHERE seq = %s", seq) == [
        ("My [redacted] with [redacted], and I like tea.",)
    ]
    assert not any(b"locker opens" in body for body in await stored_bodies(runtime.log))
    assert await unlike_a_rebuild(runtime.log, runtime.database_url) == {}


async def test_a_redaction_that_was_killed_is_finished_by_the_same_call(
    room: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = room.runtime
    seq, _ = await told(room)
    left = 3

    async def killed(log: Log, at: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise asyncio.CancelledError
        return await overwrite(log, at)

    overwrite = Log.overwrite
    with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
        patch.setattr(Log, "overwrite", killed)
        await struck(room, seq)
    assert await rows_with(room, SECRET) != {}
    await struck(room, seq)
    assert await rows_with(room, SECRET) == {}
    assert not any(SECRET.encode() in body for body in await stored_bodies(runtime.log))
    assert await unlike_a_rebuild(runtime.log, runtime.database_url) == {}


async def test_a_plan_changes_nothing_and_refuses_words_that_the_turn_does_not_contain(room: Stage) -> None:
    runtime = room.runtime
    seq, _ = await told(room)
    head = await runtime.log.head()
    plan = await plan_redaction(runtime, "default", "t", seq, SECRET)
    assert plan.preview.events["turn_recorded"] == 2 and plan.threads[:2] == ("t", "fork")
    with pytest.raises(NotFound, match="does not say"):
        await plan_redaction(runtime, "default", "t", seq, "Zebrafish-78")
    with pytest.raises(NotFound, match="no turn"):
        await plan_redaction(runtime, "default", "of-bob", seq, SECRET)
    with pytest.raises(InvalidWords):
        await plan_redaction(runtime, "default", "t", seq, "redacted")
    assert await runtime.log.head() == head


async def test_a_replacement_counts_only_if_its_event_is_gone(room: Stage) -> None:
    """So nobody can change an event by publishing a replacement."""
    runtime = room.runtime
    seq, about = await told(room)
    forged = about["asked"].model_copy(update={"data": turn("I owe Bob money.").data})
    recorded = await anext(recorded async for recorded in runtime.log.read_thread("default", "t"))
    begun = redact.TurnRedacted(redaction=UUID(int=1), conversation="t", turn_id=forged.id, seq=seq, whole=False)
    await runtime.log.append(replacing.carrier(runtime, recorded, forged, begun))
    await runtime.log.append(event(begun, REDACTIONS))
    assert next(event.data for event in await room.events("t")) == about["asked"].data


async def test_forged_replacements_change_no_event_and_stop_no_reader(room: Stage) -> None:
    runtime = room.runtime
    seq, about = await told(room)
    await struck(room, seq)
    js, tenant = runtime.log.nc.jetstream(), {"tenant": "other"}
    forged = encode(about["asked"].model_copy(update=tenant)).decode()
    replacing = EventRedacted(seq=seq, stored_at=MAY_8, event_type="turn_recorded", envelope=forged)
    await js.publish("turnlog.other.t.event_redacted", encode(event(replacing, "t").model_copy(update=tenant)))
    await js.publish(
        "turnlog.default.t.event_redacted",
        encode(event(replacing.model_copy(update={"envelope": encode(about["asked"]).decode()}), "t")),
    )
    await js.publish("turnlog.default.x.event_redacted", encode(turn("Not what its subject says.", thread="x")))
    begun = redact.TurnRedacted(redaction=UUID(int=1), conversation="t", turn_id=UUID(int=2), seq=seq, whole=False)
    await runtime.log.append(event(begun, REDACTIONS))
    said = next(event.data for event in await room.events("t") if isinstance(event.data, TurnRecorded))
    assert said.content == "My locker opens with [redacted], and I like tea."


async def test_a_running_read_sees_a_redaction_made_meanwhile(
    room: Stage, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = room.runtime.log
    await own.append_many([turn("Hello."), turn("Good morning.", "assistant"), turn("How are you?")])
    seq, _ = await told(room)
    last = (await own.append(turn(f"Is it {SECRET}?"))).seq
    said = [recorded.seq async for recorded in own.read_thread("default", "t", types=("turn_recorded",))]
    other = await Log.connect(nats_url, room.runtime.settings.stream, signer=own.signer)
    try:
        reading = other.read_thread("default", "t", types=("turn_recorded",))
        with monkeypatch.context() as patch:
            patch.setattr("turnlog.events.read.PULL", 1)  # so that most messages are not sent before the redaction
            read = [await anext(reading)]
        await replaced_in_log(room, seq, SECRET)
        read += [recorded async for recorded in reading]
        assert [recorded.seq for recorded in read] == said and said[-1] == last
        assert SECRET not in repr(read) and repr(read).count("[redacted]") == 3
        lines = [line async for line in tail(room.runtime, 1, follow=False, thread="t", types=("turn_recorded",))]
        assert [line.stored.seq for line in lines] == said
    finally:
        await other.close()


async def test_a_reader_opened_during_a_redaction_sees_the_replacements(
    room: Stage, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seq, _ = await told(room)
    other = await Log.connect(nats_url, room.runtime.settings.stream, signer=room.runtime.log.signer)

    async def known_before(nc: Client) -> Replacements:
        before = await replacements(nc)
        monkeypatch.undo()
        await replaced_in_log(room, seq, SECRET)
        return before

    try:
        monkeypatch.setattr("turnlog.events.read.replacements", known_before)
        said = [recorded.event.data async for recorded in other.read_thread("default", "t", types=("turn_recorded",))]
        assert (
            isinstance(said[0], TurnRecorded) and said[0].content == "My locker opens with [redacted], and I like tea."
        )
    finally:
        await other.close()


async def test_a_redacted_turn_that_is_appended_again_is_recognised_by_its_id(room: Stage) -> None:
    """A client's retry therefore does not store the words again."""
    seq, about = await told(room)
    await struck(room, seq)
    assert Key("default", "t", about["asked"].id) in await recently_stored(room.runtime.log.nc, [("default", "t")])


async def test_an_erasure_waits_for_a_redaction(sealed_room: Stage) -> None:
    runtime = sealed_room.runtime
    await told(sealed_room)
    reach = erasure_reach(runtime.settings)
    plan = await plan_erasure(runtime, "default", "ann", reach)
    async with replacing.alone(runtime):
        erasing = asyncio.create_task(erase_person(runtime, plan, reach))

        async def waits() -> bool:
            of = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND mode = 'ShareLock'"
            return await sealed_room.rows(of) == [(1,)]

        await eventually(waits)
        assert await runtime.log.thread_head("default", "t", "erased") == 0
    assert (await erasing).data.hits == 0
