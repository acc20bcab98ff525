"""An archived conversation that is read or written to is restored; one that is erased is deleted."""

import asyncio
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers.archived_threads import (
    ARCHIVED_THREADS,
    TEXTS,
    append_conversations,
    archive_threads,
    embed_all,
    equals_rebuild,
    log_bodies,
    restore_thread,
    stored_files,
    table_rows,
)
from helpers.key_rings import destroy_keys
from helpers.questions import Place, answer_to
from helpers.sample_events import MAY_8, event, turn
from helpers.stage import Play, player

from turnlog.agent.conversations.archive import archiving, restoring
from turnlog.agent.conversations.archive.restoring import PART_BYTES, restore
from turnlog.agent.conversations.forks import fork
from turnlog.agent.privacy.personal_data import erase_person, plan_erasure
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.contracts import CheckpointSaved, ThreadArchived, ThreadDeleted, ThreadRestored
from turnlog.projectors.models.conversation.message import thread_messages
from turnlog.projectors.models.conversation.thread_lookup import Cold

pytestmark = pytest.mark.slow


@pytest.fixture
def play(nats_url: str, database_url: str, tmp_path: Path) -> Play:
    return player(nats_url, database_url, ["projectors"], home=tmp_path, archive_threads_after_days=30)


async def test_a_users_words_stay_sealed_in_the_file_and_after_restoring(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage)
        await archive_threads(stage)
        assert await restore_thread(stage)
        kept = pq.read_table(stored_files(stage)[0]).to_pydict()["envelope"]
        every = b"\n".join([*kept, await log_bodies(stage)])
        assert not any(word.encode() in every for word in ("耶鲁", "my GPA is 3.8", "喝茶"))
        assert not any(json.dumps(word)[1:-1].encode() in every for word in ("耶鲁", "喝茶"))
        parts = await stage.all("thread_restored")
        assert "耶鲁" in parts[0].events[0].envelope


async def test_after_the_key_is_destroyed_a_conversation_is_restored_with_tombstones(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage)
        await archive_threads(stage)
        async with stage.runtime.pool.connection() as conn:
            assert await destroy_keys(stage.runtime.log, conn, "ann") == 1
        assert await restore_thread(stage)
        assert await stage.rows("SELECT DISTINCT content::text FROM messages") == [('"[erased]"',)]
        assert await equals_rebuild(stage, ["messages", "vectors", "archives"])


async def test_erasing_a_user_takes_their_files_and_leaves_those_of_others(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage, "t")
        await append_conversations(stage, "b", user="bob")
        await append_conversations(stage, "back")
        await archive_threads(stage)
        assert await restore_thread(stage, "back")
        of_ann, _, of_bob = sorted(stored_files(stage), reverse=True)
        orphan = of_ann.with_name("t-1.parquet")
        orphan.write_bytes(of_ann.read_bytes())
        await stage.runtime.wait_until_projected()
        reach = erasure_reach(stage.runtime.settings)
        plan = await plan_erasure(stage.runtime, "default", "ann", reach)
        receipt = await erase_person(stage.runtime, plan, reach)
        assert (stored_files(stage), receipt.data.counts["archive files"], receipt.data.hits) == ([of_bob], 3, 0)
        assert not await restore_thread(stage, "t") and await restore_thread(stage, "b")
        assert {row[0] for row in await stage.rows("SELECT thread_id FROM messages")} == {"b"}


async def test_without_pyarrow_files_are_restored_from_the_log_and_an_erasure_says_that_it_cannot_search_them(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with play() as stage:
        await append_conversations(stage, "t")
        await append_conversations(stage, "b", user="bob")
        before = await table_rows(stage)
        await archive_threads(stage)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        assert await restore_thread(stage, "t") and await restore_thread(stage, "b")
        assert await table_rows(stage) == before
        reach = erasure_reach(stage.runtime.settings)
        plan = await plan_erasure(stage.runtime, "default", "ann", reach, strings=["Only Ann says this"])
        receipt = await erase_person(stage.runtime, plan, reach)
        unread = {place: count for place, count in receipt.data.scanned.items() if place.startswith("archive files")}
        assert unread == {
            "archive files that cannot be read (Parquet files need pyarrow: pip install 'turnlog[parquet]')": 1
        }


async def test_a_conversation_is_restored_in_parts_even_after_a_crash_between_them(play: Play) -> None:
    async with play() as stage:
        long = [
            turn("long " * (PART_BYTES // 6), "tool", minutes=n, tool_call_id=f"{n}", user="ann") for n in range(10, 14)
        ]
        await stage.runtime.log.append_many(long)
        await append_conversations(stage)
        before = await table_rows(stage)
        await archive_threads(stage)
        log, folder = stage.runtime.log, stage.runtime.settings.archive
        archived = await restoring._find(log, "default", "t")
        assert archived is not None
        parts = await restoring._told_again(log, folder, archived)
        assert len(parts) > 3
        await log.append_many(parts[:2], expected=archived.head)
        await stage.runtime.wait_until_projected()
        assert 0 < len((await table_rows(stage))["messages"]) < len(TEXTS) + len(long)
        assert [row[3] for row in await stage.rows(ARCHIVED_THREADS)] == [False]
        assert await restore_thread(stage)
        assert await table_rows(stage) == before
        assert [(restored.part, restored.parts) for restored in await stage.all("thread_restored")] == [
            (n + 1, len(parts)) for n in range(len(parts))
        ]


async def test_concurrent_readers_restore_a_conversation_once(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage)
        before = await table_rows(stage)
        await archive_threads(stage)
        arguments = (stage.runtime.log, stage.runtime.settings.archive, "default", "t")
        assert any(await asyncio.gather(*(restore(*arguments) for _ in range(4))))
        await stage.runtime.wait_until_projected()
        assert len(await stage.all("thread_restored")) == 1
        assert await table_rows(stage) == before
        assert await restore(*arguments) is None


async def test_a_conversation_that_was_deleted_does_not_come_back(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage)
        await archive_threads(stage)
        await stage.runtime.log.append(event(ThreadDeleted()))
        await stage.runtime.wait_until_projected()
        assert await stage.rows(ARCHIVED_THREADS) == []
        assert await restore(stage.runtime.log, stage.runtime.settings.archive, "default", "t") is None
        assert not await restore_thread(stage)


async def test_conversations_that_others_refer_to_are_not_archived(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage, "parent", "graph", "bad")
        await stage.runtime.log.append_many([turn("hi", thread="shared", user=user) for user in ("ann", "bob")])
        saved = CheckpointSaved(checkpoint_ns="", checkpoint_id="1", checkpoint={"v": 4}, metadata={})
        await stage.runtime.log.append(event(saved, "graph"))
        await stage.bad("turn_recorded", "bad")
        async with stage.runtime.pool.connection() as conn:
            await fork(conn, stage.runtime.log, "default", "parent", 2, "child")
        await stage.runtime.wait_until_projected()
        assert await archive_threads(stage) == {"archived": 0, "left_out": 1}
        assert await stage.rows(ARCHIVED_THREADS) == []


async def test_a_fork_reads_the_past_of_an_archived_parent(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage)
        await archive_threads(stage)
        assert await restore_thread(stage, "t")
        async with stage.runtime.pool.connection() as conn:
            made = await fork(conn, stage.runtime.log, "default", "t", 4, "child")
        assert made.message_count == 4
        await stage.runtime.wait_until_projected()
        [(last_seq,)] = await stage.rows("SELECT last_seq FROM thread_activity WHERE thread_id = 't'")
        cold = Cold("default", "t", "ann", last_seq, len(TEXTS), MAY_8)
        assert await archiving.archive_thread(stage.runtime.log, stage.runtime.settings.archive, cold)
        await stage.runtime.wait_until_projected()
        assert await restore_thread(stage, "child"), "as if the fork and the archiving had met"
        async with stage.runtime.pool.connection() as conn:
            assert [message.content for message in await thread_messages(conn, "default", "child")] == list(TEXTS[:4])


async def test_a_question_in_an_archived_conversation_is_answered_with_its_history(play: Play) -> None:
    async with play("projectors", "agent") as stage:
        await append_conversations(stage)
        await archive_threads(stage)
        await answer_to(stage.runtime, Place(user="ann"), "还记得吗？")
        [receipt] = await stage.all("answer_receipt")
        assert [tier.turns.spans[0][0] for tier in receipt.tiers] == [1] and receipt.tiers[0].turns.count >= 6


async def test_a_new_turn_restores_the_conversation_for_the_reactors(play: Play) -> None:
    async with play("projectors", "reactors") as stage:
        await append_conversations(stage)
        await stage.rest()
    async with play() as stage:  # the reactors' embedder would write to the conversation that is being archived
        await embed_all(stage)
        await archive_threads(stage)
        assert [row[3] for row in await stage.rows(ARCHIVED_THREADS)] == [False]
    async with play("projectors", "reactors") as stage:
        await stage.runtime.log.append(turn("我回来了", minutes=9, user="ann"))
        await stage.rest()
        assert len((await table_rows(stage))["messages"]) == len(TEXTS) + 1
        assert [row[3] for row in await stage.rows(ARCHIVED_THREADS)] == [True]


async def test_archive_events_contain_path_counts_and_sequences(play: Play) -> None:
    async with play() as stage:
        await append_conversations(stage, user=None)
        await archive_threads(stage)
        await restore_thread(stage)
        [archived], [restored] = await stage.all("thread_archived"), await stage.all("thread_restored")
        assert isinstance(archived, ThreadArchived) and isinstance(restored, ThreadRestored)
        assert (archived.events, archived.from_seq, archived.path) == (
            9,
            1,
            f"default/2023-05/t-{archived.through_seq}.parquet",
        )
        assert [event.seq for event in restored.events] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert len((await table_rows(stage))["messages"]) == len(TEXTS)
