"""Hostile events on the log are parked and reported, and every reader of the log continues."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from helpers.erased_users import erase
from helpers.hostile_messages import forge
from helpers.personal_events import conversation, secret
from helpers.sample_events import MAY_8, event, turn
from helpers.stage import Stage, on_stage

from turnlog.agent.operations.dead_letters import show_dead_letter
from turnlog.agent.operations.importers import Defaults
from turnlog.agent.operations.importing import ImportRequest, import_conversations, prepare_import
from turnlog.agent.operations.tailing import tail
from turnlog.agent.privacy.personal_data import plan_erasure
from turnlog.agent.settings import Settings
from turnlog.consumers.cli.exporting import write_user
from turnlog.consumers.erasing import erasure_reach
from turnlog.consumers.workers.analytics import analytics
from turnlog.events.append import FEW
from turnlog.events.codec import encode
from turnlog.events.contracts import ArchivedEvent, Erased, Event, ThreadArchived, ThreadRestored, UsageMetered
from turnlog.events.errors import NotFound
from turnlog.events.progress import no_progress
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.registry import BY_NAME, PROJECTIONS
from turnlog.projectors.rebuild.rebuild import rebuild_several
from turnlog.projectors.rebuild.verify import verify_several

pytestmark = pytest.mark.slow

DEEP = b'{"data":' + b"[" * 10_000
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "user-export.schema.json").read_text("utf-8"))


@pytest.fixture
async def stage(nats_url: str, database_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """Yields a stage without keys, so that an envelope can be changed by hand."""
    settings = Settings(nats_url=nats_url, database_url=database_url, home=tmp_path)
    async with on_stage(settings, ["projectors"]) as opened:
        yield opened


async def put(stage: Stage, subject: str, body: bytes) -> int:
    """Publishes like any NATS client and returns the sequence."""
    return (await stage.runtime.log.nc.jetstream().publish(f"turnlog.{subject}", body)).seq


def forged(original: Event, **changed: Any) -> bytes:
    """Returns the event's envelope with changed attributes."""
    return json.dumps({**json.loads(encode(original)), **changed}).encode()


async def parked(stage: Stage) -> set[int]:
    await stage.runtime.wait_until_projected()
    return {seq for (seq,) in await stage.rows("SELECT seq FROM dead_letters WHERE status = 'parked'")}


@pytest.mark.parametrize("count", [1, 2, FEW + 1])
async def test_ids_first_published_on_another_thread_are_not_duplicates(stage: Stage, count: int) -> None:
    log, events = stage.runtime.log, [turn(f"honest {number}") for number in range(count)]
    for original in events[::2]:
        await forge(log, original.model_copy(update={"thread": "forged"}))
    assert [done.duplicate for done in await log.append_many(events)] == [False] * count
    assert [done.duplicate for done in await log.append_many(events)] == [True] * count
    assert not await log.append_atomic(events)
    await stage.twice(events[0])
    assert await parked(stage) == set()
    forged_too = Counter({"t": count, "forged": (count + 1) // 2})
    assert Counter(thread for (thread,) in await stage.rows("SELECT thread_id FROM messages")) == forged_too
    await rebuild_several(log, stage.runtime.database_url, PROJECTIONS)
    assert Counter(thread for (thread,) in await stage.rows("SELECT thread_id FROM messages")) == forged_too


async def test_an_import_is_complete_although_its_ids_were_published_on_another_thread(
    stage: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "said.jsonl"
    file.write_text('{"role": "user", "content": "one"}\n{"role": "user", "content": "two"}\n')
    request = ImportRequest(file, None, Defaults(tenant="default", thread="t"), embed=False)
    for batch in prepare_import(request).batches:
        for original in batch:
            await forge(stage.runtime.log, original.model_copy(update={"thread": "forged"}))
    await stage.runtime.wait_until_projected()
    for new, known in ((2, 0), (0, 2)):
        nothing = (no_progress, no_progress, no_progress)
        report = await import_conversations(stage.runtime, prepare_import(request), *nothing)
        assert (report.turns, report.known) == (new, known)


async def test_ids_noted_without_their_thread_are_duplicates_in_every_thread(stage: Stage) -> None:
    """The ids were noted before an upgrade."""
    first = turn("first")
    await stage.runtime.log.append(first)
    await stage.runtime.wait_until_projected()
    moved = (
        "WITH gone AS (DELETE FROM event_ids RETURNING partition, event_id, seq) INSERT INTO event_ids_of_any_thread "
    )
    await stage.rows(moved + "SELECT * FROM gone RETURNING 1")
    await stage.twice(first)
    await stage.twice(first.model_copy(update={"thread": "u"}))
    await stage.runtime.wait_until_projected()
    assert await stage.rows("SELECT seq FROM messages") == [(1,)]
    results = await verify_several(stage.runtime.log, stage.runtime.database_url, [MESSAGES])
    assert [result.clean for result in results] == [True]


async def test_a_user_with_an_event_on_an_impossible_thread_can_be_erased(stage: Stage) -> None:
    await stage.runtime.log.append_many(conversation("ann", 2))
    words = "ann's words in a thread that cannot be"
    stray = await put(stage, "default.x.turn_recorded", forged(turn(words, user="ann"), thread="a\0b"))
    elsewhere = await put(stage, "default.x.turn_recorded", forged(turn(words, user="ann"), tenant="acme"))
    broken = await put(stage, "default.y.turn_recorded", b'{"user":"ann"')
    receipt = await erase(stage, "ann", [words])
    assert (receipt.hits, receipt.passed_over) == ({}, (broken,))
    assert receipt.data.counts["unreadable events passed over"] == 1
    for seq in (stray, elsewhere):
        with pytest.raises(NotFound):
            await stage.runtime.log.stored(seq)


async def test_an_event_that_claims_another_thread_does_not_erase_that_thread(stage: Stage) -> None:
    await stage.runtime.log.append_many([turn("of nobody", thread="open"), turn("ann's", thread="t", user="ann")])
    await put(stage, "default.x.turn_recorded", forged(turn("a claim", user="ann"), thread="open"))
    await erase(stage, "ann")
    assert await stage.rows("SELECT thread_id, content FROM messages") == [("open", "of nobody")]


async def test_an_event_with_its_thread_only_in_the_subject_is_erased(stage: Stage) -> None:
    envelope = {k: v for k, v in json.loads(encode(turn("only the subject", user="ann"))).items() if k != "thread"}
    await put(stage, "default.t.turn_recorded", json.dumps(envelope).encode())
    await stage.runtime.wait_until_projected()
    assert len(await stage.rows("SELECT FROM messages")) == 1
    await erase(stage, "ann")
    assert await stage.rows("SELECT FROM messages") == []


@pytest.mark.parametrize("data", [{"parent": ["t"], "at_seq": 1}, {"parent": "t", "at_seq": "1"}, 5])
async def test_an_invalid_fork_does_not_block_an_erasure(stage: Stage, data: Any) -> None:
    await stage.runtime.log.append(turn("hello", user="ann"))
    fork, mine = turn(thread="f", user="bob"), turn(user="ann")
    await put(stage, "default.f.thread_forked", forged(fork, type="turnlog.thread_forked", data=data))
    await put(stage, "default.t.answer_requested", forged(mine, type="turnlog.answer_requested", id="7"))
    await put(stage, "default.t.thread_restored", forged(mine, type="turnlog.thread_restored", data={"events": 5}))
    assert (await erase(stage, "ann")).data.threads == 1
    with pytest.raises(NotFound):
        await plan_erasure(stage.runtime, "default", "ann", erasure_reach(stage.runtime.settings))


@pytest.mark.parametrize("changed", [{"tenant": "acme", "data": {}}, {"id": "7"}, {"data": {"reason": 5}}])
async def test_an_invalid_removal_removes_nothing_and_does_not_block_an_erasure(stage: Stage, changed: Any) -> None:
    await stage.runtime.log.append(turn("my words", user="ann"))
    seq = await put(stage, "default.t.erased", forged(event(Erased()), **changed))
    await stage.runtime.log.append(turn("more of my words", user="ann"))
    assert await parked(stage) == {seq, seq + 1}
    assert await stage.rows("SELECT content FROM messages") == [("my words",)]
    await erase(stage, "ann", ["my words"])
    assert await stage.rows("SELECT content FROM messages") == []
    assert await parked(stage) == set()


async def test_an_export_is_complete_and_lists_skipped_events(stage: Stage, tmp_path: Path) -> None:
    await stage.runtime.log.append_many(conversation("ann", 2))
    seq = await put(stage, "default.talk-ann.erased", forged(event(Erased()), tenant="acme", thread="talk-ann"))
    await parked(stage)
    await write_user(stage.runtime.settings, "default", "ann", None, tmp_path / "ann.json")
    document = json.loads((tmp_path / "ann.json").read_text("utf-8"))
    jsonschema.validate(document, SCHEMA)
    assert len(document["conversations"][0]["receipts"]) == 2
    assert secret("ann", "said", 1) in json.dumps(document, ensure_ascii=False)
    assert [(skipped["seq"], skipped["type"], skipped["thread"]) for skipped in document["passedOver"]] == [
        (seq, "erased", "talk-ann")
    ]
    assert "was published on" in document["passedOver"][0]["error"]


@pytest.mark.parametrize(
    "envelope",
    [
        "{",
        encode(turn("of another tenant").model_copy(update={"tenant": "acme"})).decode(),
        encode(turn("of another thread", thread="bobs")).decode(),
        forged(turn("sealed"), sealed="AAAA", sealedkey=str(UUID(int=7))).decode(),
    ],
    ids=["broken", "tenant", "thread", "sealed"],
)
async def test_a_restore_event_with_a_foreign_envelope_is_parked_and_other_threads_continue(
    stage: Stage, envelope: str
) -> None:
    data = ThreadRestored(part=1, parts=1, events=(ArchivedEvent(seq=1, stored_at=MAY_8, envelope=envelope),))
    seq = (await stage.runtime.log.append(event(data))).seq
    await stage.runtime.log.append(turn("others go on", thread="u"))
    assert await parked(stage) == {seq}
    assert await stage.rows("SELECT tenant, thread_id, content FROM messages") == [("default", "u", "others go on")]


async def test_a_body_of_ten_thousand_brackets_is_shown_counted_and_passed(stage: Stage) -> None:
    runtime = stage.runtime
    seq = await put(stage, "default.t.turn_recorded", DEEP)
    await runtime.log.append(turn("after it", thread="u"))
    assert await parked(stage) == {seq}
    shown = [(line.stored.seq, line.text()) async for line in tail(runtime, 1, follow=False)]
    assert shown[0][0] == seq and "[[[[" in shown[0][1] and "after it" in shown[1][1]
    details = await show_dead_letter(runtime, seq)
    assert details.line.document()["event"].startswith('{"data":[[[')
    assert "recursion limit" in details.letters[0].error
    async with analytics(runtime):
        await stage.rest("analytics")
        counted = {row[0] for row in await stage.rows("SELECT type FROM turnlog_analytics.hourly")}
    assert counted == {"invalid", "turnlog.turn_recorded"}


ODD = ["\\ud800", "\\u0000", "\\u001b[2J", "\\u202egnp.exe", "\\u2028", "\\u009b31m", "\\ufeff"]


async def test_tail_shows_a_line_for_every_odd_id(stage: Stage) -> None:
    for odd in ODD:
        body = (
            forged(turn("hello"), thread="THREAD", user="USER")
            .replace(b"THREAD", odd.encode())
            .replace(b"USER", odd.encode())
        )
        await put(stage, "default.t.turn_recorded", body)
    await put(stage, "default.t.\u202emood\u0085changed", b"{}")
    lines = [line.text() async for line in tail(stage.runtime, 1, follow=False)]
    assert len(lines) == len(ODD) + 1
    for line in lines:
        assert line.isprintable()
    assert "\\u202egnp.exe" in lines[3] and "\\u202emood\\u0085changed" in lines[-1]


async def test_an_event_that_an_earlier_version_applied_is_parked_by_a_rebuild(stage: Stage) -> None:
    """The contract refuses times that it once accepted; this must not stop every rebuild."""
    await put(stage, "default.t.turn_recorded", forged(turn("beyond"), time="9999-12-31T23:59:59-23:59"))
    await stage.runtime.log.append(turn("others go on", thread="u"))
    assert len(await parked(stage)) == 1
    await stage.rows("DELETE FROM dead_letters RETURNING 1")  # as if the event had been applied
    await rebuild_several(stage.runtime.log, stage.runtime.database_url, PROJECTIONS)
    assert await parked(stage) == {1}
    assert await stage.rows("SELECT content FROM messages") == [("others go on",)]
    results = await verify_several(stage.runtime.log, stage.runtime.database_url, PROJECTIONS)
    assert {result.projection for result in results if result.clean} == set(BY_NAME)


async def test_forged_archive_paths_neither_read_nor_remove_files(stage: Stage, tmp_path: Path) -> None:
    runtime, folder = stage.runtime, stage.runtime.settings.archive
    kept = [tmp_path / "kept.parquet", folder / "default" / "2023-05" / "bobs-1.parquet"]
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"somebody's")
    named = [
        str(kept[0]),
        "default/2023-05/../../../kept.parquet",
        "default/2023-05/bobs-1.parquet",
        "acme/2023-05/t.parquet",
    ]
    for number, path in enumerate(named):
        await runtime.log.append(turn("mine", thread=f"t{number}", user="ann"))
        archived = ThreadArchived(path=path, sha256="00", events=1, from_seq=1, through_seq=1)
        await runtime.log.append(event(archived, f"t{number}"))
    assert len(await parked(stage)) == len(named)
    assert await stage.rows("SELECT FROM thread_archives") == []
    await erase(stage, "ann")
    assert [file.read_bytes() for file in kept] == [b"somebody's"] * 2


async def test_forged_usage_is_parked_and_does_not_overflow_other_sums(stage: Stage) -> None:
    used = UsageMetered(purpose="answer", provider="local", model="m", tokens_in=7)
    for tokens in (2**63 - 1, 10**12 + 1):
        body = forged(event(used, "x"), data={**used.model_dump(mode="json", exclude={"type"}), "tokens_in": tokens})
        await put(stage, "default.x.usage_metered", body)
    largest = used.model_copy(update={"tokens_in": 10**12, "cost_usd": 1e6, "latency_ms": 1e12})
    await stage.runtime.log.append_many([event(largest, "y"), event(used, "t")])
    assert await parked(stage) == {1, 2}
    assert await stage.rows("SELECT tokens_in FROM usage") == [(10**12 + 7,)]
