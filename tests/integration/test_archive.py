"""Cold conversations are archived to Parquet files and restored unchanged."""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers.archived_threads import (
    ARCHIVED_THREADS,
    TABLES,
    TEXTS,
    append_conversations,
    archive_threads,
    conversation,
    embed_all,
    equals_rebuild,
    restore_thread,
    stored_files,
    table_rows,
)
from helpers.sample_events import turn
from helpers.stage import Play, player

from turnlog.agent.conversations.archive import archiving
from turnlog.agent.conversations.archive import files as archive_files
from turnlog.agent.conversations.archive.files import (
    TENANT,
    ArchiveDamaged,
    ArchivedRow,
    ArchiveMissing,
    read_archive,
    unsealed,
    write_archive,
)
from turnlog.agent.operations.jobs.archiving import archive_cold, archive_older, cold_ones
from turnlog.agent.operations.jobs.job import Done
from turnlog.agent.privacy.erasure.scanning import Scan, scan_files
from turnlog.agent.privacy.erasure.string_search import SearchStrings
from turnlog.events.contracts import Event

pytestmark = pytest.mark.slow


@pytest.fixture
def play(nats_url: str, database_url: str, tmp_path: Path) -> Play:
    return player(nats_url, database_url, ["projectors"], home=tmp_path, archive_threads_after_days=30)


async def test_a_cold_conversation_is_archived_to_a_file_and_restored_row_for_row(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage, "t", "线 1")
        before = await table_rows(stage)
        assert (len(before["messages"]), len(before["memory_episodes"])) == (12, 6)
        assert await archive_threads(stage) == {"archived": 2, "left_out": 0}
        assert await table_rows(stage) == {name: [] for name in TABLES}
        assert await stage.rows(ARCHIVED_THREADS) == [("t", "ann", 9, False), ("线 1", "ann", 8, False)]
        assert await archive_threads(stage) == {"archived": 0, "left_out": 0}
        assert await equals_rebuild(stage)
        assert (
            await restore_thread(stage, "t")
            and await restore_thread(stage, "线 1")
            and not await restore_thread(stage, "t")
        )
        assert await table_rows(stage) == before
        assert [row[3] for row in await stage.rows(ARCHIVED_THREADS)] == [True, True]
        for event in [*await stage.events("t"), *await stage.events("线 1")]:
            await stage.twice(event)
        await stage.runtime.wait_until_projected()
        assert await table_rows(stage) == before
        assert await equals_rebuild(stage)


async def test_a_conversation_published_on_an_internal_thread_is_archived_and_restored_too(play: Play) -> None:
    async with play() as stage:
        for event in conversation("jobs/mine"):
            await stage.twice(event)  # as any NATS client can do
        await embed_all(stage)
        before = await table_rows(stage)
        assert (len(before["messages"]), len(before["memory_episodes"])) == (6, 3)
        assert await archive_threads(stage) == {"archived": 1, "left_out": 0}
        assert await restore_thread(stage, "jobs/mine")
        assert await table_rows(stage) == before
        assert await equals_rebuild(stage)


async def test_the_file_is_parquet_by_month_and_holds_the_log_byte_for_byte(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage)
        await archive_threads(stage)
        [file] = stored_files(stage)
        assert file.relative_to(stage.runtime.settings.archive).parent == Path("default/2023-05")
        about = pq.ParquetFile(file).metadata
        assert {about.row_group(0).column(n).compression for n in range(about.num_columns)} == {"ZSTD"}
        [data] = await stage.all("thread_archived")
        assert data.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        kept = read_archive(stage.runtime.settings.archive, data.path, data.sha256)
        kept = unsealed(kept, stage.runtime.log.keyring, "default", data.path)
        stored = [await stage.runtime.log.stored(row.seq) for row in kept]
        assert [(row.seq, row.envelope) for row in kept] == [(record.seq, record.body) for record in stored]
        assert {(row.user, row.type) for row in kept} >= {("ann", "turn_recorded"), ("ann", "chunks_embedded")}


async def test_words_without_a_user_are_sealed_in_the_file_by_a_key_of_the_tenant(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage, user=None)
        before = await table_rows(stage)
        await archive_threads(stage)
        [file] = stored_files(stage)
        assert words_in(file) == 0
        assert await stage.rows("SELECT tenant FROM user_keys WHERE user_id = %s", TENANT) == [("default",)]
        assert [path.stat().st_mode & 0o077 for path in (file, file.parent, file.parent.parent)] == [0, 0, 0]
        assert await restore_thread(stage)
        assert await table_rows(stage) == before


async def test_a_file_of_an_earlier_version_is_searched_though_it_is_compressed_and_comes_back(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with play() as stage:
        await append_conversations(stage, user=None)
        before = await table_rows(stage)
        with monkeypatch.context() as patch:  # these files contained everything as in the log, and had no column `key`
            patch.setattr(archiving, "sealed", lambda rows, *_: rows)
            patch.setattr(archive_files, "_schema", lambda schema=archive_files._schema(): schema.remove(7))
            patch.setattr(archive_files, "astuple", lambda row: astuple(row)[:7])
            await archive_threads(stage)
        [file] = stored_files(stage)
        assert "key" not in pq.read_schema(file).names
        assert TEXTS[0].encode() not in file.read_bytes()
        assert words_in(file) == 1
        assert await restore_thread(stage)
        assert "restored from the log itself" not in caplog.text
        assert await table_rows(stage) == before


def words_in(file: Path) -> int:
    """Returns how often an erasure finds the first text in the file."""
    scan = Scan()
    scan_files([("archive files", file)], SearchStrings([TEXTS[0]]), scan, lambda done, total: None)
    return scan.hits.get(f"file {file}", 0)


async def test_a_file_that_reads_back_differently_archives_nothing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async with play() as stage:
        await append_conversations(stage)
        async with stage.runtime.pool.connection() as conn:
            [cold] = [cold async for cold in cold_ones(conn, datetime.now(UTC))]

        def loses_a_row(path: Path) -> None:
            if path.is_file():
                pq.write_table(pq.read_table(path)[1:], path)

        monkeypatch.setattr(archive_files, "_sync", loses_a_row)
        with pytest.raises(ArchiveDamaged, match="reads back differently"):
            await archiving.archive_thread(stage.runtime.log, stage.runtime.settings.archive, cold)
        assert await stage.all("thread_archived") == []


async def test_turns_added_while_archived_are_in_order_after_restoring(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage)
        await archive_threads(stage)
        await stage.runtime.log.append(turn("我喝茶", minutes=6, user="ann"))
        await stage.runtime.wait_until_projected()
        assert await restore_thread(stage)
        assert await stage.rows("SELECT seqs FROM memory_vectors WHERE chunk = '我喝茶'") == [([3, 5, 11],)]
        assert await stage.rows("SELECT seq FROM messages ORDER BY seq") == [(n,) for n in (1, 2, 3, 4, 5, 6, 11)]
        assert await equals_rebuild(stage)


async def test_a_restored_conversation_is_archived_again_and_the_older_file_deleted(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage)
        await archive_threads(stage)
        await stage.runtime.log.append(turn("再见", minutes=50_000, user="ann"))
        await stage.runtime.wait_until_projected()
        assert await restore_thread(stage)
        before = await table_rows(stage)
        assert await archive_threads(stage) == {"archived": 0, "left_out": 0}, "it was read today"
        await archive_older(stage.runtime, datetime.now(UTC) + timedelta(days=1), lambda done, total: None)
        await stage.runtime.wait_until_projected()
        assert [file.parent.name for file in stored_files(stage)] == ["2023-06"]
        assert await restore_thread(stage)
        assert await table_rows(stage) == before
        assert await equals_rebuild(stage)


async def test_a_turn_that_arrives_while_the_file_is_written_prevents_archiving(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with play() as stage:
        await append_conversations(stage)
        loop = asyncio.get_running_loop()

        def interrupted(folder: Path, path: str, kept: Sequence[ArchivedRow]) -> str:
            said = stage.runtime.log.append(turn("还在吗？", minutes=7, user="ann"))
            asyncio.run_coroutine_threadsafe(said, loop).result()
            return write_archive(folder, path, kept)

        with monkeypatch.context() as patch:
            patch.setattr(archiving, "write_archive", interrupted)
            assert await archive_threads(stage) == {"archived": 0, "left_out": 1}
        assert (
            stored_files(stage),
            await stage.rows(ARCHIVED_THREADS),
            len((await table_rows(stage))["messages"]),
        ) == ([], [], 7)


async def test_a_turn_that_is_not_projected_yet_prevents_archiving(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage)
        async with stage.runtime.pool.connection() as conn:
            [cold] = [cold async for cold in cold_ones(conn, datetime.now(UTC))]
        assert not await archiving.archive_thread(
            stage.runtime.log, stage.runtime.settings.archive, replace(cold, last_seq=1)
        )
        assert stored_files(stage) == []


async def test_a_crash_between_file_and_event_is_repaired(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async with play() as stage:
        await append_conversations(stage)
        before = await table_rows(stage)

        def dies(*_: object) -> Event:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(archiving, "_archived", dies)
            with pytest.raises(KeyboardInterrupt):
                await archive_threads(stage)
        assert (len(stored_files(stage)), await table_rows(stage)) == (1, before)
        assert await archive_threads(stage) == {"archived": 1, "left_out": 0}
        assert len(stored_files(stage)) == 1
        assert await restore_thread(stage)
        assert await table_rows(stage) == before


@pytest.mark.parametrize("harm", ["damaged", "missing"])
async def test_without_its_file_a_conversation_is_restored_from_the_log_with_a_warning(
    play: Play, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with play() as stage:
        await append_conversations(stage)
        before = await table_rows(stage)
        await archive_threads(stage)
        [file] = stored_files(stage)
        [data] = await stage.all("thread_archived")
        file.write_bytes(file.read_bytes()[:-1] + b"!") if harm == "damaged" else file.unlink()
        with pytest.raises(ArchiveDamaged if harm == "damaged" else ArchiveMissing):
            read_archive(stage.runtime.settings.archive, data.path, data.sha256)
        with caplog.at_level(logging.WARNING, "turnlog.archive"):
            assert await restore_thread(stage)
        assert "restored from the log itself" in caplog.text
        assert await table_rows(stage) == before


async def test_nothing_is_archived_unless_a_setting_says_when(play: Play) -> None:
    async with play(archive_threads_after_days=0) as stage:
        await append_conversations(stage)
        assert await archive_cold(stage.runtime, datetime.now(UTC), lambda done, total: None) == Done({"archived": 0})
        assert len((await table_rows(stage))["messages"]) == len(TEXTS)
