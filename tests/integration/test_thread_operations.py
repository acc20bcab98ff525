"""The operations on conversations (threads, turns, contexts with receipts, recall) read their own writes."""

from typing import Any
from uuid import uuid4

import pytest
from helpers.stage import Play, Stage, player

from turnlog.agent.answering.asking import ask
from turnlog.agent.answering.context import context_as_of, context_of
from turnlog.agent.answering.receipts import receipts
from turnlog.agent.answering.turns import NewTurn, WrongReceipt, add_turn, add_turns
from turnlog.agent.conversations.labels import label_thread
from turnlog.agent.conversations.threads import (
    delete_thread,
    get_thread,
    list_threads,
    open_thread,
    rename_thread,
)
from turnlog.agent.conversations.transcript import transcript
from turnlog.agent.recall.recall import BadQuery, recall
from turnlog.consumers.runtime import opened
from turnlog.events.contracts import ChunksEmbedded, Event
from turnlog.events.errors import InvalidEvent, InvalidToken, NotFound, WrongExpectedVersion

ACME = "acme"


@pytest.fixture
async def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ("projectors",), model="test-model")


async def say(stage: Stage, *texts: str, thread: str = "t", user: str | None = "ann") -> list[int]:
    turns = [NewTurn("user" if at % 2 == 0 else "assistant", text) for at, text in enumerate(texts)]
    added = await add_turns(stage.runtime, ACME, thread, turns, user=user)
    return [turn.seq for turn in added.turns]


async def test_a_thread_is_opened_renamed_listed_and_deleted(play: Play) -> None:
    async with play() as stage:
        await open_thread(stage.runtime, ACME, "t", "ann", "Dogs")
        assert (await get_thread(stage.runtime, ACME, "t")).label == "Dogs"
        await rename_thread(stage.runtime, ACME, "t", "Corgis")
        await say(stage, "hello", thread="other", user="bob")
        listed = await list_threads(stage.runtime, ACME)
        assert {(thread.thread, thread.label, thread.user, thread.messages) for thread in listed} == {
            ("t", "Corgis", "ann", 0),
            ("other", None, "bob", 1),
        }
        assert [thread.thread for thread in await list_threads(stage.runtime, ACME, "bob")] == ["other"]
        await delete_thread(stage.runtime, ACME, "t")
        assert [thread.thread for thread in await list_threads(stage.runtime, ACME)] == ["other"]
        with pytest.raises(NotFound):
            await rename_thread(stage.runtime, ACME, "t", "gone")
        with pytest.raises(WrongExpectedVersion):
            await open_thread(stage.runtime, ACME, "other", must_be_new=True)


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("Which dog food is best?", "Which dog food is best?"),
        ("Hi,\n\nI am planning a trip to Lisbon, in May or June.", "Hi, I am planning a trip to Lisbon, in…"),
        ("我想预订下周五从上海去北京的高铁票，请帮我看看", "我想预订下周五从上海去北京的高铁票，请…"),
        ("My GPA 是多少才能申请 Stanford 大学的计算机科学系？", "My GPA 是多少才能申请 Stanford 大学的…"),
        ("https://example.org/a/very/long/address/of/a/picture", "https://example.org/a/very/long/address…"),
    ],
)
async def test_a_conversation_is_labelled_with_its_users_first_words(play: Play, said: str, label: str) -> None:
    async with play() as stage:
        await add_turns(stage.runtime, ACME, "t", [NewTurn("assistant", "Hello!"), NewTurn("user", said)], user="ann")
        await say(stage, "And cats?")
        assert await label_thread(stage.runtime, ACME, "t") == label
        listed = await get_thread(stage.runtime, ACME, "t")
        head = await stage.runtime.log.head()
        assert (listed.label, await label_thread(stage.runtime, ACME, "t")) == (label, label)
        assert await stage.runtime.log.head() == head, "once"


async def test_a_label_that_a_person_gave_stays(play: Play) -> None:
    async with play() as stage:
        await open_thread(stage.runtime, ACME, "opened", "ann", "Dogs")
        await say(stage, "hello", thread="opened")
        await say(stage, "hello", thread="renamed")
        await rename_thread(stage.runtime, ACME, "renamed", "Cats")
        assert [await label_thread(stage.runtime, ACME, thread) for thread in ("opened", "renamed")] == ["Dogs", "Cats"]
        with pytest.raises(NotFound):
            await label_thread(stage.runtime, ACME, "nobody")


async def test_conversations_without_words_of_their_user_are_numbered_in_their_language(play: Play) -> None:
    result = [{"type": "tool_result", "tool_use_id": "c1", "content": "今天晴，二十度"}]
    firsts = {
        "empty": [NewTurn("user", ""), NewTurn("assistant", "How can I help?")],
        "result": [NewTurn("user", result)],
        "signs": [NewTurn("user", "？！"), NewTurn("assistant", "请问有什么可以帮您？")],
    }
    async with play() as stage:
        for thread, turns in firsts.items():
            await add_turns(stage.runtime, ACME, thread, turns, user="ann")
        await open_thread(stage.runtime, ACME, "without turns", "bob")
        labels = [await label_thread(stage.runtime, ACME, thread) for thread in (*firsts, "without turns")]
    assert labels == ["Conversation 1", "会话 2", "会话 3", "Conversation 1"]


async def test_a_turn_that_is_appended_again_with_its_id_is_stored_once(play: Play) -> None:
    turn = NewTurn("user", "hello", id=uuid4())
    async with play() as stage:
        first = await add_turn(stage.runtime, ACME, "t", turn)
        again = await add_turn(stage.runtime, ACME, "t", turn)
        assert (again.seq, again.duplicate) == (first.seq, True)
        assert len((await transcript(stage.runtime, ACME, "t")).turns) == 1
        with pytest.raises(WrongExpectedVersion):
            await add_turn(stage.runtime, ACME, "t", NewTurn("user", "late"), expected=0)


async def test_a_turn_keeps_its_blocks_calls_and_numbers(play: Play) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/dog.png"}}
    async with play() as stage:
        turns = [
            NewTurn("user", [{"type": "text", "text": "Who is this?"}, picture], name="Ann"),
            NewTurn("assistant", tool_calls=[call], model="gpt-4o", tokens_out=3),
            NewTurn("tool", "a corgi", tool_call_id="c1"),
        ]
        await add_turns(stage.runtime, ACME, "t", turns)
        asked, called, told = (await transcript(stage.runtime, ACME, "t")).turns
    assert [block["type"] for block in asked.content if isinstance(block, dict)] == ["text", "image"]
    assert called.tool_calls == [{"id": "c1", "name": "look", "arguments": '{"at": 1}'}]
    assert (called.content, told.tool_call_id, asked.name) == ("", "c1", "Ann")


NO_TURNS: list[tuple[Any, str]] = [
    (NewTurn("king", "x"), "role: "),
    (NewTurn("user"), ""),
    (NewTurn("user", [{"text": "x"}]), ""),
    (NewTurn("user", 5), "content is text or a list of blocks, not int"),
    (NewTurn("user", {"text": "x"}), "content is text or a list of blocks, not dict"),
]


@pytest.mark.parametrize(("turn", "reason"), NO_TURNS)
async def test_a_malformed_turn_is_refused_with_the_reason(play: Play, turn: NewTurn, reason: str) -> None:
    async with play() as stage:
        with pytest.raises(InvalidEvent, match=f"the turn cannot be stored: {reason}"):
            await add_turn(stage.runtime, ACME, "t", turn)
        with pytest.raises(InvalidToken):
            await add_turn(stage.runtime, ACME, "memories/ann", NewTurn("user", "x"))


async def test_a_transcript_is_read_in_pages_from_either_end(play: Play) -> None:
    async with play() as stage:
        seqs = await say(stage, *(f"message {n}" for n in range(5)))
        page = await transcript(stage.runtime, ACME, "t", limit=2)
        assert ([turn.seq for turn in page.turns], page.more) == (seqs[:2], True)
        rest = await transcript(stage.runtime, ACME, "t", limit=3, after_seq=seqs[1])
        assert ([turn.seq for turn in rest.turns], rest.more) == (seqs[2:], False)
        last = await transcript(stage.runtime, ACME, "t", limit=2, newest=True)
        assert ([turn.seq for turn in last.turns], last.more) == (seqs[3:], True)
        before = await transcript(stage.runtime, ACME, "t", limit=2, before_seq=seqs[3], newest=True)
        assert [turn.seq for turn in before.turns] == seqs[1:3]
        with pytest.raises(NotFound):
            await transcript(stage.runtime, ACME, "nobody")


async def long_talk(stage: Stage) -> None:
    await say(stage, "My corgi is called Sesame.", *(f"Filler {n}: {'weather and traffic ' * 10}" for n in range(40)))


@pytest.mark.parametrize("hybrid", [False, None])
async def test_an_answer_that_comes_with_its_receipt_is_stored_with_its_question_and_found_by_time_travel(
    play: Play, hybrid: bool | None
) -> None:
    """This also works if another turn, which the model did not see, came between the context and the answer."""
    async with play() as stage:
        await long_talk(stage)
        made = await context_of(
            stage.runtime, ACME, "t", query="What is my corgi called?", user="ann", tokens=900, hybrid=hybrid
        )
        await say(stage, "by the way")
        await add_turn(stage.runtime, ACME, "t", NewTurn("assistant", "Sesame."), receipt=made.receipt)
        *_, question, answer = (await transcript(stage.runtime, ACME, "t")).turns
        async with stage.runtime.pool.connection() as conn:
            [(_, receipt)] = await receipts(conn, stage.runtime.log, ACME, "t")
        then = await context_as_of(stage.runtime, ACME, "t", receipt.as_of_seq)
    assert (question.content, question.role, question.user) == ("What is my corgi called?", "user", "ann")
    assert (receipt.turn_id, receipt.answer_ids) == (question.event_id, (answer.event_id,))
    assert receipt.as_of_seq == question.seq
    assert then.matches and then.context.messages == made.context.messages
    assert ("Sesame" in str(made.context.messages)) == (hybrid is None), "relevant turns are shown by default"
    assert sum(tier.tokens for tier in made.context.tiers) <= made.context.budget < 900


async def test_a_question_on_the_log_is_not_asked_twice(play: Play) -> None:
    async with play() as stage:
        await say(stage, "My corgi is called Sesame.", "Nice.", "What is my corgi called?")
        made = await context_of(stage.runtime, ACME, "t", query="What is my corgi called?")
        assert [wire["content"] for wire in made.context.messages].count("What is my corgi called?") == 1
        answer = NewTurn("assistant", "Sesame.")
        for _ in range(2):
            await add_turn(stage.runtime, ACME, "t", answer, receipt=made.receipt)
        async with stage.runtime.pool.connection() as conn:
            [(_, receipt)] = await receipts(conn, stage.runtime.log, ACME, "t")
        turns = (await transcript(stage.runtime, ACME, "t")).turns
        then = await context_as_of(stage.runtime, ACME, "t", receipt.as_of_seq)
    assert [turn.role for turn in turns] == ["user", "assistant", "user", "assistant"]
    assert receipt.turn_id == turns[2].event_id
    assert then.matches


async def test_a_receipt_is_refused_unless_it_comes_with_an_answer_of_its_thread(play: Play) -> None:
    async with play() as stage:
        made = await context_of(stage.runtime, ACME, "t", query="hello")
        with pytest.raises(WrongReceipt):
            await add_turn(stage.runtime, ACME, "t", NewTurn("user", "me"), receipt=made.receipt)
        with pytest.raises(WrongReceipt):
            await add_turn(stage.runtime, ACME, "other", NewTurn("assistant", "me"), receipt=made.receipt)
        with pytest.raises(NotFound):
            await context_of(stage.runtime, ACME, "t")


async def test_recall_finds_turns_of_a_thread_and_of_all_threads_of_a_user(play: Play) -> None:
    async with play() as stage:
        await say(stage, "My corgi is called Sesame.", "A fine name.")
        await say(stage, "I ran a marathon in Lisbon.", thread="run")
        of_thread = await recall(stage.runtime, ACME, "corgi", thread="t", k=1)
        assert [turn.text for turn in of_thread.turns] == ["My corgi is called Sesame."]
        assert of_thread.degraded is not None and "keyword search only" in of_thread.degraded
        of_user = await recall(stage.runtime, ACME, "marathon", user="ann", k=1, keyword_only=True)
        assert [turn.thread for turn in of_user.turns] == ["run"]
        assert (await recall(stage.runtime, ACME, "marathon", user="bob")).turns == []
        with pytest.raises(BadQuery):
            await recall(stage.runtime, ACME, "marathon")
        with pytest.raises(NotFound):
            await recall(stage.runtime, ACME, "marathon", thread="nobody")


async def test_recall_of_a_user_does_not_wait_for_events_after_the_last_turn(play: Play) -> None:
    async with play() as stage:
        await say(stage, "My corgi is called Sesame.")
        await stage.runtime.wait_until_projected()
    async with opened(stage.runtime.settings, "without-projectors") as runtime:
        embedded = ChunksEmbedded(model="m", dimensions=3, chunk_ids=("none",))
        await runtime.log.append(Event(source="test", tenant=ACME, thread="import", data=embedded))
        assert [turn.seq for turn in (await recall(runtime, ACME, "corgi", user="ann")).turns] == [1]


async def test_a_blank_question_is_refused_before_it_is_asked(play: Play) -> None:
    async with play() as stage:
        with pytest.raises(InvalidEvent):
            _ = [piece async for piece in ask(stage.runtime, ACME, "t", "  ")]
        with pytest.raises(NotFound):
            await transcript(stage.runtime, ACME, "t")
