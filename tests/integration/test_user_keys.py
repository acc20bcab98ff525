"""Users' keys in Postgres: made once, held, rotated, wrapped anew, destroyed, and waited for."""

import asyncio
import json
import os
import re
import signal
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from helpers.key_rings import KEK
from helpers.own_servers import OwnServers, own_servers
from helpers.sample_events import text_of, turn
from helpers.servers import eventually, parked, rows
from helpers.stage import Play, Stage, on_stage, player
from pydantic import SecretStr

from turnlog.agent.privacy import key_admin
from turnlog.agent.privacy.kek import InvalidKek, WrongKek, keks_of, new_kek
from turnlog.agent.privacy.key_admin import destroy, rewrap, rotate, uses
from turnlog.agent.privacy.keys import KeyStore, opened_keys
from turnlog.agent.settings import Settings
from turnlog.agent.use_cases.checkup import _key_waited_for
from turnlog.consumers.runtime import opened
from turnlog.events.contracts import ERASED
from turnlog.events.errors import InvalidEvent, InvalidToken, KeyUnavailable, NotFound
from turnlog.events.read import recorded
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.lag import lag
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.messages import thread_messages

# nats-py forgets to close the socket of a server that dies while it reconnects to it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*StreamWriter:pytest.PytestUnraisableExceptionWarning"
)
SECRET = "My blood type is AB negative"
LISTENS = (
    "query LIKE '%DISTINCT tenant, user_id FROM user_keys%' AND datname = current_database() "
    "AND pid <> pg_backend_pid()"
)
# A key's bytes go only when nobody holds this lock: a trigger sees the destroying, and not the retiring before it.
HELD_BACK = b"""
CREATE FUNCTION held_back() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END';
CREATE TRIGGER held_back BEFORE UPDATE OF wrapped ON user_keys FOR EACH ROW EXECUTE FUNCTION held_back()"""
PRIVACY = Path(__file__).parents[2] / "docs" / "privacy.md"


@pytest.fixture
def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ["projectors"])


@asynccontextmanager
async def store_on(database_url: str, **given: Any) -> AsyncIterator[KeyStore]:
    """What a process of its own has: nothing held yet."""
    keks = keks_of(Settings(database_url=database_url, **{"kek": SecretStr(KEK), **given}))
    async with opened_keys(database_url, keks) as store:
        assert store is not None
        yield store


async def key_of(stage: Stage, seq: int) -> str:
    key: str = json.loads((await stage.runtime.log.stored(seq)).body)["sealedkey"]
    return key


async def test_a_user_gets_one_key_however_many_ask_first(db: Connection, database_url: str) -> None:
    async with store_on(database_url) as one, store_on(database_url) as two:
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(store.current, "default", "ann") for store in (one, two) * 8]
            ids = {future.result().id for future in asked}
        assert len(ids) == 1
        assert one.current("acme", "ann").id not in ids
    assert await rows(db, "SELECT tenant, user_id, length(wrapped) FROM user_keys ORDER BY tenant") == [
        ("acme", "ann", 60),
        ("default", "ann", 60),
    ]


async def test_a_key_of_another_user_or_no_id_at_all_opens_nothing(database_url: str) -> None:
    async with store_on(database_url) as store:
        mine = store.current("default", "ann")
        assert store.find("default", "ann", mine.id) == mine
        with pytest.raises(InvalidEvent, match="not one of user 'bob'"):
            store.find("default", "bob", mine.id)
        with pytest.raises(InvalidEvent, match="not one of user 'ann' in tenant 'acme'"):
            store.find("acme", "ann", mine.id)
        with pytest.raises(InvalidEvent, match="no id"):
            store.find("default", "ann", "key 1")


@pytest.fixture
def key_queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that the key table sends from now on: nothing else has a connection without asyncio."""
    sent: list[str] = []
    execute = psycopg.Connection.execute

    def noted(conn: Any, query: Any, *args: Any, **named: Any) -> Any:
        sent.append(str(query).split()[0])
        return execute(conn, query, *args, **named)

    monkeypatch.setattr(psycopg.Connection, "execute", noted)
    return sent


async def test_the_keys_of_a_batch_are_made_and_fetched_with_one_query_for_all(
    play: Play, key_queries: list[str]
) -> None:
    turns = [turn(f"I am user {number % 50}.", user=f"user {number % 50}") for number in range(100)]
    async with play() as stage:
        await stage.runtime.log.append_many(turns)
        assert key_queries == ["SELECT", "INSERT", "SELECT"]
        await stage.runtime.settle()  # or the projectors read, and fetch, in the next block too
    del key_queries[:]
    async with play() as stage:
        assert [text_of(one) for one in await stage.events()] == [text_of(one) for one in turns]
        assert set(key_queries) == {"SELECT"}
        assert len(key_queries) < 5  # one a batch, and not one a user; a slow server sends several batches


async def test_a_missing_key_in_a_batch_keeps_only_its_own_event_from_being_read(db: Connection, play: Play) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([turn(f"I am {user}.", user=user) for user in ("ann", "bob", "cho")])
    await db.execute("DELETE FROM user_keys WHERE user_id = 'bob'")
    async with play() as stage:
        read = [stored async for stored in stage.runtime.log.read_stored("default", "t")]
        assert text_of(recorded(read[0]).event) == "I am ann."
        assert text_of(recorded(read[2]).event) == "I am cho."
        with pytest.raises(KeyUnavailable, match="of user 'bob' is not in the table"):
            recorded(read[1])


async def test_a_batch_with_an_invalid_user_is_refused_without_a_word_to_postgres_about_it(play: Play) -> None:
    async with play() as stage:
        with pytest.raises(InvalidToken, match="user id holds a NUL"):
            await stage.runtime.log.append_many([turn("Hello.", user="ann"), turn("Hello.", user="b\0b")])
        assert (await stage.runtime.log.append(turn("Hello.", user="ann"))).seq == 1


async def test_a_key_that_the_table_lacks_is_waited_for_until_a_backup_brings_it(db: Connection, play: Play) -> None:
    async with play() as stage:
        await stage.runtime.log.append(turn(SECRET, user="ann"))
    [row] = await rows(db, "DELETE FROM user_keys RETURNING key_id, tenant, user_id, wrapped, kek_id")
    async with play() as stage:
        await db.execute("DELETE FROM messages")
        await db.execute("UPDATE projection_positions SET position = 0")
        runner = stage.runtime.runners[0]

        async def is_waiting() -> bool:
            return "restore user_keys" in (runner.last_error or "")

        await eventually(is_waiting)
        assert await parked(db, "messages") == []
        await db.execute(
            "INSERT INTO user_keys (key_id, tenant, user_id, wrapped, kek_id) VALUES (%s, %s, %s, %s, %s)", row
        )
        await stage.runtime.settle()
        assert [message.content for message in await thread_messages(db, "default", "t")] == [SECRET]


async def test_a_key_that_is_lost_for_good_can_be_given_up_as_the_documentation_says(
    db: Connection, play: Play
) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([turn(SECRET, user="ann"), turn("I am Bob.", user="bob")])
        lost = await key_of(stage, 1)
    await db.execute("DELETE FROM user_keys WHERE user_id = 'ann'")
    async with play() as stage:
        await db.execute("DELETE FROM messages")
        await db.execute("UPDATE projection_positions SET position = 0")

        async def doctor_names_it() -> bool:
            await db.execute("UPDATE projection_positions SET updated_at = now() - interval '1 hour'")
            found = await _key_waited_for(stage.runtime, await lag(stage.runtime.log, db, stalled_after_s=0.0))
            return f"key {lost} of user 'ann' is not in the table" in (found or "")

        await eventually(doctor_names_it)
        [block] = re.findall(r"^```sql\n(.*?)^```$", PRIVACY.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        await db.execute(block.replace("<key>", lost).replace("<user>", "ann").encode())
        await stage.runtime.settle()
        assert [message.content for message in await thread_messages(db, "default", "t")] == [ERASED, "I am Bob."]


async def test_a_postgres_that_hangs_holds_nobody_for_ever(db: Connection, database_url: str) -> None:
    async with store_on(database_url) as store:
        store.current("default", "ann")
        query = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%FROM user_keys%unnest%' "
        [(backend,)] = await rows(db, query + "AND datname = current_database() AND pid <> pg_backend_pid()")
        os.kill(backend, signal.SIGSTOP)
        try:
            assert store.current("default", "bob").id
        finally:
            os.kill(backend, signal.SIGCONT)


async def test_a_notice_of_somebody_else_does_not_end_the_listening(db: Connection, database_url: str) -> None:
    async with store_on(database_url) as store:
        old = store.current("default", "ann")
        await eventually(lambda: _listeners(db, 1))
        for payload in ("", "hello", "5", '["ann"]', '[["a"], 7]'):
            await db.execute("SELECT pg_notify('turnlog_keys', %s)", (payload,))
        await destroy(db, "default", "ann")

        async def is_forgotten() -> bool:
            return store.find("default", "ann", old.id) is None

        await eventually(is_forgotten)


async def test_a_backup_that_reads_the_keys_for_long_stops_neither_an_erasure_nor_those_who_ask_for_keys(
    db: Connection, database_url: str
) -> None:
    async with store_on(database_url) as store, await connect(database_url) as backup:
        store.current("default", "ann")
        async with backup.transaction():
            await backup.execute("LOCK TABLE user_keys IN ACCESS SHARE MODE")
            assert await destroy(db, "default", "ann") == 1
            assert store.current("default", "bob").id
        assert await rows(db, "SHOW lock_timeout") == [("0",)]


async def test_after_a_rotation_in_another_process_the_new_key_seals_and_the_old_one_opens(
    play: Play, db: Connection, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    async with play() as stage:
        log = stage.runtime.log
        first = await key_of(stage, (await log.append(turn("one", user="ann"))).seq)
        done = await OwnServers(tmp_path, _Where(nats_url, database_url)).turnlog("keys", "rotate", "--user", "ann")
        assert done.returncode == 0, done.stderr

        async def is_rotated() -> bool:
            return await key_of(stage, (await log.append(turn("two", user="ann"))).seq) != first

        await eventually(is_rotated)
        assert {text_of(one) for one in await stage.events()} == {"one", "two"}
        assert await rows(db, "SELECT count(*), count(retired_at) FROM user_keys") == [(2, 1)]


async def test_a_destroyed_key_is_soon_of_no_use_in_any_process(db: Connection, database_url: str) -> None:
    async with store_on(database_url) as store:
        old = store.current("default", "ann")
        bob = store.current("default", "bob")
        assert await destroy(db, "default", "ann") == 1

        async def is_forgotten() -> bool:
            return store.find("default", "ann", old.id) is None

        await eventually(is_forgotten)
        assert store.current("default", "ann").id != old.id
        assert store.current("default", "bob") == bob
    assert await rows(db, "SELECT wrapped, destroyed_at IS NULL FROM user_keys WHERE key_id = %s::uuid", old.id) == [
        (None, False)
    ]
    assert await destroy(db, "default", "nobody") == 0


async def test_whoever_could_not_listen_hears_of_a_destroyed_key_afterwards(db: Connection, database_url: str) -> None:
    async with store_on(database_url) as store:
        old = store.current("default", "ann")
        await eventually(lambda: _listeners(db, 1))
        await db.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {LISTENS}".encode(),
        )
        await db.execute("UPDATE user_keys SET wrapped = NULL, retired_at = now(), destroyed_at = now()")

        async def is_forgotten() -> bool:
            return store.find("default", "ann", old.id) is None

        await eventually(is_forgotten)


async def test_a_process_that_opens_something_while_a_key_is_being_destroyed_forgets_it_too(
    db: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of the retiring first, and takes the retired key from the table again."""
    async with store_on(database_url) as store, await connect(database_url) as holder:
        key = store.current("default", "ann")
        await eventually(lambda: _listeners(db, 1))
        await db.execute(HELD_BACK)
        await holder.execute("SELECT pg_advisory_lock(1)")

        async def is_retired() -> bool:
            return store.current("default", "ann").id != key.id

        monkeypatch.setattr(key_admin, "SETTLE_S", 0.0)
        destroying = asyncio.create_task(destroy(db, "default", "ann"))
        await eventually(is_retired)
        assert store.find("default", "ann", key.id) is not None
        await holder.execute("SELECT pg_advisory_unlock(1)")
        assert await destroying == 1

        async def is_forgotten() -> bool:
            return store.find("default", "ann", key.id) is None

        await eventually(is_forgotten)


async def test_a_key_that_was_put_into_another_users_row_does_not_open(db: Connection, database_url: str) -> None:
    async with store_on(database_url) as store:
        assert store.current("default", "ann").id != store.current("default", "bob").id
    await db.execute(
        "UPDATE user_keys SET wrapped = (SELECT wrapped FROM user_keys WHERE user_id = 'bob') WHERE user_id = 'ann'"
    )
    async with store_on(database_url) as store:
        with pytest.raises(KeyUnavailable, match="its row in user_keys was changed"):
            store.current("default", "ann")


async def test_several_who_rotate_at_once_all_get_a_key_and_one_of_them_seals(
    db: Connection, database_url: str
) -> None:
    keks = keks_of(Settings(database_url=database_url, kek=SecretStr(KEK)))
    assert keks is not None

    async def rotated() -> str:
        async with await connect(database_url) as conn:
            return await rotate(conn, keks, "default", "ann")

    async with store_on(database_url) as store:
        store.current("default", "ann")
    made = await asyncio.gather(*(rotated() for _ in range(6)))
    [(current,)] = await rows(db, "SELECT key_id::text FROM user_keys WHERE retired_at IS NULL")
    assert current in made and len(set(made)) == 6
    assert await rows(db, "SELECT count(*) FROM user_keys") == [(7,)]


async def test_for_a_user_without_a_key_there_is_nothing_to_rotate(db: Connection, database_url: str) -> None:
    keks = keks_of(Settings(database_url=database_url, kek=SecretStr(KEK)))
    assert keks is not None
    with pytest.raises(NotFound, match="nothing to rotate"):
        await rotate(db, keks, "default", "ann")
    assert await rows(db, "SELECT count(*) FROM user_keys") == [(0,)]
    async with store_on(database_url) as store:
        store.current("default", "ann")
    await destroy(db, "default", "ann")
    with pytest.raises(NotFound, match="nothing to rotate"):
        await rotate(db, keks, "default", "ann")
    assert await rows(db, "SELECT count(*) FROM user_keys WHERE destroyed_at IS NULL") == [(0,)]


async def test_a_new_kek_takes_the_keys_over_and_the_old_one_is_of_no_more_use(
    db: Connection, database_url: str
) -> None:
    new = new_kek()
    async with store_on(database_url) as store:
        key = store.current("default", "ann")
    both = Settings(database_url=database_url, kek=SecretStr(new), kek_old=SecretStr(KEK))
    keks = keks_of(both)
    assert keks is not None
    assert await rewrap(db, keks) == 1
    assert await rewrap(db, keks) == 0
    async with store_on(database_url, kek=SecretStr(new)) as store:
        assert store.current("default", "ann").id == key.id
        sealed = store.current("default", "ann").cipher.encrypt(bytes(12), b"words", None)
        assert key.cipher.decrypt(bytes(12), sealed, None) == b"words"
    [use] = await uses(db, keks)
    assert (use.kek_id, use.users, use.current, use.known) == (keks.current.id, 1, 1, True)


@pytest.mark.parametrize("kek", [None, SecretStr(new_kek())], ids=["no KEK", "another KEK"])
async def test_a_wrong_or_missing_kek_is_an_error_at_the_start(
    nats_url: str, database_url: str, play: Play, kek: SecretStr | None
) -> None:
    async with play() as stage:
        await stage.runtime.log.append(turn(SECRET, user="ann"))
    with pytest.raises(WrongKek, match="Set TURNLOG_KEK to that one"):
        async with opened(Settings(nats_url=nats_url, database_url=database_url, kek=kek)):
            pass


async def test_without_any_kek_words_are_stored_as_they_are_and_every_worker_says_so(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async with play(kek=None) as stage:
        await stage.runtime.log.append(turn(SECRET, user="ann"))
        assert SECRET.encode() in (await stage.runtime.log.stored(1)).body
    assert "not encrypted" in caplog.text
    assert "TURNLOG_KEK" in caplog.text


async def test_while_postgres_is_away_known_users_go_on_and_nobody_is_ever_written_in_clear(home: Path) -> None:
    async with own_servers(home) as own, on_stage(own.settings(), ["projectors"]) as stage:
        log = stage.runtime.log
        await log.append(turn("one", user="ann"))
        await stage.runtime.settle()
        await own.kill("postgres")
        await log.append(turn("two", user="ann"))
        assert [text_of(one) for one in await stage.events()] == ["one", "two"]
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
        await stage.runtime.settle()
        assert SECRET.encode() not in (await log.stored(before + 1)).body
        assert [text_of(one) for one in await stage.events()] == ["one", "two", SECRET]


def test_the_data_folder_gets_one_kek_that_only_its_owner_reads(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", database_url=None)
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(keks_of, settings) for _ in range(16)]
        ids = {found.current.id for future in made if (found := future.result())}
    assert len(ids) == 1
    [path] = (tmp_path / "home").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name == "kek"
    given = keks_of(Settings(home=tmp_path / "home", database_url=None, kek=SecretStr(KEK)))
    assert given is not None
    assert [kek.id for kek in given.older] == list(ids)


@pytest.mark.parametrize("text", ["abc", "", "ä" * 32, "A" * 43])
def test_a_kek_that_is_none_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidKek, match="TURNLOG_KEK is no base64 of 32 bytes") as refused:
        keks_of(Settings(database_url="postgresql://x", kek=SecretStr(text)))
    assert not text or text not in str(refused.value)


def test_a_kek_file_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "kek").mkdir()
    with pytest.raises(InvalidKek, match="set TURNLOG_KEK"):
        keks_of(Settings(home=tmp_path, database_url=None))


async def _listeners(db: Connection, count: int) -> bool:
    return (await rows(db, f"SELECT count(*) FROM pg_stat_activity WHERE {LISTENS}"))[0][0] >= count


class _Where:
    def __init__(self, nats_url: str, database_url: str) -> None:
        self.nats_url, self.database_url = nats_url, database_url
