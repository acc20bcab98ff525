"""Threads cached in memory equal those in Postgres after new turns, pruning and a removal."""

from conftest import Settled
from helpers.sample_events import event, turn

from turnlog.agent.answering.thread_context import Transcripts
from turnlog.events.contracts import HistoryPruned, ThreadDeleted
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.thread_lookup import thread_overview


async def said(transcripts: Transcripts, db: Connection, thread: str = "t") -> list[object]:
    now = await thread_overview(db, "default", thread)
    return [message.content for message in await transcripts.state(db, "default", thread, now)]


async def test_only_new_turns_are_read_and_removed_ones_are_forgotten(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    kept = Transcripts()
    seqs = [(await log.append(turn(text))).seq for text in ("one", "two", "three")]
    await settled()
    assert await said(kept, db) == ["one", "two", "three"]
    await log.append(turn("four"))
    await settled()
    assert await said(kept, db) == ["one", "two", "three", "four"]
    await log.append(event(HistoryPruned(through_seq=seqs[1], removed=2, remaining=2)))
    await settled()
    assert await said(kept, db) == ["three", "four"]
    await log.append(event(ThreadDeleted()))
    await log.append(turn("anew"))
    await settled()
    assert await said(kept, db) == ["anew"]


async def test_a_parked_turn_gets_its_position_later(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    kept = Transcripts()
    for text in ("one", "two", "three"):
        await log.append(turn(text))
    await settled()
    parked = await db.execute(
        "DELETE FROM messages WHERE content = '\"two\"' RETURNING tenant, thread_id, seq, event_id, role, content, time"
    )
    (row,) = await parked.fetchall()
    assert await said(kept, db) == ["one", "three"]
    await db.execute(
        "INSERT INTO messages (tenant, thread_id, seq, event_id, role, content, time, origin) "
        "VALUES (%s, %s, %s, %s, %s, to_jsonb(%s::text), %s, 'person')",
        row,
    )
    assert await said(kept, db) == ["one", "two", "three"]


async def test_the_threads_read_longest_ago_leave_first(
    log: Log, db: Connection, running_projectors: Runner, settled: Settled
) -> None:
    kept = Transcripts(keep=2)
    for thread in ("a", "b"):
        await log.append_many([turn(f"{thread}{n}", thread=thread) for n in range(2)])
    await settled()
    assert await said(kept, db, "a") == ["a0", "a1"]
    await db.execute("UPDATE messages SET content = to_jsonb('read again'::text) WHERE thread_id = 'a'")
    assert await said(kept, db, "a") == ["a0", "a1"]
    assert await said(kept, db, "b") == ["b0", "b1"]
    assert await said(kept, db, "a") == ["read again", "read again"]
