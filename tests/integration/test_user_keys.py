"""A process creates users' keys once, fetches them for entire batches, waits for them, and never mixes users."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from helpers.key_rings import current, find, store_on
from helpers.own_servers import own_servers
from helpers.sample_events import text_of, turn
from helpers.servers import eventually, rows
from helpers.stage import Play, on_stage, player

from turnlog.agent.privacy.keys.key_stream import KeyStream
from turnlog.events.codec import decode
from turnlog.events.errors import InvalidEvent, InvalidToken, KeyUnavailable
from turnlog.events.sealing import key_ids_in
from turnlog.events.stored import Stored, recorded
from turnlog.projectors.engine.writer import Connection

# nats-py forgets to close the socket of a server that dies while it reconnects to it.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Exception ignored in.*StreamWriter:pytest.PytestUnraisableExceptionWarning"),
]

SECRET = "My blood type is AB negative"
PRIVACY = Path(__file__).parents[2] / "docs" / "privacy.md"


@pytest.fixture
def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ["projectors"])


async def test_a_user_gets_one_key_even_if_several_ask_at_once(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    async with store_on(key_stream, database_url) as first, store_on(key_stream, database_url) as second:
        ids = {key.id for key in await asyncio.gather(*(current(store, "ann") for store in (first, second) * 8))}
        assert len(ids) == 1
        assert (await current(first, "ann", "acme")).id not in ids
    assert await rows(db, "SELECT tenant, user_id, length(wrapped) FROM user_keys ORDER BY tenant") == [
        ("acme", "ann", 60),
        ("default", "ann", 60),
    ]
    on_stream = [record.tenant async for record in key_stream.since(0, await key_stream.head())]
    assert sorted(on_stream) == ["acme", "default"]


async def test_a_key_of_another_user_or_no_id_at_all_opens_nothing(database_url: str, key_stream: KeyStream) -> None:
    async with store_on(key_stream, database_url) as store:
        mine = await current(store, "ann")
        assert await find(store, "ann", mine.id) == mine
        with pytest.raises(InvalidEvent, match="not one of user 'bob'"):
            await find(store, "bob", mine.id)
        with pytest.raises(InvalidEvent, match="not one of user 'ann' in tenant 'acme'"):
            await find(store, "ann", mine.id, "acme")
        with pytest.raises(InvalidEvent, match="not the id of a key"):
            await find(store, "ann", "key 1")


@pytest.fixture
def key_queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that collects all statements about keys, except those of the listener."""
    sent: list[str] = []
    execute = psycopg.AsyncConnection.execute

    def noted(conn: Any, query: Any, *args: Any, **named: Any) -> Any:
        if "user_keys" in str(query) and "unnest" in str(query):
            sent.append(str(query).split()[0])
        return execute(conn, query, *args, **named)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", noted)
    return sent


async def test_the_keys_of_a_batch_are_made_and_fetched_with_one_query_for_all(
    play: Play, key_queries: list[str]
) -> None:
    turns = [turn(f"I am user {number % 50}.", user=f"user {number % 50}") for number in range(100)]
    async with play() as stage:
        await stage.runtime.log.append_many(turns)
        assert key_queries == ["SELECT", "INSERT", "UPDATE", "SELECT"]
        await stage.runtime.wait_until_projected()  # otherwise the projectors would still fetch keys in the next block
    del key_queries[:]
    async with play() as stage, stage.runtime.log.reader(0, 1) as reader:
        batches: list[list[Stored]] = []
        while sum(map(len, batches)) < len(turns):
            batches.append(await reader.batch())
        read = [text_of(recorded(stored).event) for batch in batches for stored in batch]
    assert read == [text_of(event) for event in turns]
    assert key_queries == ["SELECT"] * batches_with_new_keys(batches)


def batches_with_new_keys(batches: list[list[Stored]]) -> int:
    """Returns the number of batches with new keys. A slow server sends 100 events in several batches, and later batches
    may contain only known users."""
    held: set[str] = set()
    count = 0
    for batch in batches:
        wanted = key_ids_in(stored.body for stored in batch)
        count += bool(wanted - held)
        held |= wanted
    return count


async def test_a_batch_with_an_invalid_user_is_refused_without_asking_postgres(play: Play) -> None:
    async with play() as stage:
        with pytest.raises(InvalidToken, match="user id contains a NUL"):
            await stage.runtime.log.append_many([turn("Hello.", user="ann"), turn("Hello.", user="b\0b")])
        assert (await stage.runtime.log.append(turn("Hello.", user="ann"))).seq == 1


async def test_a_hanging_postgres_blocks_nobody_for_ever_and_never_the_event_loop(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    async with store_on(key_stream, database_url) as store:
        await current(store, "ann")
        query = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%FROM user_keys%unnest%' "
        [(backend,)] = await rows(db, query + "AND datname = current_database() AND pid <> pg_backend_pid()")
        os.kill(backend, signal.SIGSTOP)
        try:
            asked = asyncio.create_task(current(store, "bob"))
            await rows(db, "SELECT 1")
            assert not asked.done()
            assert (await asked).id
        finally:
            os.kill(backend, signal.SIGCONT)


async def test_a_key_that_was_not_fetched_with_its_events_is_fetched_for_the_next_try(
    play: Play, database_url: str, key_stream: KeyStream
) -> None:
    """The event's key attribute has a form that turnlog does not write, so the prefetch overlooks it."""
    async with play() as stage:
        seq = (await stage.runtime.log.append(turn("Hello.", user="ann"))).seq
        stored = await stage.runtime.log.stored(seq)
        overlooked = stored.body.replace(b'"sealedkey":', b'"seale\\u0064key" : ')
    async with store_on(key_stream, database_url) as store:
        await store.prefetch(key_ids_in([overlooked]))
        with pytest.raises(KeyUnavailable):
            decode(overlooked, store)
        await store.prefetch(key_ids_in([overlooked]))
        assert text_of(decode(overlooked, store)) == "Hello."


async def test_a_key_that_was_put_into_another_users_row_does_not_open(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    async with store_on(key_stream, database_url) as store:
        assert (await current(store, "ann")).id != (await current(store, "bob")).id
    await db.execute(
        "UPDATE user_keys SET wrapped = (SELECT wrapped FROM user_keys WHERE user_id = 'bob') WHERE user_id = 'ann'"
    )
    async with store_on(key_stream, database_url) as store:
        with pytest.raises(KeyUnavailable, match="it was changed, in user_keys or on the stream"):
            await current(store, "ann")


async def test_while_postgres_is_away_known_users_go_on_and_nobody_is_ever_written_in_clear(home: Path) -> None:
    async with own_servers(home) as own, on_stage(own.settings(), ["projectors"]) as stage:
        log = stage.runtime.log
        await log.append(turn("one", user="ann"))
        await stage.runtime.wait_until_projected()
        await own.kill("postgres")
        await log.append(turn("two", user="ann"))
        assert [text_of(event) for event in await stage.events()] == ["one", "two"]
        before = await log.head()
        with pytest.raises(KeyUnavailable, match=r"keys of user 'bob': Postgres does not answer.*Check DATABASE_URL"):
            await log.append(turn(SECRET, user="bob"))
        assert await log.head() == before
        await own.back()

        async def is_stored() -> bool:
            try:
                await log.append(turn(SECRET, user="bob"))
            except KeyUnavailable:
                return False
            return True

        await eventually(is_stored)
        await stage.runtime.wait_until_projected()
        assert SECRET.encode() not in (await log.stored(before + 1)).body
        assert [text_of(event) for event in await stage.events()] == ["one", "two", SECRET]
