"""The archive: cold conversations stand in Parquet files, and come back as they were when somebody reads them (L4)."""

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from samples import MAY_8, derivation, event, turn
from stage import Play, Stage, player

from turnlog.agent.archive import archiving, restoring
from turnlog.agent.archive import files as archive_files
from turnlog.agent.archive.files import ArchiveDamaged, ArchivedRow, ArchiveMissing, read_archive, write_archive
from turnlog.agent.archive.restoring import restore
from turnlog.agent.forking import fork
from turnlog.agent.models.factory import make_models
from turnlog.agent.privacy.erase import erase, planned
from turnlog.agent.privacy.key_admin import destroy
from turnlog.agent.privacy.needles import Needles
from turnlog.agent.privacy.scanning import Scan, scan_files
from turnlog.consumers.archiving import restored_if_archived
from turnlog.consumers.conversing import Conversation, talk
from turnlog.consumers.embedding import embed_pending
from turnlog.consumers.erasing import person_of, surroundings
from turnlog.consumers.jobs.archiving import archive_cold, archive_older, cold_ones
from turnlog.consumers.jobs.job import Done, OnProgress
from turnlog.events.contracts import Event, ThreadDeleted, TopicsTagged
from turnlog.events.langgraph_contracts import CheckpointSaved
from turnlog.events.memory_contracts import ThreadArchived, ThreadRestored
from turnlog.events.read import read_to
from turnlog.events.subjects import STORED_PREFIX
from turnlog.projectors.archive_lookup import Cold
from turnlog.projectors.messages import thread_messages
from turnlog.projectors.registry import BY_NAME
from turnlog.projectors.verify import verify_several

SAID = ("我在耶鲁大学读书，my GPA is 3.8", "很好！", "我喝茶", "好的", "我喝茶", "a\0b")
TABLES = ("messages", "memory_vectors", "memory_episodes", "thread_forks")
ARCHIVE = "SELECT thread_id, user_id, events, restored_at IS NOT NULL FROM thread_archives ORDER BY thread_id"


@pytest.fixture
def play(nats_url: str, database_url: str, tmp_path: Path) -> Play:
    return player(nats_url, database_url, ["projectors"], home=tmp_path, archive_threads_after_days=30)


def conversation(thread: str = "t", user: str | None = "ann") -> list[Event]:
    turns = [turn(text, "assistant" if n % 2 else "user", thread, n, user=user) for n, text in enumerate(SAID)]
    return [*turns, event(TopicsTagged(topics={"喝茶": 2}, derivation=derivation(1, 99)), thread, user=user)]


@contextlib.contextmanager
def quiet(label: str) -> Iterator[OnProgress]:
    yield lambda done, total: None


async def told(stage: Stage, *threads: str, user: str | None = "ann") -> None:
    """Conversations with topics and vectors, as they are after a while."""
    for thread in threads or ("t",):
        await stage.runtime.log.append_many(conversation(thread, user))
    await stage.runtime.settle()
    models = make_models(stage.runtime.settings)
    await embed_pending(stage.runtime, models.embedder)
    await models.close()
    await stage.runtime.settle()


async def archive(stage: Stage) -> dict[str, int]:
    done = await archive_cold(stage.runtime, datetime.now(UTC), lambda done, total: None)
    await stage.runtime.settle()
    assert not done.errors
    return done.counts


async def back(stage: Stage, thread: str = "t") -> bool:
    async with stage.runtime.pool.connection() as conn:
        return await restored_if_archived(stage.runtime, conn, "default", thread)


async def held(stage: Stage, tables: Sequence[str] = TABLES) -> dict[str, list[Any]]:
    return {name: await stage.rows(f"SELECT t::text FROM {name} t ORDER BY 1") for name in tables}


async def is_as_rebuilt(stage: Stage, names: Sequence[str] = tuple(BY_NAME)) -> bool:
    chosen = [BY_NAME[name] for name in names]
    found = await verify_several(stage.runtime.log, stage.runtime.database_url, chosen)
    return all(one.clean for one in found)


def files(stage: Stage) -> list[Path]:
    return sorted(path for path in stage.runtime.settings.archive.rglob("*") if path.is_file())


async def bodies(stage: Stage) -> bytes:
    log = stage.runtime.log
    return b"\n".join([one.body async for one in read_to(log.nc, [f"{STORED_PREFIX}.>"], 1, await log.head())])


async def test_a_cold_conversation_stands_in_a_file_and_comes_back_row_for_row(play: Play) -> None:
    async with play() as stage:
        await told(stage, "t", "线 1")
        before = await held(stage)
        assert (len(before["messages"]), len(before["memory_episodes"])) == (12, 6)
        assert await archive(stage) == {"archived": 2, "left_out": 0}
        assert await held(stage) == {name: [] for name in TABLES}
        assert await stage.rows(ARCHIVE) == [("t", "ann", 8, False), ("线 1", "ann", 9, False)]
        assert await archive(stage) == {"archived": 0, "left_out": 0}
        assert await is_as_rebuilt(stage)
        assert await back(stage, "t") and await back(stage, "线 1") and not await back(stage, "t")
        assert await held(stage) == before
        assert [row[3] for row in await stage.rows(ARCHIVE)] == [True, True]
        for one in [*await stage.events("t"), *await stage.events("线 1")]:
            await stage.twice(one)
        await stage.runtime.settle()
        assert await held(stage) == before
        assert await is_as_rebuilt(stage)


async def test_the_file_is_parquet_by_month_and_holds_the_log_byte_for_byte(play: Play) -> None:
    async with play() as stage:
        await told(stage)
        await archive(stage)
        [file] = files(stage)
        assert file.relative_to(stage.runtime.settings.archive).parent == Path("default/2023-05")
        about = pq.ParquetFile(file).metadata
        assert {about.row_group(0).column(n).compression for n in range(about.num_columns)} == {"ZSTD"}
        [data] = await stage.all("thread_archived")
        assert data.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        kept = read_archive(stage.runtime.settings.archive, data.path, data.sha256)
        stored = [await stage.runtime.log.stored(row.seq) for row in kept]
        assert [(row.seq, row.envelope) for row in kept] == [(one.seq, one.body) for one in stored]
        assert {(row.user, row.type) for row in kept} >= {("ann", "turn_recorded"), ("ann", "chunks_embedded")}


async def test_a_search_finds_words_in_a_file_though_it_is_compressed(play: Play) -> None:
    async with play() as stage:
        await told(stage, user=None)
        await archive(stage)
        [file] = files(stage)
        assert SAID[0].encode() not in file.read_bytes()
        scan = Scan()
        scan_files([("archive files", file)], Needles([SAID[0]]), scan, lambda done, total: None)
        assert scan.hits == {f"file {file}": 1}


async def test_a_file_that_does_not_read_back_as_it_was_written_is_not_told_of(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with play() as stage:
        await told(stage)
        async with stage.runtime.pool.connection() as conn:
            [cold] = [one async for one in cold_ones(conn, datetime.now(UTC))]

        def loses_a_row(path: Path) -> None:
            if path.is_file():
                pq.write_table(pq.read_table(path)[1:], path)

        monkeypatch.setattr(archive_files, "_sync", loses_a_row)
        with pytest.raises(ArchiveDamaged, match="does not read back"):
            await archiving.archive_thread(stage.runtime.log, stage.runtime.settings.archive, cold)
        assert await stage.all("thread_archived") == []


async def test_what_was_said_while_it_was_archived_is_where_it_would_have_been(play: Play) -> None:
    async with play() as stage:
        await told(stage)
        await archive(stage)
        await stage.runtime.log.append(turn("我喝茶", minutes=6, user="ann"))
        await stage.runtime.settle()
        assert await back(stage)
        assert await stage.rows("SELECT seqs FROM memory_vectors WHERE chunk = '我喝茶'") == [([3, 5, 11],)]
        assert await stage.rows("SELECT seq FROM messages ORDER BY seq") == [(n,) for n in (1, 2, 3, 4, 5, 6, 11)]
        assert await is_as_rebuilt(stage)


async def test_it_is_archived_again_after_a_while_and_the_older_file_goes(play: Play) -> None:
    async with play() as stage:
        await told(stage)
        await archive(stage)
        await stage.runtime.log.append(turn("再见", minutes=50_000, user="ann"))
        await stage.runtime.settle()
        assert await back(stage)
        before = await held(stage)
        assert await archive(stage) == {"archived": 0, "left_out": 0}, "it was read today"
        await archive_older(stage.runtime, datetime.now(UTC) + timedelta(days=1), lambda done, total: None)
        await stage.runtime.settle()
        assert [file.parent.name for file in files(stage)] == ["2023-06"]
        assert await back(stage)
        assert await held(stage) == before
        assert await is_as_rebuilt(stage)


async def test_a_turn_that_comes_while_the_file_is_written_keeps_it_out_of_the_archive(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with play() as stage:
        await told(stage)
        loop = asyncio.get_running_loop()

        def interrupted(folder: Path, path: str, kept: Sequence[ArchivedRow]) -> str:
            said = stage.runtime.log.append(turn("还在吗？", minutes=7, user="ann"))
            asyncio.run_coroutine_threadsafe(said, loop).result()
            return write_archive(folder, path, kept)

        with monkeypatch.context() as patch:
            patch.setattr(archiving, "write_archive", interrupted)
            assert await archive(stage) == {"archived": 0, "left_out": 1}
        assert (files(stage), await stage.rows(ARCHIVE), len((await held(stage))["messages"])) == ([], [], 7)


async def test_a_turn_that_is_not_projected_yet_keeps_it_out_too(play: Play) -> None:
    async with play() as stage:
        await told(stage)
        async with stage.runtime.pool.connection() as conn:
            [cold] = [one async for one in cold_ones(conn, datetime.now(UTC))]
        assert not await archiving.archive_thread(
            stage.runtime.log, stage.runtime.settings.archive, replace(cold, last_seq=1)
        )
        assert files(stage) == []


async def test_a_crash_between_file_and_event_leaves_nothing_that_is_not_mended(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with play() as stage:
        await told(stage)
        before = await held(stage)

        def dies(*_: object) -> Event:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(archiving, "_archived", dies)
            with pytest.raises(KeyboardInterrupt):
                await archive(stage)
        assert (len(files(stage)), await held(stage)) == (1, before)
        assert await archive(stage) == {"archived": 1, "left_out": 0}
        assert len(files(stage)) == 1
        assert await back(stage)
        assert await held(stage) == before


@pytest.mark.parametrize("harm", ["damaged", "missing"])
async def test_without_its_file_it_comes_back_from_the_log_and_says_so(
    play: Play, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with play() as stage:
        await told(stage)
        before = await held(stage)
        await archive(stage)
        [file] = files(stage)
        [data] = await stage.all("thread_archived")
        file.write_bytes(file.read_bytes()[:-1] + b"!") if harm == "damaged" else file.unlink()
        with pytest.raises(ArchiveDamaged if harm == "damaged" else ArchiveMissing):
            read_archive(stage.runtime.settings.archive, data.path, data.sha256)
        with caplog.at_level(logging.WARNING, "turnlog.archive"):
            assert await back(stage)
        assert "restored from the log itself" in caplog.text
        assert await held(stage) == before


async def test_what_a_user_said_stays_sealed_in_the_file_and_when_it_comes_back(play: Play) -> None:
    async with play() as stage:
        await told(stage)
        await archive(stage)
        assert await back(stage)
        kept = pq.read_table(files(stage)[0]).to_pydict()["envelope"]
        every = b"\n".join([*kept, await bodies(stage)])
        assert not any(word.encode() in every for word in ("耶鲁", "GPA", "喝茶"))
        assert not any(json.dumps(word)[1:-1].encode() in every for word in ("耶鲁", "喝茶"))
        parts = await stage.all("thread_restored")
        assert "耶鲁" in parts[0].events[0].envelope


async def test_after_the_key_is_destroyed_it_comes_back_with_tombstones(play: Play) -> None:
    async with play() as stage:
        await told(stage)
        await archive(stage)
        async with stage.runtime.pool.connection() as conn:
            assert await destroy(conn, "default", "ann") == 1
        assert await back(stage)
        assert await stage.rows("SELECT DISTINCT content::text FROM messages") == [('"[erased]"',)]
        assert await is_as_rebuilt(stage, ["messages", "vectors", "archives"])


async def test_erasing_a_user_takes_their_files_and_leaves_those_of_others(play: Play) -> None:
    async with play() as stage:
        await told(stage, "t")
        await told(stage, "b", user="bob")
        await told(stage, "back")
        await archive(stage)
        assert await back(stage, "back")
        of_ann, _, of_bob = sorted(files(stage), reverse=True)
        orphan = of_ann.with_name("t-1.parquet")
        orphan.write_bytes(of_ann.read_bytes())
        await stage.runtime.settle()
        at = surroundings(stage.runtime, quiet)
        receipt = await erase(at, await planned(at, person_of("default", "ann")))
        assert (files(stage), receipt.data.counts["archive files"], receipt.data.hits) == ([of_bob], 3, 0)
        assert not await back(stage, "t") and await back(stage, "b")
        assert {row[0] for row in await stage.rows("SELECT thread_id FROM messages")} == {"b"}


async def test_it_comes_back_in_parts_and_a_crash_between_them_is_finished(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with play() as stage:
        await told(stage)
        before = await held(stage)
        await archive(stage)
        monkeypatch.setattr(restoring, "PART_BYTES", 900)
        log, folder = stage.runtime.log, stage.runtime.settings.archive
        found = await restoring._find(log, "default", "t")
        assert found is not None
        parts = await restoring._told_again(log, folder, found)
        assert len(parts) > 3
        await log.append_many(parts[:2], expected=found.head)
        await stage.runtime.settle()
        assert 0 < len((await held(stage))["messages"]) < len(SAID)
        assert [row[3] for row in await stage.rows(ARCHIVE)] == [False]
        assert await back(stage)
        assert await held(stage) == before
        assert [(one.part, one.parts) for one in await stage.all("thread_restored")] == [
            (n + 1, len(parts)) for n in range(len(parts))
        ]


async def test_several_who_read_it_at_once_bring_it_back_once(play: Play) -> None:
    async with play() as stage:
        await told(stage)
        before = await held(stage)
        await archive(stage)
        place = (stage.runtime.log, stage.runtime.settings.archive, "default", "t")
        assert any(await asyncio.gather(*(restore(*place) for _ in range(4))))
        await stage.runtime.settle()
        assert len(await stage.all("thread_restored")) == 1
        assert await held(stage) == before
        assert await restore(*place) is None


async def test_a_conversation_that_was_deleted_does_not_come_back(play: Play) -> None:
    async with play() as stage:
        await told(stage)
        await archive(stage)
        await stage.runtime.log.append(event(ThreadDeleted()))
        await stage.runtime.settle()
        assert await stage.rows(ARCHIVE) == []
        assert await restore(stage.runtime.log, stage.runtime.settings.archive, "default", "t") is None
        assert not await back(stage)


async def test_conversations_that_others_refer_to_are_left_where_they_are(play: Play) -> None:
    async with play() as stage:
        await told(stage, "parent", "graph", "bad")
        await stage.runtime.log.append_many([turn("hi", thread="shared", user=user) for user in ("ann", "bob")])
        saved = CheckpointSaved(checkpoint_ns="", checkpoint_id="1", checkpoint={}, metadata={})
        await stage.runtime.log.append(event(saved, "graph"))
        await stage.bad("turn_recorded", "bad")
        async with stage.runtime.pool.connection() as conn:
            await fork(conn, stage.runtime.log, "default", "parent", 2, "child")
        await stage.runtime.settle()
        assert await archive(stage) == {"archived": 0, "left_out": 1}
        assert await stage.rows(ARCHIVE) == []


async def test_nothing_is_archived_unless_a_setting_says_when(play: Play) -> None:
    async with play(archive_threads_after_days=0) as stage:
        await told(stage)
        assert await archive_cold(stage.runtime, datetime.now(UTC), lambda done, total: None) == Done({"archived": 0})
        assert len((await held(stage))["messages"]) == len(SAID)


async def test_a_fork_reads_the_past_of_an_archived_parent(play: Play) -> None:
    async with play() as stage:
        await told(stage)
        await archive(stage)
        assert await back(stage, "t")
        async with stage.runtime.pool.connection() as conn:
            made = await fork(conn, stage.runtime.log, "default", "t", 4, "child")
        assert made.message_count == 4
        await stage.runtime.settle()
        [(last_seq,)] = await stage.rows("SELECT last_seq FROM thread_activity WHERE thread_id = 't'")
        cold = Cold("default", "t", "ann", last_seq, len(SAID), MAY_8)
        assert await archiving.archive_thread(stage.runtime.log, stage.runtime.settings.archive, cold)
        await stage.runtime.settle()
        assert await back(stage, "child"), "as if the fork and the archiving had met"
        async with stage.runtime.pool.connection() as conn:
            assert [one.content for one in await thread_messages(conn, "default", "child")] == list(SAID[:4])


async def test_who_writes_in_it_gets_an_answer_that_knows_what_was_said(play: Play) -> None:
    async with play("projectors", "agent") as stage:
        await told(stage)
        await archive(stage)
        await talk(stage.runtime, Conversation("default", "t", "ann"), "还记得吗？", lambda piece: None)
        [receipt] = await stage.all("answer_receipt")
        assert {seq for tier in receipt.tiers for seq in tier.seqs} >= {1, 2, 3, 4, 5, 6}


async def test_a_new_turn_brings_it_back_for_the_reactors(play: Play) -> None:
    async with play("projectors", "reactors") as stage:
        await told(stage)
        await stage.rest()
        await archive(stage)
        await stage.runtime.log.append(turn("我回来了", minutes=9, user="ann"))
        await stage.rest()
        assert len((await held(stage))["messages"]) == len(SAID) + 1
        assert [row[3] for row in await stage.rows(ARCHIVE)] == [True]


async def test_events_of_the_archive_say_what_they_hold(play: Play) -> None:
    async with play() as stage:
        await told(stage, user=None)
        await archive(stage)
        await back(stage)
        [archived], [restored] = await stage.all("thread_archived"), await stage.all("thread_restored")
        assert isinstance(archived, ThreadArchived) and isinstance(restored, ThreadRestored)
        assert (archived.events, archived.from_seq, archived.path) == (
            9,
            1,
            f"default/2023-05/t-{archived.through_seq}.parquet",
        )
        assert [one.seq for one in restored.events] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert len((await held(stage))["messages"]) == len(SAID)
