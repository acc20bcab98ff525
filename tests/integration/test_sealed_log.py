"""A log with keys is unreadable on disk, readable for all of turnlog, and erased with a user's key."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from helpers.every_contract import EVERY_CONTRACT
from helpers.key_rings import KeysAtHand, destroy_keys
from helpers.nightly import examples
from helpers.random_events import MEMORIES, SHORT_TERM
from helpers.sample_events import event, text_of, turn
from helpers.servers import eventually, parked, rows, running_projector
from helpers.stage import Play, Stage, on_stage, player
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_equivalence import DERIVED_EVENTS, THREADS, TURNS, Make

from turnlog.agent.operations.tailing import line_at
from turnlog.agent.settings import Settings
from turnlog.agent.tables import metadata
from turnlog.events.codec import encode
from turnlog.events.contracts import ARCHIVING, ERASED, REMOVALS, Event, ThreadOpened, TurnRecorded
from turnlog.events.errors import InvalidEvent
from turnlog.events.log import Log
from turnlog.events.read import read_to
from turnlog.events.stored import recorded
from turnlog.events.stream import StreamOptions
from turnlog.events.subjects import STORED_PREFIX, publish_subject
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import thread_messages
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.rebuild import rebuild_several

pytestmark = pytest.mark.slow

SECRET = "My blood type is AB negative, 我是熊猫血"
WORDS = ("essay", "申请", "headaches", "头晕", "Ann plans", "trip", "Yale", "耶鲁", "tea", "茶")


@pytest.fixture
def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ["projectors"])


@asynccontextmanager
async def log_with(nats_url: str, keys: KeysAtHand) -> AsyncIterator[Log]:
    log = await Log.connect(nats_url, StreamOptions(), keyring=keys)
    try:
        yield log
    finally:
        await log.close()


async def bodies(log: Log) -> bytes:
    return b"\n".join([stored.body async for stored in read_to(log.nc, [f"{STORED_PREFIX}.>"], 1, await log.head())])


async def contents(stage: Stage, thread: str = "t") -> list[object]:
    async with stage.runtime.pool.connection() as conn:
        return [message.content for message in await thread_messages(conn, "default", thread)]


async def erase(stage: Stage, user: str) -> int:
    async with stage.runtime.pool.connection() as conn:
        return await destroy_keys(stage.runtime.log, conn, user)


async def every_text(db: Connection) -> str:
    """Returns all rows of the read models as text."""
    tables = [table.name for projection in PROJECTIONS for table in projection.tables]
    return "\n".join([text for name in tables for (text,) in await rows(db, f"SELECT t::text FROM {name} t")])


async def test_stream_files_contain_texts_without_a_user_and_no_texts_of_a_user(tmp_path: Path) -> None:
    home = tmp_path / "home"
    nobody = "The weather of nobody in particular"
    async with on_stage(Settings(home=home, nats_url=None, database_url=None), ["projectors"]) as stage:
        await stage.runtime.log.append(turn(nobody, thread="n"))
        await stage.runtime.log.append_many([turn(SECRET, user="ann"), event(ThreadOpened(label=SECRET), user="ann")])
        await stage.runtime.wait_until_projected()
        assert await contents(stage) == [SECRET]
    files = [path.read_bytes() for path in (home / "nats").rglob("*") if path.is_file()]
    assert any(nobody.encode() in content for content in files)
    assert not any(part.encode() in content for part in SECRET.split(", ") for content in files)


async def test_reactors_agent_and_lookups_read_sealed_events(play: Play) -> None:
    async with play("projectors", "analytics") as stage:
        done = await stage.runtime.log.append(turn(SECRET, user="ann", tokens_in=3))
        await stage.runtime.wait_until_projected()
        assert [text_of(event) for event in await stage.events()] == [SECRET]
        assert SECRET.encode() not in await bodies(stage.runtime.log)
        line = await line_at(stage.runtime.log, done.seq)
        assert line.document()["event"]["data"]["content"] == SECRET

        async def is_counted() -> bool:
            counts = await stage.rows("SELECT characters, tokens_in FROM turnlog_analytics.hourly WHERE role = 'user'")
            return counts == [(len(SECRET), 3)]

        await eventually(is_counted)


async def test_a_nul_in_sealed_words_is_shown_as_it_is_in_clear_ones(play: Play) -> None:
    async with play() as stage:
        await stage.runtime.log.append(turn("a\0b", user="ann"))
        await stage.runtime.wait_until_projected()
        assert await contents(stage) == ["a\ufffdb"]


async def test_after_the_key_is_destroyed_everything_rebuilds_and_says_erased(play: Play) -> None:
    async with play() as stage:
        every = [data for data in EVERY_CONTRACT if data.type not in REMOVALS | ARCHIVING]
        mine = [event(data, "t", minutes, user="ann") for minutes, data in enumerate(every)]
        await stage.runtime.log.append_many([turn(SECRET, user="ann", tokens_in=3), *mine])
        await stage.runtime.log.append(turn("I am Bob.", user="bob", thread="b"))
        await stage.runtime.wait_until_projected()
        assert await erase(stage, "ann") == 1
        await rebuild_several(stage.runtime.log, stage.runtime.database_url, PROJECTIONS)
        assert (await contents(stage))[:1] == [ERASED]
        assert await contents(stage, "b") == ["I am Bob."]
        async with stage.runtime.pool.connection() as conn:
            assert "blood" not in await every_text(conn)
        assert await stage.rows("SELECT tokens_in FROM messages WHERE thread_id = 't' AND seq = 1") == [(3,)]


async def test_turns_after_an_erasure_are_sealed_with_a_new_key(play: Play) -> None:
    async with play() as stage:
        await stage.runtime.log.append(turn(SECRET, user="ann"))
        await erase(stage, "ann")
        await stage.runtime.log.append(turn("I am back.", user="ann"))
        await stage.runtime.wait_until_projected()
        assert await contents(stage) == [SECRET, "I am back."]  # the first turn was projected before
        keys = {json.loads(body)["sealedkey"] for body in (await bodies(stage.runtime.log)).splitlines()}
        assert len(keys) == 2
        assert [text_of(event) for event in await stage.events()] == [ERASED, "I am back."]


@settings(
    max_examples=examples(18),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(st.tuples(THREADS, TURNS | DERIVED_EVENTS | SHORT_TERM | MEMORIES), min_size=5, max_size=40))
async def test_a_rebuild_without_users_keys_completes_and_shows_none_of_their_words(
    nats_url: str, db: Connection, database_url: str, made: list[tuple[str, Make]]
) -> None:
    keys = KeysAtHand()
    async with log_with(nats_url, keys) as log:
        await log.append_many([make(thread).model_copy(update={"user": "ann"}) for thread, make in made])
        keys.destroyed = True
        await rebuild_several(log, database_url, PROJECTIONS)
    texts = await every_text(db)
    assert [word for word in WORDS if word in texts] == []


async def test_an_event_whose_key_is_unavailable_waits_and_is_neither_parked_nor_skipped(
    nats_url: str, db: Connection, database_url: str
) -> None:
    keys = KeysAtHand()
    async with log_with(nats_url, keys) as log:
        await log.append_many([turn("before"), turn(SECRET, user="ann"), turn("after")])
        keys.away = True
        async with running_projector(log, database_url) as runner:

            async def is_waiting() -> bool:
                return "KeyUnavailable" in (runner.last_error or "")

            await eventually(is_waiting)
            assert await parked(db, "messages") == []
            assert [message.content for message in await thread_messages(db, "default", "t")] == ["before"]
            keys.away = False

            async def is_applied() -> bool:
                return len(await thread_messages(db, "default", "t")) == 3

            await eventually(is_applied)
        assert await parked(db, "messages") == []


async def test_an_event_with_a_forged_seal_is_parked_and_reported(
    nats_url: str, db: Connection, database_url: str
) -> None:
    keys = KeysAtHand()
    async with log_with(nats_url, keys) as log:
        document = json.loads(encode(turn(SECRET, user="ann"), keys))
        moved = json.dumps({**document, "id": str(turn().id)}).encode()
        await log.nc.jetstream().publish(publish_subject("default", "t", "turn_recorded"), moved)
        async with running_projector(log, database_url):

            async def is_parked() -> bool:
                return await parked(db, "messages") == [(1, "poison", "parked")]

            await eventually(is_parked)
    [(error,)] = await rows(db, "SELECT error FROM dead_letters WHERE projection = 'messages'")
    assert "does not open" in error


async def test_a_log_without_keys_reads_no_sealed_event_and_names_the_variable(nats_url: str, log: Log) -> None:
    async with log_with(nats_url, KeysAtHand()) as other:
        await other.append(turn(SECRET, user="ann"))
    with pytest.raises(InvalidEvent, match="no keys without TURNLOG_KEK"):
        [recorded(stored) async for stored in log.read_stored("default", "t")]


async def test_events_from_before_sealing_are_still_read(nats_url: str, log: Log) -> None:
    old = turn("said long ago", user="ann")
    await log.append(old)
    async with log_with(nats_url, KeysAtHand(destroyed=True)) as other:
        [read_back] = [stored.event async for stored in other.read_thread("default", "t")]
    assert read_back == old
    assert isinstance(read_back, Event) and isinstance(read_back.data, TurnRecorded)


def test_every_table_of_a_projection_is_searched() -> None:
    assert {table.name for projection in PROJECTIONS for table in projection.tables} <= set(metadata.tables)
