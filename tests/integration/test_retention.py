"""Turns that exceed their person's retention period are deleted from the log and from everything derived from them."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from helpers.erased_users import embed_all
from helpers.sample_events import DERIVED, GPA, turn
from helpers.servers import unlike_a_rebuild
from helpers.stage import Play, Stage, player

from turnlog.agent.conversations.archive.files import files_of
from turnlog.agent.memory.preferences import InvalidPreference, set_preferences, show_preferences
from turnlog.agent.operations.jobs.archiving import archive_older
from turnlog.agent.operations.jobs.job_states import run_job
from turnlog.agent.privacy.redaction import retention
from turnlog.agent.privacy.redaction.redact import redact_turn
from turnlog.agent.privacy.redaction.retention import find_old, let_old_turns_go
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.contracts import (
    AnswerReceipt,
    Blob,
    CheckpointSaved,
    EntitiesFound,
    Entity,
    Event,
    EventData,
    MemoryConfirmed,
    MemoryRecorded,
    MemorySource,
    ProfileWritten,
    SessionCreated,
    SummaryWritten,
    ThreadForked,
    ThreadOpened,
    ThreadRenamed,
    TopicsTagged,
    TurnsExpired,
)
from turnlog.events.log import Log
from turnlog.events.progress import no_progress
from turnlog.events.read import read_to
from turnlog.events.subjects import REDACTIONS, STORED_PREFIX, memory_thread
from turnlog.projectors.models.registry import PROJECTIONS

pytestmark = pytest.mark.slow

SAID = "The green heron nests at Marlow lock."
NOW = datetime.now(UTC)
OLD, YOUNG = NOW - timedelta(days=40), NOW - timedelta(days=2)
TABLES = sorted({table.name for projection in PROJECTIONS for table in projection.tables} | {"embedding_cache"})


@pytest.fixture
def play(nats_url: str, database_url: str, tmp_path: Path) -> Play:
    return player(nats_url, database_url, ["projectors"], home=tmp_path)


@pytest.fixture
async def room(play: Play) -> AsyncIterator[Stage]:
    """Yields a stage without keys, so that a search of the log's bytes finds unencrypted words."""
    async with play("projectors", kek=None) as opened:
        yield opened


def of(data: EventData, at: datetime, thread: str = "t", user: str | None = "ann") -> Event:
    return Event(time=at, thread=thread, user=user, data=data)


def said(text: str, at: datetime, role: str = "user", thread: str = "t", user: str | None = "ann") -> Event:
    return of(turn(text, role).data, at, thread, user)


def memory(number: int, content: str, source: MemorySource, **more: Any) -> MemoryRecorded:
    changed = {"id": UUID(int=number), "content": content, "value": None, "dedupe_key": None, "sources": (source,)}
    return MemoryRecorded(memory=GPA.model_copy(update={**changed, "valid_from": source.said_at, **more}))


async def told(stage: Stage) -> dict[str, int]:
    """Appends old and new turns in one conversation, an old conversation, bob's turns, and events derived from them."""
    log = stage.runtime.log
    first = said(SAID, OLD)
    answer, young = said(f"Noted: {SAID}", OLD, "assistant"), said("It rained on Monday.", YOUNG)
    seqs = [stored.seq for stored in await log.append_many([first, answer, young])]
    source = MemorySource(thread="t", seq=seqs[0], event_id=first.id, quote="green heron nests", said_at=OLD)
    later = MemorySource(thread="t", seq=seqs[2], event_id=young.id, quote="rained on Monday", said_at=YOUNG)
    people = memory_thread("ann")
    receipt = AnswerReceipt(
        request_id=UUID(int=8),
        turn_id=young.id,
        answer_ids=(),
        as_of_seq=seqs[2],
        model="m",
        window=1,
        budget=1,
        tiers=(),
        context_hash="00",
        notes=(f"They said: {SAID}",),
    )
    derived = DERIVED.model_copy(update={"from_seq": 1, "through_seq": seqs[2]})
    await log.append_many(
        [
            of(ThreadRenamed(label="The green heron nests at…"), OLD),
            of(SummaryWritten(summary=f"Ann: {SAID}", message_count=3, covered_seq=seqs[2], derivation=derived), YOUNG),
            of(TopicsTagged(topics={"heron": 2}, derivation=derived), YOUNG),
            of(receipt, YOUNG),
            said(SAID, OLD, thread="past"),
            of(ThreadOpened(label="Herons at Marlow"), YOUNG, "past"),
            of(ThreadForked(parent="t", at_seq=seqs[1], topics={"heron": 1}), YOUNG, "fork"),
            said("Go on with this.", YOUNG, thread="fork"),
            said("Bob watches kingfishers.", OLD, thread="of-bob", user="bob"),
            of(memory(1, "Herons nest at Marlow", source), OLD, people),
            of(memory(2, "Likes rain", source), OLD, people),
            of(MemoryConfirmed(memory_id=UUID(int=2), source=later, importance=0.5, confidence=0.5), YOUNG, people),
            of(memory(3, "Has a boat", source, origin="user"), OLD, people),
            of(
                ProfileWritten(
                    sentences=("They look at a heron.",),
                    memories=((UUID(int=1),),),
                    lines=(UUID(int=1),),
                    source_ids=(first.id,),
                    derivation=derived,
                ),
                YOUNG,
                people,
            ),
            of(EntitiesFound(entities=(Entity(type="BIRD", name="heron", sources=(source,)),)), OLD, people),
        ]
    )
    await stage.runtime.wait_until_projected()
    await embed_all(stage)
    return dict(zip(("first", "answer", "young"), seqs, strict=True))


async def rows_with(stage: Stage, words: str) -> dict[str, list[Any]]:
    query = "SELECT t::text FROM {} t WHERE t::text ILIKE %s"
    rows = {name: await stage.rows(query.format(name), f"%{words}%") for name in TABLES}
    return {name: lines for name, lines in rows.items() if lines}


async def in_log(log: Log, words: bytes) -> list[bytes]:
    every = read_to(log.nc, [f"{STORED_PREFIX}.>"], 1, as_stored=True)
    return [stored.body async for stored in every if words.lower() in stored.body.lower()]


async def receipts(stage: Stage) -> list[TurnsExpired]:
    return [event.data for event in await stage.events(REDACTIONS) if isinstance(event.data, TurnsExpired)]


async def test_old_turns_are_deleted_from_log_and_read_models_and_newer_ones_stay(room: Stage) -> None:
    runtime = room.runtime
    seqs = await told(room)
    await set_preferences(runtime, "default", "ann", {"retention_days": 30})
    assert (await rows_with(room, "heron")).keys() >= {"messages", "memories", "conversation_summaries", "entities"}
    ran = await run_job(runtime, "retention", NOW, no_progress)
    assert ran.counts == {"turns": 3, "conversations": 1, "memories": 1, "hits": 0}
    assert await rows_with(room, "heron") == {}
    assert await in_log(runtime.log, b"heron") == []
    assert await unlike_a_rebuild(runtime.log, runtime.database_url) == {}
    assert await room.rows("SELECT seq, content #>> '{}' FROM messages WHERE thread_id = 't'") == [
        (seqs["young"], "It rained on Monday.")
    ]
    assert await room.rows("SELECT thread_id FROM thread_activity ORDER BY 1") == [("fork",), ("of-bob",), ("t",)]
    # A memory is forgotten with its last source turn; if it was said again or written by hand, it only loses the quote.
    memories = await room.rows(
        "SELECT content, status, sources::text LIKE %s FROM memories ORDER BY id", "%[redacted]%"
    )
    assert memories == [("", "forgotten", False), ("Likes rain", "valid", True), ("Has a boat", "valid", True)]
    begun, done = await receipts(room)
    assert begun.hits is None and "t" in begun.threads
    assert (done.hits, done.turns, done.redaction) == (0, 3, begun.redaction)
    assert done.strings_searched and done.scanned["tables"] > 30
    head = await runtime.log.head()
    assert (await let_old_turns_go(runtime, NOW)).total() == 0
    assert await runtime.log.head() == head


@pytest.mark.nightly
async def test_a_run_that_was_killed_is_finished_by_the_next(room: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = room.runtime
    await told(room)
    await set_preferences(runtime, "default", "ann", {"retention_days": 30})
    overwrite = Log.overwrite

    async def killed(log: Log, seq: int) -> bool:
        done = await overwrite(log, seq)
        if not [
            recorded
            async for recorded in log.read_thread("default", "t", types=("turn_recorded",))
            if recorded.event.time == OLD
        ]:
            raise asyncio.CancelledError  # after all turns are deleted and before rows are rebuilt
        return done

    with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
        patch.setattr(Log, "overwrite", killed)
        await let_old_turns_go(runtime, NOW)
    assert "messages" in await rows_with(room, "heron")
    await let_old_turns_go(runtime, NOW)
    assert await rows_with(room, "heron") == {}
    assert await in_log(runtime.log, b"heron") == []
    assert await unlike_a_rebuild(runtime.log, runtime.database_url) == {}
    assert len({receipt.redaction for receipt in await receipts(room)}) == 1
    assert (await find_old(runtime, NOW)).tenants == []


async def test_the_stricter_period_of_operator_and_person_applies(room: Stage) -> None:
    await told(room)
    runtime = replace(room.runtime, settings=room.runtime.settings.model_copy(update={"retention_days": 50}))
    assert (await find_old(runtime, NOW)).turns == {}
    with pytest.raises(InvalidPreference, match="at most 50"):
        await set_preferences(runtime, "default", "ann", {"retention_days": 51})
    await set_preferences(runtime, "default", "ann", {"retention_days": 30})
    assert {thread for _, thread in (await find_old(runtime, NOW)).turns} == {"t", "past"}
    later = await find_old(runtime, NOW + timedelta(days=11))
    assert later.turns["default", "of-bob"] == {"bob": 1}
    await set_preferences(runtime, "default", "ann", {}, ["retention_days"])
    assert (await show_preferences(runtime, "default", "ann")).retention_days is None
    assert (await find_old(runtime, NOW)).turns == {}


@pytest.mark.nightly
async def test_a_conversation_that_gets_a_turn_meanwhile_is_not_deleted(
    room: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = room.runtime
    await runtime.log.append(said(SAID, OLD))
    await set_preferences(runtime, "default", "ann", {"retention_days": 30})
    planned = retention._planned

    async def slowly(*about: Any) -> Any:
        leaving = await planned(*about)
        await runtime.log.append(said("And now?", NOW))
        return leaving

    with monkeypatch.context() as patch:
        patch.setattr(retention, "_planned", slowly)
        assert (await let_old_turns_go(runtime, NOW))["conversations"] == 0
    assert len(await room.rows("SELECT FROM messages")) == 2
    assert (await let_old_turns_go(runtime, NOW))["turns"] == 1
    assert await room.rows("SELECT content #>> '{}' FROM messages") == [("And now?",)]


@pytest.mark.nightly
async def test_sealed_archived_and_redacted_turns_are_deleted_too(play: Play) -> None:
    async with play("projectors") as stage:
        runtime = stage.runtime
        seqs = await told(stage)
        blob = Blob(channel="x", version="1", encoding="msgpack", data=b64encode(SAID.encode()).decode())
        state = {"v": 4, "channel_values": {"note": SAID}, "channel_versions": {"x": "1"}}
        saved = CheckpointSaved(checkpoint_id="1ef", checkpoint=state, metadata={}, blobs=(blob,))
        session = SessionCreated(user_snapshot={"saw": SAID}, after_seq=seqs["first"])
        await runtime.log.append_many([of(saved, YOUNG), of(session, OLD)])
        await redact_turn(
            runtime, "default", "t", seqs["first"], erasure_reach(runtime.settings), "green", by="ann", reason="x"
        )
        mixed = [said(SAID, OLD, thread="mixed"), said("Sun today.", YOUNG, thread="mixed")]
        await runtime.log.append_many(mixed)
        await runtime.wait_until_projected()
        await archive_older(runtime, datetime.now(UTC) + timedelta(days=1), no_progress)
        await runtime.wait_until_projected()
        assert await stage.rows("SELECT FROM messages WHERE thread_id IN ('mixed', 'past')") == []
        await set_preferences(runtime, "default", "ann", {"retention_days": 30})
        done = await let_old_turns_go(runtime, NOW)
        assert (done["turns"], done["conversations"]) == (4, 1)
        assert await rows_with(stage, "heron") == {}
        assert not any("heron" in repr(event.data).lower() for event in await stage.events("t"))
        query = "SELECT seq, content #>> '{}' FROM messages WHERE thread_id = 't'"
        assert await stage.rows(query) == [(seqs["young"], "It rained on Monday.")]
        assert len(await stage.rows("SELECT FROM checkpoints WHERE thread_id = 't'")) == 1
        assert await stage.rows("SELECT content #>> '{}' FROM messages WHERE thread_id = 'mixed'") == [("Sun today.",)]
        assert files_of(runtime.settings.archive, "default", ["mixed", "past"]) == []
        assert await unlike_a_rebuild(runtime.log, runtime.database_url) == {}
        assert (await find_old(runtime, NOW)).tenants == []
