"""The stream of users' keys survives the loss of Postgres, ignores forged keys and keeps no byte of a destroyed key."""

import base64
import json
import re
from pathlib import Path

import pytest
from helpers.key_rings import KEK, destroy_keys, keks, key_of
from helpers.sample_events import text_of, turn
from helpers.servers import parked, rows
from helpers.stage import Play, Stage, player
from pydantic import SecretStr

from turnlog.agent.operations.checkup import _key_waited_for
from turnlog.agent.operations.dead_letters import retry_dead_letters
from turnlog.agent.privacy.keys.kek import new_kek
from turnlog.agent.privacy.keys.key_admin import rewrap
from turnlog.agent.privacy.keys.key_stream import KeyRecord, KeyStream
from turnlog.events.codec import encode
from turnlog.events.contracts import ERASED, Event
from turnlog.events.errors import KeyUnavailable
from turnlog.events.stored import Stored, recorded
from turnlog.events.subjects import KEYS_STREAM, key_subject, publish_subject
from turnlog.projectors.engine.lag import lag
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import thread_messages

pytestmark = pytest.mark.slow

SECRET = "My blood type is AB negative"
PRIVACY = Path(__file__).parents[2] / "docs" / "privacy.md"
FORGED = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ["projectors"])


def sealed_with(key_id: str, event: Event, spaced: bool = False) -> bytes:
    body = {**json.loads(encode(event)), "sealed": base64.b64encode(bytes(40)).decode(), "sealedkey": key_id}
    return json.dumps(body, separators=None if spaced else (",", ":")).encode()


async def forge(stage: Stage, key_id: str, thread: str, spaced: bool = False) -> None:
    """Publishes a forged key directly to NATS, like any client."""
    event = turn("Hello.", user="mallory", thread=thread)
    await stage.runtime.log.nc.publish(
        publish_subject("default", thread, event.type), sealed_with(key_id, event, spaced), headers={}
    )
    await stage.runtime.log.nc.flush()


async def said(db: Connection, thread: str = "t") -> list[object]:
    return [message.content for message in await thread_messages(db, "default", thread)]


def stream_of(stage: Stage) -> KeyStream:
    return KeyStream(stage.runtime.log.nc, keks())


async def on_stream(stage: Stage) -> list[KeyRecord]:
    stream = stream_of(stage)
    return [record async for record in stream.since(0, await stream.head())]


async def no_reactor(name: str, stored: Stored) -> None:
    raise AssertionError(f"sequence {stored.seq} is parked for {name}")


@pytest.mark.parametrize("spaced", [False, True])
async def test_a_key_that_was_never_issued_parks_its_own_thread_only(play: Play, db: Connection, spaced: bool) -> None:
    async with play() as stage:
        await forge(stage, FORGED, "forged", spaced)
        await stage.runtime.log.append_many([turn("later", thread="forged"), turn(SECRET, user="ann")])
        await stage.runtime.wait_until_projected()
        assert await said(db) == [SECRET]
        letters = await parked(db, "messages")
    assert [seq for seq, _, _ in letters] == [1, 2]
    assert [reason for _, reason, _ in letters] == ["poison", "behind"]
    [(error,)] = await rows(db, "SELECT error FROM dead_letters WHERE projection = 'messages' AND seq = 1")
    assert f"key {FORGED} was never issued to user 'mallory'" in error


async def test_a_forged_record_on_the_stream_of_keys_issues_and_destroys_nothing(play: Play, db: Connection) -> None:
    async with play() as stage:
        [done] = await stage.runtime.log.append_many([turn(SECRET, user="ann")])
        mine = json.loads((await stage.runtime.log.stored(done.seq)).body)["sealedkey"]
        other = KeyStream(stage.runtime.log.nc, keks(new_kek()))
        await other.put(
            [KeyRecord(FORGED, "default", "mallory", other.keks.current.wrap(bytes(32), FORGED, "", ""), "")]
        )
        await other.put([KeyRecord(mine, "default", "ann", None, "")])
        await stage.runtime.log.nc.jetstream().publish(key_subject(mine), b"[" * 100)
        await forge(stage, FORGED, "forged")
    await db.execute("DELETE FROM user_keys")
    async with play() as stage:
        await stage.runtime.wait_until_projected()
        assert await said(db) == [SECRET]
        assert [seq for seq, _, _ in await parked(db, "messages")] == [2]
        assert [text_of(event) for event in await stage.events()] == [SECRET]


async def test_a_sealed_event_does_not_block_a_log_without_encryption(play: Play, db: Connection) -> None:
    async with play(kek=None) as stage:
        await forge(stage, FORGED, "forged")
        await stage.runtime.log.append(turn("Hello."))
        await stage.runtime.wait_until_projected()
        assert await said(db) == ["Hello."]
        assert [seq for seq, _, _ in await parked(db, "messages")] == [1]


async def test_a_running_process_gets_a_row_that_the_table_lost_from_the_stream(play: Play, db: Connection) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([turn(f"I am {user}.", user=user) for user in ("ann", "bob", "cho")])
        await stage.runtime.log.append(turn("Forget me.", user="dan"))
        await destroy_keys(stage.runtime.log, db, "dan")
    async with play() as stage:
        await db.execute("DELETE FROM user_keys WHERE user_id IN ('bob', 'dan')")
        read = [text_of(event) for event in await stage.events()]
        assert read == ["I am ann.", "I am bob.", "I am cho.", ERASED]
        assert await rows(db, "SELECT user_id, wrapped IS NULL FROM user_keys ORDER BY user_id") == [
            ("ann", False),
            ("bob", False),
            ("cho", False),
            ("dan", True),
        ]


async def test_while_the_stream_is_missing_a_key_that_the_table_lacks_is_waited_for(play: Play, db: Connection) -> None:
    async with play() as stage:
        done = await stage.runtime.log.append(turn(SECRET, user="ann"))
        await stage.runtime.wait_until_projected()
        [row] = await rows(db, "DELETE FROM user_keys RETURNING key_id, tenant, user_id, wrapped, kek_id")
    async with play("agent") as stage:
        await stage.runtime.log.nc.jetstream().delete_stream(KEYS_STREAM)
        await db.execute("DELETE FROM user_keys")
        with pytest.raises(KeyUnavailable, match=KEYS_STREAM):
            recorded(await stage.runtime.log.stored(done.seq))
        await db.execute("DELETE FROM messages")
        await db.execute("UPDATE projection_positions SET position = 0, updated_at = now() - interval '1 hour'")
        waits = await _key_waited_for(stage.runtime, await lag(stage.runtime.log, db, stalled_after_s=0.0))
        assert f"the event at sequence {done.seq} waits for its key" in (waits or "")
    await db.execute(
        "INSERT INTO user_keys (key_id, tenant, user_id, wrapped, kek_id) VALUES (%s, %s, %s, %s, %s)", row
    )
    async with play() as stage:
        await stage.runtime.wait_until_projected()
        assert await said(db) == [SECRET]
        assert [record.id for record in await on_stream(stage)] == [str(row[0])]


async def test_an_empty_database_gets_every_key_back_before_anything_is_read(
    play: Play, db: Connection, nats_url: str, empty_database_url: str
) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([turn(SECRET, user="ann"), turn("I am Bob.", user="bob")])
        await destroy_keys(stage.runtime.log, db, "bob")
    async with player(nats_url, empty_database_url, ["projectors"])() as stage:
        await stage.runtime.wait_until_projected()
        messages = await stage.rows("SELECT content #>> '{}' FROM messages ORDER BY seq")
        assert messages == [(SECRET,), (ERASED,)]
        await stage.runtime.log.append(turn("What now?", user="ann"))
        assert [text_of(event) for event in await stage.events()] == [SECRET, ERASED, "What now?"]


async def test_keys_from_before_there_was_a_stream_of_them_are_copied_at_the_start(play: Play, db: Connection) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([turn(SECRET, user="ann"), turn("I am Bob.", user="bob")])
        await destroy_keys(stage.runtime.log, db, "bob")
        await stage.runtime.log.nc.jetstream().delete_stream(KEYS_STREAM)
    await db.execute("UPDATE user_keys SET seq = NULL")
    async with play() as stage:
        copied = {record.user: record.wrapped is None for record in await on_stream(stage)}
    assert copied == {"ann": False, "bob": True}
    assert await rows(db, "SELECT count(*) FROM user_keys WHERE seq IS NULL") == [(0,)]


async def test_a_stream_that_was_lost_or_is_an_older_copy_is_completed_from_the_table(
    play: Play, db: Connection
) -> None:
    async with play() as stage:
        await stage.runtime.log.append(turn(SECRET, user="ann"))
        [issued] = await on_stream(stage)
        await stage.runtime.log.append(turn("I am Bob.", user="bob"))
        await destroy_keys(stage.runtime.log, db, "ann")
        js = stage.runtime.log.nc.jetstream()
        await js.delete_stream(KEYS_STREAM)
        await stream_of(stage).create(stage.runtime.settings.stream)
        await stream_of(stage).put([issued])
    async with play() as stage:
        assert {record.user: record.wrapped is None for record in await on_stream(stage)} == {"ann": True, "bob": False}
        assert [text_of(event) for event in await stage.events()] == [ERASED, "I am Bob."]


async def test_a_key_that_was_destroyed_stays_so_when_its_record_comes_again(
    play: Play, db: Connection, nats_url: str, empty_database_url: str
) -> None:
    async with play() as stage:
        await stage.runtime.log.append(turn(SECRET, user="ann"))
        [issued] = await on_stream(stage)
        await destroy_keys(stage.runtime.log, db, "ann")
        await stream_of(stage).put([issued])
    async with player(nats_url, empty_database_url, ["projectors"])() as stage:
        assert [text_of(event) for event in await stage.events()] == [ERASED]
        assert [record.wrapped for record in await on_stream(stage)] == [None]


async def test_a_key_that_cannot_be_put_on_the_stream_is_not_used(play: Play, db: Connection) -> None:
    async with play() as stage:
        js = stage.runtime.log.nc.jetstream()
        await js.delete_stream(KEYS_STREAM)
        with pytest.raises(KeyUnavailable, match="Nothing was stored"):
            await stage.runtime.log.append(turn(SECRET, user="ann"))
        assert await stage.runtime.log.head() == 0
    assert await rows(db, "SELECT count(*) FROM user_keys") == [(0,)]


async def test_after_a_change_of_the_kek_the_stream_has_nothing_under_the_old_one(
    play: Play, db: Connection, nats_url: str, empty_database_url: str
) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([turn(SECRET, user="ann"), turn("I am Bob.", user="bob")])
        await destroy_keys(stage.runtime.log, db, "bob")
    new = new_kek()
    async with play(kek=SecretStr(new), kek_old=SecretStr(KEK)) as stage:
        assert await rewrap(db, KeyStream(stage.runtime.log.nc, keks(new, kek_old=SecretStr(KEK)))) == 1
        assert await on_stream(stage) == []
    async with player(nats_url, empty_database_url, ["projectors"], kek=SecretStr(new))() as stage:
        assert [text_of(event) for event in await stage.events()] == [SECRET, ERASED]


async def test_an_older_copy_of_the_table_brings_no_destroyed_key_back(play: Play, db: Connection) -> None:
    async with play() as stage:
        await stage.runtime.log.append(turn(SECRET, user="ann"))
        await db.execute("CREATE TABLE older AS TABLE user_keys")
        await destroy_keys(stage.runtime.log, db, "ann")
    await db.execute("DELETE FROM user_keys")
    await db.execute("INSERT INTO user_keys SELECT * FROM older")
    async with play() as stage:
        assert [text_of(event) for event in await stage.events()] == [ERASED]
    assert await rows(db, "SELECT wrapped, destroyed_at IS NULL FROM user_keys") == [(None, False)]


async def test_a_key_that_both_copies_lost_can_be_given_up_as_the_documentation_says(
    play: Play, db: Connection
) -> None:
    async with play() as stage:
        done = await stage.runtime.log.append(turn(SECRET, user="ann"))
        lost = await key_of(stage.runtime.log, done.seq)
        await stage.runtime.wait_until_projected()
        await stage.runtime.log.nc.jetstream().purge_stream(KEYS_STREAM, subject=key_subject(lost))
    await db.execute("DELETE FROM user_keys")
    await db.execute("DELETE FROM messages")
    await db.execute("UPDATE projection_positions SET position = 0")
    async with play() as stage:
        await stage.runtime.wait_until_projected()
        assert [seq for seq, _, _ in await parked(db, "messages")] == [done.seq]
        [block] = re.findall(r"^```sql\n(INSERT .*?)^```$", PRIVACY.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        await db.execute(block.replace("<key>", lost).replace("<user>", "ann").encode())
    async with play() as stage:
        await retry_dead_letters(stage.runtime, no_reactor)
        assert await said(db) == [ERASED]
        assert [record.wrapped for record in await on_stream(stage)] == [None]
