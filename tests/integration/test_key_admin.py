"""Users' keys are rotated, destroyed and rewrapped by another KEK, and processes are notified."""

import asyncio
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.key_rings import KEK, current, find, keks, key_of, store_on
from helpers.own_servers import OwnServers
from helpers.sample_events import text_of, turn
from helpers.servers import eventually, rows
from helpers.stage import Play, player
from pydantic import SecretStr

from turnlog.agent.privacy.keys.kek import InvalidKek, WrongKek, keks_of, make_kek, new_kek
from turnlog.agent.privacy.keys.key_admin import destroy, rewrap, rotate, uses
from turnlog.agent.privacy.keys.key_stream import KeyStream
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened
from turnlog.events.errors import NotFound
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection

pytestmark = pytest.mark.slow

SECRET = "My blood type is AB negative"
# The last query of a listening process: a query for missed changes, or later a check of its connection.
LISTENS = (
    "(query LIKE '%DISTINCT tenant, user_id FROM user_keys%' OR query = 'SELECT 1') "
    "AND datname = current_database() AND pid <> pg_backend_pid()"
)
# Holding this advisory lock delays the deletion of a key's bytes. The trigger does not delay the retirement of the key,
# which comes first.
HELD_BACK = b"""
CREATE FUNCTION held_back() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END';
CREATE TRIGGER held_back BEFORE UPDATE OF wrapped ON user_keys FOR EACH ROW EXECUTE FUNCTION held_back()"""


@pytest.fixture
def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ["projectors"])


async def test_a_foreign_notification_does_not_end_the_listener(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    async with store_on(key_stream, database_url) as store:
        old = await current(store, "ann")
        await eventually(lambda: _listeners(db, 1))
        for payload in ("", "hello", "5", '["ann"]', '[["a"], 7]'):
            await db.execute("SELECT pg_notify('turnlog_keys', %s)", (payload,))
        await destroy(db, key_stream, "default", "ann")

        async def is_forgotten() -> bool:
            return await find(store, "ann", old.id) is None

        await eventually(is_forgotten)


async def test_a_long_backup_of_the_keys_blocks_neither_an_erasure_nor_key_lookups(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    async with store_on(key_stream, database_url) as store, await connect(database_url) as backup:
        await current(store, "ann")
        async with backup.transaction():
            await backup.execute("LOCK TABLE user_keys IN ACCESS SHARE MODE")
            assert await destroy(db, key_stream, "default", "ann") == 1
            assert (await current(store, "bob")).id
        assert await rows(db, "SHOW lock_timeout") == [("0",)]


async def test_after_a_rotation_in_another_process_the_new_key_seals_and_the_old_one_opens(
    play: Play, db: Connection, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    async with play() as stage:
        log = stage.runtime.log
        first = await key_of(log, (await log.append(turn("one", user="ann"))).seq)
        done = await OwnServers(tmp_path, _Where(nats_url, database_url)).turnlog(
            "encryption-key", "rotate", "--user", "ann"
        )
        assert done.code == 0, done.err

        async def is_rotated() -> bool:
            return await key_of(log, (await log.append(turn("two", user="ann"))).seq) != first

        await eventually(is_rotated)
        assert {text_of(event) for event in await stage.events()} == {"one", "two"}
        assert await rows(db, "SELECT count(*), count(retired_at) FROM user_keys") == [(2, 1)]


async def test_a_destroyed_key_soon_opens_nothing_in_any_process(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    async with store_on(key_stream, database_url) as store:
        old = await current(store, "ann")
        bob = await current(store, "bob")
        assert await destroy(db, key_stream, "default", "ann") == 1

        async def is_forgotten() -> bool:
            return await find(store, "ann", old.id) is None

        await eventually(is_forgotten)
        assert (await current(store, "ann")).id != old.id
        assert await current(store, "bob") == bob
    assert await rows(db, "SELECT wrapped, destroyed_at IS NULL FROM user_keys WHERE key_id = %s::uuid", old.id) == [
        (None, False)
    ]
    assert await destroy(db, key_stream, "default", "nobody") == 0


async def test_a_process_that_missed_the_notification_forgets_a_destroyed_key_later(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    async with store_on(key_stream, database_url) as store:
        old = await current(store, "ann")
        await eventually(lambda: _listeners(db, 1))
        await db.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {LISTENS}".encode(),
        )
        await db.execute("UPDATE user_keys SET wrapped = NULL, retired_at = now(), destroyed_at = now()")

        async def is_forgotten() -> bool:
            return await find(store, "ann", old.id) is None

        await eventually(is_forgotten)


async def test_a_process_that_opens_something_while_a_key_is_being_destroyed_forgets_it_too(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    """The process is first notified of the retirement, and reads the retired key from the table again."""
    async with store_on(key_stream, database_url) as store, await connect(database_url) as holder:
        key = await current(store, "ann")
        await eventually(lambda: _listeners(db, 1))
        await db.execute(HELD_BACK)
        await holder.execute("SELECT pg_advisory_lock(1)")

        async def is_retired() -> bool:
            return (await current(store, "ann")).id != key.id

        destroying = asyncio.create_task(destroy(db, key_stream, "default", "ann"))
        await eventually(is_retired)
        assert await find(store, "ann", key.id) is not None
        await holder.execute("SELECT pg_advisory_unlock(1)")
        assert await destroying == 1

        async def is_forgotten() -> bool:
            return await find(store, "ann", key.id) is None

        await eventually(is_forgotten)


async def test_concurrent_rotations_return_different_keys_of_which_one_seals(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    async def rotated() -> str:
        async with await connect(database_url) as conn:
            return await rotate(conn, key_stream, "default", "ann")

    async with store_on(key_stream, database_url) as store:
        await current(store, "ann")
    made = await asyncio.gather(*(rotated() for _ in range(6)))
    [(newest,)] = await rows(db, "SELECT key_id::text FROM user_keys WHERE retired_at IS NULL")
    assert newest in made and len(set(made)) == 6
    assert await rows(db, "SELECT count(*) FROM user_keys") == [(7,)]


async def test_for_a_user_without_a_key_there_is_nothing_to_rotate(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    with pytest.raises(NotFound, match="nothing to rotate"):
        await rotate(db, key_stream, "default", "ann")
    assert await rows(db, "SELECT count(*) FROM user_keys") == [(0,)]
    async with store_on(key_stream, database_url) as store:
        await current(store, "ann")
    await destroy(db, key_stream, "default", "ann")
    with pytest.raises(NotFound, match="nothing to rotate"):
        await rotate(db, key_stream, "default", "ann")
    assert await rows(db, "SELECT count(*) FROM user_keys WHERE destroyed_at IS NULL") == [(0,)]


async def test_a_new_kek_rewraps_the_keys_and_the_old_one_opens_none(
    db: Connection, database_url: str, key_stream: KeyStream
) -> None:
    new = new_kek()
    async with store_on(key_stream, database_url) as store:
        key = await current(store, "ann")
    both = KeyStream(key_stream.nc, keks(new, kek_old=SecretStr(KEK)))
    assert await rewrap(db, both) == 1
    assert await rewrap(db, both) == 0
    async with store_on(key_stream, database_url, new) as store:
        assert (await current(store, "ann")).id == key.id
        sealed = (await current(store, "ann")).cipher.encrypt(bytes(12), b"words", None)
        assert key.cipher.decrypt(bytes(12), sealed, None) == b"words"
    [use] = await uses(db, both.keks)
    assert (use.kek_id, use.users, use.current, use.known) == (both.keks.current.id, 1, 1, True)


@pytest.mark.parametrize("kek", [None, SecretStr(new_kek())], ids=["no KEK", "another KEK"])
async def test_a_wrong_or_missing_kek_is_an_error_at_the_start(
    nats_url: str, database_url: str, play: Play, kek: SecretStr | None
) -> None:
    async with play() as stage:
        await stage.runtime.log.append(turn(SECRET, user="ann"))
    with pytest.raises(WrongKek, match="Set TURNLOG_KEK to that one"):
        async with opened(Settings(nats_url=nats_url, database_url=database_url, kek=kek)):
            pass


async def test_without_a_kek_texts_are_stored_unencrypted_and_every_worker_warns(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async with play(kek=None) as stage:
        await stage.runtime.log.append(turn(SECRET, user="ann"))
        assert SECRET.encode() in (await stage.runtime.log.stored(1)).body
    assert "not encrypted" in caplog.text
    assert "TURNLOG_KEK" in caplog.text


def test_the_data_folder_gets_one_kek_that_only_its_owner_reads(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", database_url=None)
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(make_kek, settings) for _ in range(16)]
        ids = {created.current.id for future in made if (created := future.result())}
    assert len(ids) == 1
    [path] = (tmp_path / "home").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name == "kek"
    configured = keks_of(Settings(home=tmp_path / "home", database_url=None, kek=SecretStr(KEK)))
    assert configured is not None
    assert [kek.id for kek in configured.older] == list(ids)


@pytest.mark.parametrize("text", ["abc", "", "ä" * 32, "A" * 43])
def test_a_malformed_kek_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidKek, match="TURNLOG_KEK is not base64 of 32 bytes") as refused:
        keks_of(Settings(database_url="postgresql://x", kek=SecretStr(text)))
    assert not text or text not in str(refused.value)


def test_an_unreadable_kek_file_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "kek").mkdir()
    with pytest.raises(InvalidKek, match="set TURNLOG_KEK"):
        keks_of(Settings(home=tmp_path, database_url=None))


async def _listeners(db: Connection, count: int) -> bool:
    return (await rows(db, f"SELECT count(*) FROM pg_stat_activity WHERE {LISTENS}"))[0][0] >= count


class _Where:
    def __init__(self, nats_url: str, database_url: str) -> None:
        self.nats_url, self.database_url = nats_url, database_url
