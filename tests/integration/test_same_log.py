"""Tests the id of a log, appends to a replaced stream, and events that are moved after a sequence."""

import asyncio
from dataclasses import replace

import pytest
from helpers.sample_events import turn
from helpers.servers import rows, running_projector
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from turnlog.events import move
from turnlog.events.errors import OtherLog
from turnlog.events.log import Log
from turnlog.events.move import move_behind
from turnlog.events.stored import recorded
from turnlog.events.stream import LOG_ID, StreamOptions, stream_config
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine.lag import lag, wait_for
from turnlog.projectors.engine.same_log import assert_same_log
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.messages import MESSAGES


async def test_a_log_and_rows_of_an_earlier_version_get_one_id_in_any_order_of_start(
    nats_url: str, log: Log, database_url: str, db: Connection
) -> None:
    await log.append(turn("hello"))
    async with running_projector(log, database_url, [MESSAGES]):
        await wait_for(db, ["messages"], 0, 1, timeout_s=180.0)
    await db.execute("DELETE FROM projected_log")
    await db.execute("UPDATE projection_positions SET stored_at = NULL")
    js = log.nc.jetstream()
    config = (await js.stream_info(STREAM)).config
    await js.update_stream(replace(config, metadata=stream_config(StreamOptions()).metadata))
    assert LOG_ID not in ((await js.stream_info(STREAM)).config.metadata or {})

    started = await asyncio.gather(*(Log.connect(nats_url, StreamOptions()) for _ in range(4)))
    ids = {(await opened_log.state()).id for opened_log in started}
    assert ids == {((await js.stream_info(STREAM)).config.metadata or {})[LOG_ID]}
    assert await assert_same_log(started[0], db) == 1
    assert await rows(db, "SELECT log_id FROM projected_log") == [(ids.pop(),)]
    await asyncio.gather(*(opened_log.close() for opened_log in started))


async def test_an_append_into_a_stream_that_was_replaced_is_not_acknowledged(nats_url: str, log: Log) -> None:
    """This works without a check of the stream, because NATS assigns a sequence that the log had already used."""
    for number in range(3):
        await log.append(turn(f"{number}"))
    await log.nc.jetstream().delete_stream(STREAM)
    with pytest.raises(OtherLog, match="no longer has the stream TURNLOG"):
        await log.partition_head(0)
    await (await Log.connect(nats_url, StreamOptions())).close()
    with pytest.raises(OtherLog, match="the stream was replaced"):
        await log.append(turn("lost"))
    with pytest.raises(OtherLog):
        await log.append_many([turn("lost, too")])
    with pytest.raises(OtherLog):
        await log.overwrite(1)


@pytest.mark.parametrize("when", ["before it is deleted", "after it is deleted"])
async def test_a_move_that_was_killed_goes_on_and_keeps_the_order_of_events(
    log: Log, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The move is killed at the third event, before or after the deletion of its first copy."""
    sent = [turn(f"{number}") for number in range(5)]
    await log.append_many(sent)
    real, calls = move.overwrite, list[int]()

    async def killed(js: JetStreamContext, stream: str, seq: int) -> bool:
        calls.append(seq)
        done = len(calls) < 3 or when.startswith("after")
        result = await real(js, stream, seq) if done else False
        if len(calls) == 3:
            raise RuntimeError("killed")
        return result

    monkeypatch.setattr(move, "overwrite", killed)
    with pytest.raises(RuntimeError, match="killed"):
        await move_behind(log, 0, 9)
    monkeypatch.setattr(move, "overwrite", real)
    await move_behind(log, 0, 9)
    records = [recorded(stored) async for stored in log.read_stored("default", "t")]
    assert list(dict.fromkeys(record.event.id for record in records)) == [event.id for event in sent]
    assert min(record.seq for record in records) > 9


async def test_a_deleted_last_event_does_not_indicate_another_log(log: Log, database_url: str, db: Connection) -> None:
    """An erasure may also delete the message at the position."""
    for number in range(3):
        await log.append(turn(f"{number}"))
    async with running_projector(log, database_url, [MESSAGES]):
        await wait_for(db, ["messages"], 0, 3, timeout_s=180.0)
    await log.overwrite(3)
    assert await assert_same_log(log, db) == 3
    assert [(progress.position, progress.behind) for progress in await lag(log, db)] == [(3, 0)]


@pytest.mark.parametrize("kept", [0, 2])
async def test_moved_events_keep_their_order_and_ids_after_the_sequence(log: Log, kept: int) -> None:
    """kept: the number of events whose sequences the rows already have."""
    events = [turn(f"{number}", thread=f"t{number % 2}") for number in range(5)]
    await log.append_many(events)
    assert await move_behind(log, kept, 10) == 5 - kept
    with pytest.raises(NotFoundError):
        await log.nc.jetstream().get_msg(STREAM, kept + 1)
    records = [recorded(stored) async for stored in log.read(["turnlog.log.>"])]
    assert [record.event.id for record in records] == [event.id for event in events]
    assert [record.seq for record in records] == [*range(1, kept + 1), *range(11, 16 - kept)]
    assert (await log.append(turn("next"))).seq == 16 - kept
