"""One of ten people is erased while the others talk; none of their words remain, and other data is unchanged."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.key_rings import KEK
from helpers.personal_events import conversation, secret, secrets
from helpers.sample_events import DERIVED, event, turn
from helpers.servers import eventually, rows
from helpers.stage import Stage, on_stage
from pydantic import SecretStr

from turnlog.agent.answering.thread_context import Transcripts
from turnlog.agent.conversations.sessions.sessions import Sessions
from turnlog.agent.operations.tailing import tail
from turnlog.agent.privacy.erasure import erase as erasing
from turnlog.agent.privacy.erasure.erasure_plan import Plan
from turnlog.agent.privacy.erasure.erasure_receipt import Receipt
from turnlog.agent.privacy.erasure.event_scan import OnProgress
from turnlog.agent.privacy.erasure.scanning import Scan, scan_buckets, scan_files, scan_stream, scan_tables
from turnlog.agent.privacy.erasure.string_search import SearchStrings
from turnlog.agent.privacy.personal_data import erase_person, plan_erasure
from turnlog.agent.recall.embedding.pending import pending_chunks, pending_count
from turnlog.agent.settings import Settings
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.contracts import ForkedSummary, SummaryWritten, ThreadForked, UsageMetered
from turnlog.events.log import Log
from turnlog.events.subjects import publish_subject
from turnlog.events.tasks import pause
from turnlog.projectors.models.conversation.message import thread_messages
from turnlog.projectors.models.conversation.thread_lookup import thread_overview
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.models.store.lookup import memories_of
from turnlog.projectors.models.store.projection import store_thread
from turnlog.projectors.rebuild.rebuild import rebuild_several

pytestmark = pytest.mark.slow

PEOPLE = [f"{name}.{n}@example.org" for n, name in enumerate(("ann", "bob", "cem", "dan", "eve", "fay", "gil"), 1)]
PEOPLE += ["李雷", "hal", "ivy"]
ERASED, OTHERS, TURNS = PEOPLE[0], PEOPLE[1:], 17
TABLES = sorted(
    {table.name for projection in PROJECTIONS for table in projection.tables if "thread_id" in table.columns}
)


@contextlib.contextmanager
def quiet(label: str) -> Iterator[OnProgress]:
    yield lambda done, total: None


@pytest.fixture
async def stage(home: Path) -> AsyncIterator[Stage]:
    async with on_stage(Settings(home=home, nats_url=None, database_url=None), ["projectors", "analytics"]) as opened:
        yield opened


@pytest.fixture
async def room(tmp_path: Path, nats_url: str, database_url: str) -> AsyncIterator[Stage]:
    """Yields a stage on external servers, whose files turnlog does not see."""
    settings = Settings(home=tmp_path, nats_url=nats_url, database_url=database_url, kek=SecretStr(KEK))
    async with on_stage(settings, ["projectors"]) as opened:
        yield opened


async def plan_of(stage: Stage, user: str = ERASED, strings: Sequence[str] = ()) -> Plan:
    reach = erasure_reach(stage.runtime.settings)
    return await plan_erasure(stage.runtime, "default", user, reach, strings=strings)


async def erase(stage: Stage, user: str = ERASED, strings: Sequence[str] = ()) -> Receipt:
    plan = await plan_of(stage, user, strings)
    return await erase_person(stage.runtime, plan, erasure_reach(stage.runtime.settings))


async def everything(stage: Stage, where: str = "true", *params: Any) -> dict[str, list[str]]:
    """Returns the rows of each table as text."""
    query = "SELECT t::text FROM {} t WHERE " + where + " ORDER BY 1"
    async with stage.runtime.pool.connection() as conn:
        return {name: [text for (text,) in await rows(conn, query.format(name), *params)] for name in TABLES}


async def of_the_others(stage: Stage) -> dict[str, list[str]]:
    return await everything(stage, "thread_id NOT LIKE 'live-%%' AND thread_id <> ALL(%s)", threads_of(ERASED))


def threads_of(user: str) -> list[str]:
    return [f"talk-{user}", f"memories/{user}", store_thread(memories_of(user))]


async def traffic(stage: Stage, stop: asyncio.Event) -> int:
    """Lets the other nine people talk with short pauses, so that the machine is not overloaded; returns the number of
    turns."""
    said = 0
    while not stop.is_set():
        await stage.runtime.log.append_many([turn(f"{u} goes on {said}", thread=f"live-{u}", user=u) for u in OTHERS])
        said += 1
        await pause(stop, 0.1)
    return said


async def hits(stage: Stage, strings: Sequence[str]) -> dict[str, int]:
    """Returns where the strings are found, by an independent search."""
    scan, search_strings = Scan(), SearchStrings(strings)
    async with stage.runtime.pool.connection() as conn:
        await scan_tables(conn, search_strings, scan, lambda done, total: None)
    await scan_buckets(stage.runtime.log, search_strings, scan)
    await scan_stream(stage.runtime.log, search_strings, scan, lambda done, total: None)
    files = [("file", path) for path in stage.runtime.settings.home.rglob("*") if path.is_file()]
    kept = [file for file in files if "postgres" not in file[1].parts]
    scan_files(kept, search_strings, scan, lambda done, total: None)
    return scan.hits


@pytest.mark.nightly
async def test_one_of_ten_is_erased_while_the_others_talk(stage: Stage) -> None:
    runtime = stage.runtime
    stories = [conversation(user, TURNS, minutes) for minutes, user in enumerate(PEOPLE)]
    interleaved = [event for part in zip(*stories, strict=True) for event in part]
    half = len(interleaved) // 2
    old = await Log.connect(runtime.nats_url, runtime.settings.stream)  # without keys, like an old version
    await old.append_many(interleaved[:half])
    await old.close()
    await runtime.log.append_many(interleaved[half:])
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        await conn.execute("ANALYZE")
    strings = secrets(ERASED, TURNS)[:200]
    assert len(SearchStrings(strings).strings) == 200
    before, usage = await of_the_others(stage), await stage.rows("SELECT t::text FROM usage t ORDER BY 1")
    places = await hits(stage, strings)
    assert {"table turnlog.messages", "table turnlog.memories", "Postgres's statistics (pg_stats)"} <= places.keys()
    assert any(".blk" in location for location in places)

    async with Sessions(runtime.log, runtime.pool, "default") as sessions:
        await sessions.get(f"talk-{ERASED}")
        stop = asyncio.Event()
        talking = asyncio.create_task(traffic(stage, stop))
        try:
            receipt = await erase(stage, strings=strings)
        finally:
            stop.set()
        assert await talking > 0

    assert receipt.hits == {} and receipt.data.hits == 0
    assert receipt.data.strings_searched >= 200
    assert receipt.data.counts["events overwritten"] > TURNS
    await runtime.wait_until_projected()
    assert await hits(stage, strings) == {}
    assert await of_the_others(stage) == before
    assert await stage.rows("SELECT t::text FROM usage t ORDER BY 1") == usage
    live = await everything(stage)
    assert not any(line for lines in live.values() for line in lines if f"talk-{ERASED}" in line)

    await rebuild_several(runtime.log, runtime.database_url, PROJECTIONS)
    assert await everything(stage) == live
    shown = [line.text() async for line in tail(runtime, 1, follow=False, thread=f"talk-{ERASED}")]
    assert sum('"content": "[erased]"' in line for line in shown) > TURNS // 3
    assert "turn_recorded" in shown[-2] or "erased" in shown[-1]


async def test_an_erasure_that_was_killed_anywhere_is_run_again_to_the_same_end(
    room: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, step in enumerate(["_clear_caches", "_append_erased", "_overwrite", "_vacuum"]):
        user = f"user-{number}"
        await room.runtime.log.append_many(conversation(user, 2))

        async def die(*args: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(erasing, step, die)
            await erase(room, user)
        receipt = await erase(room, user, secrets(user, 2))
        assert receipt.hits == {}, step
        assert await hits(room, secrets(user, 2)) == {}, step
        erased = [event for event in await room.events(f"talk-{user}") if event.type == "erased"]
        assert len(erased) == 1, step


async def test_only_the_erased_persons_words_leave_a_shared_thread(room: Stage) -> None:
    log = room.runtime.log
    await log.append_many([turn("Hello from Bob in the room.", thread="room", user="bob")])
    await log.append_many(conversation("ann", 2))
    await log.append(turn(secret("ann", "said", 7), thread="room", user="ann"))
    await log.append(turn("Bob again, about the weather.", thread="room", user="bob"))
    await room.runtime.wait_until_projected()
    bobs = await room.rows("SELECT t::text FROM messages t WHERE user_id = 'bob' ORDER BY seq")
    receipt = await erase(room, "ann")
    assert receipt.hits == {} and receipt.data.counts["shared threads rebuilt"] == 1
    assert await room.rows("SELECT t::text FROM messages t WHERE user_id = 'bob' ORDER BY seq") == bobs
    said = await room.rows("SELECT content FROM messages WHERE thread_id = 'room' ORDER BY seq")
    assert [content for (content,) in said] == [
        "Hello from Bob in the room.",
        "[erased]",
        "Bob again, about the weather.",
    ]
    assert await hits(room, [secret("ann", "said", 7)]) == {}


async def test_a_second_erasure_counts_only_what_it_destroys(room: Stage) -> None:
    await room.runtime.log.append_many([turn("Hello from Bob in the room.", thread="room", user="bob")])
    await room.runtime.log.append(turn(secret("ann", "said", 7), thread="room", user="ann"))
    first = await erase(room, "ann")
    assert (first.data.keys_destroyed, first.data.counts["rows of messages"]) == (1, 1)
    async with room.runtime.pool.connection() as conn:
        waiting = await pending_chunks(conn, "small", 10)
        assert [person.user for person in waiting] == ["bob"], "a vector of nothing would make ann a new key"
        assert await pending_count(conn, "small") == 1
    second = await erase(room, "ann")
    assert (second.data.keys_destroyed, second.data.counts) == (0, {"shared threads rebuilt": 1})


async def test_new_turns_of_an_erased_user_are_visible(room: Stage) -> None:
    await room.runtime.log.append_many(conversation("ann", 2))
    await erase(room, "ann")
    await room.runtime.log.append(turn("Ann is back again.", thread="talk-ann", user="ann"))
    await room.runtime.wait_until_projected()
    assert await room.rows("SELECT content FROM messages WHERE thread_id = 'talk-ann'") == [("Ann is back again.",)]


async def test_words_that_others_also_said_are_not_hits(room: Stage) -> None:
    shared = "We both said this very sentence."
    for user in ("ann", "bob"):
        await room.runtime.log.append(turn(shared, thread=user, user=user))
    plan = await plan_of(room, "ann")
    assert shared not in plan.search_strings.strings
    assert (await erase(room, "ann")).hits == {}
    assert await room.rows("SELECT content FROM messages") == [(shared,)]


async def test_late_results_of_a_model_are_erased_too(room: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.runtime.log.append_many(conversation("ann", 2))
    late = SummaryWritten(summary=secret("ann", "summary", 9), message_count=2, covered_seq=2, derivation=DERIVED)
    purge = erasing._purge_buckets

    async def told_late(*args: Any) -> None:
        await room.runtime.log.append_many([event(late, "talk-ann", user="ann"), turn("new", thread="talk-ann")])
        await purge(*args)

    monkeypatch.setattr(erasing, "_purge_buckets", told_late)
    receipt = await erase(room, "ann", [late.summary])
    assert receipt.hits == {} and receipt.data.counts["late results overwritten"] == 1
    assert await room.rows("SELECT summary FROM conversation_summaries WHERE thread_id = 'talk-ann'") == []
    assert await room.rows("SELECT content FROM messages WHERE thread_id = 'talk-ann'") == [("new",)]


async def test_a_fork_by_somebody_else_stays_without_its_derived_data(room: Stage) -> None:
    log = room.runtime.log
    first = await log.append_many([turn("Bob was here.", user="bob"), turn(secret("ann", "said"), user="ann")])
    derived = ForkedSummary(summary=secret("ann", "summary"), message_count=2, covered_seq=first[-1].seq, model="m")
    fork = ThreadForked(parent="t", at_seq=first[-1].seq, label="Bob's fork", message_count=2, summary=derived)
    await log.append_many([event(fork, "f", user="bob"), turn("Bob in his fork.", thread="f", user="bob")])
    assert (await erase(room, "ann", [derived.summary])).hits == {}
    async with room.runtime.pool.connection() as conn:
        shown = [message.content for message in await thread_messages(conn, "default", "f")]
    assert shown == ["Bob was here.", "[erased]", "Bob in his fork."]
    assert await room.rows("SELECT label, message_count FROM thread_activity WHERE thread_id = 'f'") == [
        ("Bob's fork", 3)
    ]
    assert await hits(room, [derived.summary]) == {}


async def test_a_parked_thread_is_erased_too(room: Stage) -> None:
    subject = publish_subject("default", "talk-ann", "turn_recorded")
    bad = json.dumps({"specversion": "1.0", "type": "turnlog.turn_recorded", "data": {"said": secret("ann", "said")}})
    await room.runtime.log.append(turn("Before the bad one.", thread="talk-ann", user="ann"))
    await room.runtime.log.nc.jetstream().publish(subject, bad.encode())
    await room.runtime.log.append(turn(secret("ann", "said", 1), thread="talk-ann", user="ann"))
    receipt = await erase(room, "ann", [secret("ann", "said"), secret("ann", "said", 1)])
    assert receipt.hits == {}
    assert await room.rows("SELECT count(*) FROM messages WHERE thread_id = 'talk-ann'") == [(0,)]
    assert await room.rows("SELECT count(*) FROM dead_letters WHERE status = 'parked'") == [(0,)]


async def test_parked_events_of_a_sum_over_threads_do_not_stop_an_erasure(room: Stage) -> None:
    """Tests an event that the erasure overwrites, and one that waits behind it."""
    log, used = room.runtime.log, UsageMetered(purpose="answer", provider="local", model="m", tokens_in=3)
    subject = publish_subject("default", "talk-ann", "usage_metered")
    bad = json.dumps({"specversion": "1.0", "type": "turnlog.usage_metered", "data": {"said": secret("ann", "said")}})
    await log.append(turn("It is Ann.", thread="talk-ann", user="ann"))
    await log.nc.jetstream().publish(subject, bad.encode())
    await log.append(event(used, "talk-ann", user="ann"))
    await room.runtime.wait_until_projected()
    parked = "SELECT projection FROM dead_letters WHERE status = 'parked'"
    assert await room.rows(parked) == [("usage",)] * 2
    assert (await erase(room, "ann", [secret("ann", "said")])).hits == {}
    assert await room.rows(parked) == []
    assert await room.rows("SELECT tokens_in FROM usage") == [(3,)]
    assert (await erase(room, "ann")).hits == {}


async def test_caches_of_other_processes_are_cleared(room: Stage) -> None:
    transcripts = Transcripts()
    await room.runtime.log.append_many(conversation("ann", 2))
    await room.runtime.wait_until_projected()
    async with room.runtime.pool.connection() as conn:
        now = await thread_overview(conn, "default", "talk-ann")
        assert await transcripts.state(conn, "default", "talk-ann", now)
    await erase(room, "ann")

    async def is_empty() -> bool:
        return not transcripts._threads

    await eventually(is_empty)
