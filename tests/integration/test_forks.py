"""A fork begins with another thread's turns without copying them; after that both threads are independent."""

from typing import Any

import pytest
from helpers.projection_spec import Spec, seq
from helpers.questions import Place, answer_to
from helpers.sample_events import MAY_8, derivation, event, turn
from helpers.servers import rows, unlike_a_rebuild
from helpers.stage import MemoryServer, Play, Stage, player

from turnlog.agent.answering.receipts import rebuilt, receipts
from turnlog.agent.answering.thread_context import Transcripts, thread_context
from turnlog.agent.conversations.forks import CutInACall, Forked, ThreadExists, fork
from turnlog.agent.recall.embedding.cache import SOURCE as EMBEDDER
from turnlog.agent.recall.search import Recall
from turnlog.events.contracts import (
    Event,
    ForkedSummary,
    HistoryPruned,
    Recorded,
    SummaryWritten,
    ThreadDeleted,
    ThreadForked,
    ToolCall,
    TopicsTagged,
)
from turnlog.events.errors import InvalidToken, NotFound
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection, perform
from turnlog.projectors.models.checkpoints.projection import CHECKPOINTS
from turnlog.projectors.models.chunks.lookup import Scope
from turnlog.projectors.models.conversation.message import message_by_event, thread_messages
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.models.conversation.summaries import SUMMARIES
from turnlog.projectors.models.conversation.thread_activity import THREAD_ACTIVITY
from turnlog.projectors.models.conversation.thread_lookup import thread_overview
from turnlog.projectors.models.conversation.topics import TOPICS
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild import shadow
from turnlog.projectors.rebuild.replay import rebuild_thread

pytestmark = pytest.mark.slow

ROLES = ("projectors", "reactors", "agent")
FORK = ThreadForked(
    parent="t",
    at_seq=20,
    label="What if",
    message_count=7,
    user_message_count=4,
    assistant_message_count=3,
    summary=ForkedSummary(summary="Ann plans.", message_count=5, covered_seq=10, model="m"),
    topics={"essay": 3},
    tagged_through=15,
    pruned_through=10,
)


@pytest.fixture
async def play(nats_url: str, database_url: str, model: MemoryServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model"}
    return player(nats_url, database_url, ROLES, **settings)


async def forked(stage: Stage, at: int, new: str = "f", parent: str = "t", **more: Any) -> Forked:
    await stage.runtime.wait_until_projected()
    async with stage.runtime.pool.connection() as conn:
        made = await fork(conn, stage.runtime.log, "default", parent, at, new, **more)
    await stage.runtime.wait_until_projected()
    return made


async def said(stage: Stage, thread: str = "f") -> list[Any]:
    async with stage.runtime.pool.connection() as conn:
        return [message.content for message in await thread_messages(conn, "default", thread)]


async def ask(stage: Stage, text: str, thread: str) -> str:
    return await answer_to(stage.runtime, Place("default", thread), text)


async def but_vectors(stage: Stage, thread: str) -> list[Event]:
    """Returns the thread's events without those of the embedder, which come at any time."""
    return [event for event in await stage.events(thread) if event.source != EMBEDDER]


async def equal_to_a_rebuild(stage: Stage) -> None:
    assert await unlike_a_rebuild(stage.runtime.log, stage.runtime.database_url) == {}


async def test_a_fork_is_a_row_of_the_list_with_the_counts_of_its_past(db: Connection) -> None:
    spec = Spec(db, THREAD_ACTIVITY).given(event(FORK, "f", user="ann")).when(turn("on we go", thread="f", minutes=1))
    await spec.then(
        "SELECT label, user_id, message_count, user_message_count, assistant_message_count, created_at "
        "FROM thread_activity",
        [("What if", "ann", 8, 5, 3, MAY_8)],
    )


async def test_a_fork_begins_with_the_summary_and_the_topics_of_its_past(db: Connection) -> None:
    bare = ThreadForked(parent="t", at_seq=5)
    await (
        Spec(db, SUMMARIES)
        .given(event(FORK, "f"), event(bare, "g"))
        .then(
            "SELECT thread_id, summary, message_count, covered_seq, seq, model FROM conversation_summaries",
            [("f", "Ann plans.", 5, 10, seq(1), "m")],
        )
    )
    tagged = TopicsTagged(topics={"essay": 1}, derivation=derivation(16, 30))
    spec = Spec(db, TOPICS).given(event(FORK, "f"), event(bare, "g")).when(event(tagged, "f"))
    await spec.then("SELECT thread_id, topic, mention_count FROM memory_topics", [("f", "essay", 4)])
    spec = Spec(db, TOPICS).given(event(FORK, "f"))
    await spec.then("SELECT thread_id, through_seq FROM memory_tagged", [("f", 15)])


async def test_a_fork_begins_pruned_as_its_past_was(db: Connection) -> None:
    spec = Spec(db, CHECKPOINTS).given(event(FORK, "f"), event(ThreadForked(parent="t", at_seq=5), "g"))
    await spec.then("SELECT thread_id, convert_from(blob, 'UTF8') FROM checkpoint_blobs", [("f", "10")])


async def test_the_first_fork_of_a_thread_counts_and_goes_with_the_thread(db: Connection) -> None:
    forks = "SELECT thread_id, parent_id, at_seq FROM thread_forks"
    spec = Spec(db, MESSAGES).given(event(FORK, "f"), turn(thread="f"), event(ThreadForked(parent="u", at_seq=9), "f"))
    await spec.then(forks, [("f", "t", 20)])
    await spec.when(event(ThreadDeleted(), "f")).then(forks, [])


async def test_a_fork_in_a_rebuild_is_looked_up_by_its_key(db: Connection, database_url: str) -> None:
    build = "rebuild_messages"
    await shadow.create(db, [MESSAGES], build)
    forks = [Recorded(event(FORK, f"f{number}"), number, 0, MAY_8) for number in range(1, 101)]
    async with await connect(database_url, shadow.schema_of(build)) as conn, conn.transaction():
        await perform(conn, MESSAGES.changes(forks))
        read = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relid = 'thread_forks'::regclass"
        assert await rows(conn, read) == [(0,)]
    await shadow.discard(db, [MESSAGES], build)


async def test_cyclic_forks_do_not_loop_forever(db: Connection) -> None:
    """Turnlog does not write such events, but a foreign producer may."""
    circle = [event(ThreadForked(parent=b, at_seq=at), a) for a, b, at in (("a", "b", 50), ("b", "a", 30))]
    spec = Spec(db, MESSAGES).given(*circle, event(ThreadForked(parent="c", at_seq=1), "c"))
    spec = spec.when(turn("one", thread="a"), turn("two", thread="b"), turn("three", thread="c"))
    await spec.then("SELECT count(*) FROM thread_forks", [(3,)])
    assert [m.content for m in await thread_messages(db, "default", "a")] == ["one", "two"]
    assert [m.content for m in await thread_messages(db, "default", "c")] == ["three"]


async def test_a_fork_has_the_past_of_its_parent_and_its_own_turns_and_no_copy(play: Play) -> None:
    async with play("projectors") as stage:
        seqs = await stage.say(1, 6)
        made = await forked(stage, seqs[3], label="What if")
        await stage.say(7, 8)
        own = turn("another way", thread="f", minutes=9)
        await stage.runtime.log.append(own)
        await stage.runtime.wait_until_projected()
        assert (made.parent, made.at_seq, made.message_count) == ("t", seqs[3], 4)
        assert await said(stage) == ["message 1", "message 2", "message 3", "message 4", "another way"]
        assert await said(stage, "t") == [f"message {n}" for n in range(1, 9)]
        assert await stage.rows("SELECT count(*) FROM messages") == [(9,)]
        async with stage.runtime.pool.connection() as conn:
            first, *_ = await thread_messages(conn, "default", "t")
            assert await message_by_event(conn, "default", "f", first.event_id) == first
            assert (await message_by_event(conn, "default", "f", own.id)) is not None
            assert await message_by_event(conn, "default", "t", own.id) is None
            assert (await thread_overview(conn, "default", "f")).count == 5
        await equal_to_a_rebuild(stage)


async def test_forks_of_forks_go_back_to_the_first_thread(play: Play) -> None:
    async with play("projectors") as stage:
        first = await stage.say(1, 4)
        await forked(stage, first[1], "f")
        second = await stage.say(5, 8, "f")
        await forked(stage, second[1], "g", "f")
        await stage.say(9, 9, "g")
        early = await forked(stage, first[0], "h", "g")
        between = await forked(stage, second[0] - 1, "i", "f")
        await stage.say(10, 10, "h")
        await stage.runtime.wait_until_projected()
        assert await said(stage, "g") == [f"message {n}" for n in (1, 2, 5, 6, 9)]
        assert await said(stage, "h") == ["message 1", "message 10"]
        assert (early.parent, between.parent, between.at_seq) == ("t", "f", second[0] - 1)
        assert await said(stage, "i") == ["message 1", "message 2"]
        await equal_to_a_rebuild(stage)
        for projection in (projection for projection in PROJECTIONS if projection.per_thread):
            await rebuild_thread(stage.runtime.log, stage.runtime.database_url, projection, "default", "g")
        assert await said(stage, "g") == [f"message {n}" for n in (1, 2, 5, 6, 9)]
        await equal_to_a_rebuild(stage)


async def test_a_deleted_parent_takes_its_turns_along_and_leaves_the_summary_and_what_the_fork_said(play: Play) -> None:
    async with play("projectors") as stage:
        seqs = await stage.say(1, 4)
        await stage.runtime.log.append(event(summary("They met.", seqs[1])))
        await forked(stage, seqs[3] + 1)
        await stage.say(5, 6, "f")
        await stage.runtime.wait_until_projected()
        kept = Transcripts()
        async with stage.runtime.pool.connection() as conn:
            before = await kept.state(conn, "default", "f", await thread_overview(conn, "default", "f"))
            await stage.runtime.log.append(event(ThreadDeleted()))
            await stage.say(7, 7)
            await stage.runtime.wait_until_projected()
            now = await thread_overview(conn, "default", "f")
            after = await kept.state(conn, "default", "f", now)
        assert len(before) == 6
        assert [m.content for m in after] == ["message 5", "message 6"]
        assert now.summary == "They met."
        with pytest.raises(NotFound, match="was deleted with its past at sequence"):
            await forked(stage, seqs[1], "g")
        await equal_to_a_rebuild(stage)


async def test_an_impossible_fork_is_refused_and_nothing_is_stored(play: Play) -> None:
    call = ToolCall(id="call_1", name="calendar", arguments="{}")
    async with play("projectors") as stage:
        log = stage.runtime.log
        await log.append(turn(thread="other"))
        first, *_ = await stage.say(1, 2)
        calling = turn("looking", "assistant", tool_calls=(call,))
        asked, told = await log.append_many([calling, turn("8 May", "tool", tool_call_id="call_1")])
        [last] = await stage.say(3, 3)
        head = await log.head()
        with pytest.raises(NotFound, match="there is no thread 'nowhere'"):
            await forked(stage, first, parent="nowhere")
        with pytest.raises(NotFound, match=f"has sequences from {first} to {last}; 1 is before"):
            await forked(stage, 1)
        with pytest.raises(NotFound, match=f"ends at sequence {last}, before 99"):
            await forked(stage, 99)
        with pytest.raises(CutInACall, match=f"fork at {first + 1} or {told.seq}"):
            await forked(stage, asked.seq)
        for taken in ("t", "other"):
            with pytest.raises(ThreadExists, match=f"there is, or was, a thread '{taken}'"):
                await forked(stage, last, taken)
        with pytest.raises(InvalidToken):
            await forked(stage, last, "x" * 600)
        assert await log.head() == head
        assert (await forked(stage, told.seq)).message_count == 4


async def test_a_fork_from_before_a_pruning_is_not_pruned_and_one_from_after_is(play: Play) -> None:
    async with play("projectors") as stage:
        seqs = await stage.say(1, 6)
        await stage.runtime.log.append(event(HistoryPruned(through_seq=seqs[3], removed=4, remaining=2)))
        await stage.say(7, 7)
        await forked(stage, seqs[5], "before")
        await forked(stage, seqs[5] + 1, "after")
        async with stage.runtime.pool.connection() as conn:
            before, after = [await thread_overview(conn, "default", name) for name in ("before", "after")]
        assert (before.count, after.count, after.pruned_through) == (6, 2, seqs[3])


async def test_parent_and_fork_answer_and_remember_independently(play: Play, model: MemoryServer) -> None:
    """With real roles, the fork is answered with the shared past, both continue their summaries, and all receipts can
    be rebuilt."""
    async with play(context_window=2_500, max_messages_per_thread=40) as stage:
        await stage.runtime.log.append(turn("I ran a marathon in Lisbon."))
        seqs = await stage.say(1, 38, length=20)
        await stage.rest()
        await ask(stage, "parent, before?", "t")
        await stage.rest()
        head = await stage.runtime.log.thread_head("default", "t")
        await forked(stage, head)
        parent = await but_vectors(stage, "t")
        model.said["summary"] = "They cancelled it."
        assert await ask(stage, "fork, now?", "f") == "echo: fork, now?"
        shown = [m["content"] for m in model.asked("answer")[-1]["messages"]]
        assert any("message 38" in text for text in shown)
        assert "They planned a trip." in shown[1]
        await stage.say(39, 64, "f", length=20)
        await stage.rest()
        await ask(stage, "fork, later?", "f")
        await stage.rest()
        assert await but_vectors(stage, "t") == parent
        model.said["summary"] = "They went."
        await stage.say(65, 90, "t", length=20)
        await stage.rest()
        async with stage.runtime.pool.connection() as conn:
            mine, theirs = [await thread_overview(conn, "default", name) for name in ("f", "t")]
            assert mine.summary is not None
            assert theirs.summary is not None
            assert "They cancelled it." in mine.summary
            assert "They went." not in mine.summary
            assert "They went." in theirs.summary
            assert "They cancelled it." not in theirs.summary
            assert mine.pruned_through > seqs[0]
            assert len(await stage.all("history_pruned", "f")) > 0
            recorded_receipts = await receipts(conn, stage.runtime.log, "default", "f")
            assert [pair[0].event.thread for pair in recorded_receipts] == ["t", "f", "f"]
            for _, receipt in recorded_receipts:
                built = await rebuilt(
                    conn, stage.runtime.log, stage.runtime.settings, "default", "f", receipt.as_of_seq
                )
                assert built.matches, receipt.as_of_seq
        await equal_to_a_rebuild(stage)


async def test_recall_in_a_fork_finds_the_shared_past_and_nothing_that_the_parent_said_later(play: Play) -> None:
    async with play("projectors") as stage:
        log = stage.runtime.log
        await log.append_many([turn("I ran a marathon in Lisbon."), turn("The marathon was hot.")])
        at = await log.head()
        await log.append_many([turn("The second marathon was in Oslo."), turn("I ran a marathon in Lisbon.")])
        await forked(stage, at)
        await log.append(turn("No marathon for me.", thread="f"))
        await stage.runtime.wait_until_projected()
        async with stage.runtime.pool.connection() as conn:
            recall = Recall(None)
            mine = await recall.search(conn, Scope("default", "f"), "marathon", 9)
            theirs = await recall.search(conn, Scope("default", "t"), "marathon", 9)
    assert {(turn.thread, turn.seq) for turn in mine} == {("t", 1), ("t", 2), ("f", at + 4)}
    assert {turn.seq for turn in theirs} == {1, 2, 3, 4}


async def test_the_past_of_a_fork_reaches_across_the_boundary(play: Play) -> None:
    async with play("projectors") as stage:
        seqs = await stage.say(1, 4)
        await stage.runtime.log.append(event(summary("Early.", seqs[1])))
        await stage.say(5, 6)
        made = await forked(stage, seqs[3] + 1)
        await stage.runtime.log.append(event(summary("Late.", seqs[3])))
        own = await stage.say(7, 8, "f")
        await stage.runtime.wait_until_projected()
        texts = {}
        async with stage.runtime.pool.connection() as conn:
            for at in (seqs[2], seqs[3] + 1, made.seq - 1, made.seq, own[0], own[1]):
                context = await thread_context(
                    conn, stage.runtime.settings, "default", "f", log=stage.runtime.log, as_of_seq=at
                )
                texts[at] = [m["content"].removeprefix("message ") for m in context.messages[1:]]
            shared = await thread_context(
                conn, stage.runtime.settings, "default", "t", log=stage.runtime.log, as_of_seq=seqs[2]
            )
    past = ["1", "2", "3", "4"]
    assert texts[seqs[2]] == ["1", "2", "3"] == [m["content"].removeprefix("message ") for m in shared.messages[1:]]
    assert texts[seqs[3] + 1] == texts[made.seq - 1] == texts[made.seq] == past
    assert (texts[own[0]], texts[own[1]]) == ([*past, "7"], [*past, "7", "8"])


def summary(text: str, through: int) -> SummaryWritten:
    made = derivation(1, through)
    return SummaryWritten(summary=text, message_count=2, covered_seq=through, derivation=made)
