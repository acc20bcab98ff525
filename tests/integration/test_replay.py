"""A single thread is rebuilt in place, and its parked events are retried or dropped."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from conftest import Settled
from helpers.sample_events import turn
from helpers.servers import parked, rows, running_projector, unlike_a_rebuild

from turnlog.events.contracts import Recorded, TurnRecorded
from turnlog.events.errors import NotFound
from turnlog.events.log import Log
from turnlog.projectors.engine.changes import Change
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.operations.usage import USAGE
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.replay import NotPerThread, drop, rebuild_tenant, rebuild_thread, retry
from turnlog.projectors.rebuild.verify import verify

CONTENTS = "SELECT thread_id, content FROM messages ORDER BY seq"
PLACE = ("default", "t")


def broken_at(*texts: str) -> Projection:
    def project(batch: Sequence[Recorded]) -> list[Change]:
        if any(isinstance(r.event.data, TurnRecorded) and r.event.data.content in texts for r in batch):
            raise KeyError("the bug")
        return MESSAGES.project(batch)

    return replace(MESSAGES, project=project)


async def contents(db: Connection, thread: str = "t") -> list[str]:
    return [text for row_thread, text in await rows(db, CONTENTS) if row_thread == thread]


async def test_a_rebuilt_thread_equals_the_log_and_others_are_unchanged(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([turn(str(i), thread=f"t{i % 2}") for i in range(10)])
    await settled()
    await db.execute("UPDATE messages SET content = '\"forged\"'")
    done = await rebuild_thread(log, database_url, MESSAGES, "default", "t1")
    assert done.events == 5
    assert await contents(db, "t1") == ["1", "3", "5", "7", "9"]
    assert await contents(db, "t0") == ["forged"] * 5


async def test_a_rebuilt_tenant_equals_the_log_and_others_are_unchanged(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([turn(str(i), thread=f"{i % 2} 号") for i in range(4)])
    await log.append_many([turn(str(i), thread="mine", tenant="acme") for i in range(2)])
    await settled()
    await db.execute("UPDATE messages SET content = '\"forged\"'")
    assert (await rebuild_tenant(log, database_url, MESSAGES, "default", from_seq=4)).events == 2
    assert (await contents(db, "0 号"), await contents(db, "1 号")) == (["forged"] * 2, ["1", "3"])
    assert (await rebuild_tenant(log, database_url, MESSAGES, "default")).events == 4
    assert await contents(db, "0 号") + await contents(db, "1 号") == ["0", "2", "1", "3"]
    assert await contents(db, "mine") == ["forged"] * 2
    with pytest.raises(NotFound):
        await rebuild_tenant(log, database_url, MESSAGES, "nobody")


async def test_every_projection_with_threads_can_rebuild_one(
    log: Log, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([turn("When?"), turn("Now.", "assistant"), turn("free", thread="u")])
    await settled()
    for projection in PROJECTIONS:
        if projection.per_thread:
            await rebuild_thread(log, database_url, projection, "default", "t")
    assert await unlike_a_rebuild(log, database_url) == {}


async def test_a_read_model_that_sums_over_threads_cannot_rebuild_one(log: Log, database_url: str) -> None:
    with pytest.raises(NotPerThread, match="turnlog rebuild usage"):
        await rebuild_thread(log, database_url, USAGE, "default", "t")


async def test_an_unknown_thread_is_reported(log: Log, database_url: str) -> None:
    await log.append(turn())
    with pytest.raises(NotFound, match="no thread 'nobody'"):
        await rebuild_thread(log, database_url, MESSAGES, "default", "nobody")


async def test_a_fixed_projector_applies_the_parked_events_in_order(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url, [broken_at("b")]):
        await log.append_many([turn(text) for text in "abcd"])
        await settled("messages")
    assert await contents(db) == ["a"]
    done = await retry(log, database_url, MESSAGES, PLACE)
    assert (done.applied, done.parked) == ((2, 3, 4), ())
    assert await contents(db) == ["a", "b", "c", "d"]
    assert await parked(db, "messages") == []
    assert (await verify(log, database_url, MESSAGES)).clean


async def test_a_retry_stops_at_the_next_poison_and_keeps_the_rest(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    async with running_projector(log, database_url, [broken_at("b", "d")]):
        await log.append_many([turn(text) for text in "abcde"])
        await settled("messages")
    done = await retry(log, database_url, broken_at("d"), PLACE)
    assert (done.applied, done.parked) == ((2, 3), (4, 5))
    assert await contents(db) == ["a", "b", "c"]
    assert await parked(db, "messages") == [(4, "poison", "parked"), (5, "behind", "parked")]


async def test_a_retry_that_changes_nothing_keeps_the_cause(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([turn("poison", tokens_in=2**31), turn("behind")])
    await settled()
    assert (await retry(log, database_url, MESSAGES, PLACE)).parked == (1, 2)
    assert await parked(db, "messages") == [(1, "poison", "parked"), (2, "behind", "parked")]


async def test_dropping_a_poison_event_releases_the_events_after_it(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    await log.append_many([turn("a"), turn("poison", tokens_in=2**31), turn("b")])
    await settled()
    done = await drop(log, database_url, MESSAGES, 2)
    assert (done.applied, done.parked) == ((3,), ())
    await log.append(turn("c"))
    await settled()
    assert await contents(db) == ["a", "b", "c"]
    assert await parked(db, "messages") == [(2, "poison", "dropped")]


async def test_dropping_one_of_two_poison_events_waits_for_the_other(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    bad = [turn(text, tokens_in=2**31) for text in ("p", "q")]
    await log.append_many([bad[0], turn("a"), bad[1], turn("b")])
    await settled()
    assert (await drop(log, database_url, MESSAGES, 1)).applied == (2,)
    assert await parked(db, "messages") == [(1, "poison", "dropped"), (3, "poison", "parked"), (4, "behind", "parked")]
    assert (await drop(log, database_url, MESSAGES, 3)).applied == (4,)
    assert await contents(db) == ["a", "b"]


async def test_only_parked_events_can_be_dropped(log: Log, database_url: str) -> None:
    with pytest.raises(NotFound, match="messages has no parked event at sequence 7"):
        await drop(log, database_url, MESSAGES, 7)


async def test_a_rebuilt_thread_leaves_dropped_events_out_and_poison_parked(
    log: Log, db: Connection, database_url: str, running_projectors: Runner, settled: Settled
) -> None:
    bad = [turn(text, tokens_in=2**31) for text in ("p", "q")]
    await log.append_many([bad[0], turn("a"), bad[1], turn("b")])
    await settled()
    await drop(log, database_url, MESSAGES, 1)
    await rebuild_thread(log, database_url, MESSAGES, "default", "t")
    assert await contents(db) == ["a"]
    assert await parked(db, "messages") == [(1, "poison", "dropped"), (3, "poison", "parked"), (4, "behind", "parked")]
    assert (await verify(log, database_url, MESSAGES)).clean


@pytest.mark.nightly
async def test_a_thread_longer_than_a_batch_is_rebuilt_in_one_piece(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    events = [turn(str(i)) for i in range(2_100)]
    await log.append_many(events)
    async with running_projector(log, database_url, [MESSAGES]):
        await settled("messages")
    assert (await rebuild_thread(log, database_url, MESSAGES, "default", "t")).events == 2_100
    assert await contents(db) == [str(i) for i in range(2_100)]
