"""Tests the agent consumer with a local server of the OpenAI API: streams, tools, receipts, refusals and order."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, answer_to, pieces_of
from helpers.sample_events import derivation, event, turn
from helpers.servers import eventually
from helpers.stage import Play, Stage, player
from prometheus_client import REGISTRY
from uuid_utils.compat import uuid7

from turnlog.agent.answering import asking as conversing
from turnlog.agent.answering.asking import Answered, AnswerPiece, NoAnswer, QuestionStored, Restarted, Seen, Text
from turnlog.agent.answering.pieces import Progress
from turnlog.agent.answering.request import Question, answer_id, question_events
from turnlog.agent.context.receipt import context_hash
from turnlog.events.contracts import Erased, EventData, SummaryWritten, ThreadDeleted, TopicsTagged
from turnlog.events.errors import NotFound
from turnlog.events.stored import recorded
from turnlog.events.subjects import progress_subject

pytestmark = pytest.mark.slow

ROLES = ("projectors", "agent")
PLACE = Place(user="ann")


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model"}
    return player(nats_url, database_url, ROLES, **settings)


async def ask(stage: Stage, text: str, place: Place = PLACE) -> str:
    return await answer_to(stage.runtime, place, text)


async def long_ago(stage: Stage) -> None:
    """Appends more turns than fit into a small window; the first one mentions the marathon."""
    said = ["I ran a marathon in Lisbon.", *(f"Filler {n}: {'weather and traffic ' * 10}" for n in range(40))]
    await stage.runtime.log.append_many([turn(text, minutes=n) for n, text in enumerate(said)])


async def test_the_answer_is_streamed_to_the_asker_and_recorded_on_the_log(play: Play, model: OpenAIServer) -> None:
    model.reply("The capital is Lisbon.", between=0.02)
    async with play() as stage:
        _, seen, *pieces, answer = await pieces_of(stage.runtime, PLACE, "Which capital?")
        kinds = [event.type for event in await stage.events()]
        [usage] = await stage.all("usage_metered")
    assert isinstance(seen, Seen) and [tier["turns"] for tier in seen.tiers] == [1]
    assert pieces == [Text("The "), Text("capital "), Text("is "), Text("Lisbon.")]
    assert isinstance(answer, Answered) and answer.answer == "The capital is Lisbon."
    assert kinds == ["turn_recorded", "answer_requested", "turn_recorded", "answer_receipt", "usage_metered"]
    assert (usage.purpose, usage.calls, usage.tokens_out) == ("answer", 1, 4)


FORGED: list[Any] = [
    *([], "text", {}, {"kind": "none"}, {"kind": "text", "text": 5}, {"kind": "text", "text": "\ud800"}),
    *({"kind": "context"}, {"kind": "context", "context": {"tiers": [], "memories": [], "more": 1}}),
    *({"kind": "tool"}, {"kind": "tool", "id": [], "name": "x", "arguments": "{}"}),
    *({"kind": "result", "id": "1"}, {"kind": "end", "finish_reason": {}}),
]


async def test_forged_progress_messages_are_ignored(nats_url: str, database_url: str) -> None:
    turn_id = uuid7()
    subject = progress_subject(PLACE.tenant, PLACE.thread, str(answer_id(turn_id, "request")))
    async with player(nats_url, database_url, ("projectors",))() as stage:
        pieces = conversing.ask(stage.runtime, PLACE.tenant, PLACE.thread, "Well?", user="ann", turn_id=turn_id)
        async with aclosing(pieces):
            assert isinstance(await anext(pieces), QuestionStored)
            for forged in (b"\xff", *(json.dumps(message).encode() for message in FORGED)):
                await stage.runtime.log.nc.publish(subject, forged)
            await stage.runtime.log.nc.publish(subject, b'{"kind": "text", "text": "Hello", "more": 1}')
            assert await anext(pieces) == Text("Hello")


async def test_the_model_recalls_turns_outside_its_window(play: Play, model: OpenAIServer) -> None:
    model.reply(tool_calls=[("recall_memory", {"query": "marathon", "k": 1})])
    model.reply("You ran in Lisbon.")
    async with play(context_window=1_500) as stage:
        await long_ago(stage)
        assert await ask(stage, "Where did I run?") == "You ran in Lisbon."
        turns = (await stage.all("turn_recorded"))[-4:]
        [receipt] = await stage.all("answer_receipt")
        usages = await stage.all("usage_metered")
    first, second = model.bodies("chat")
    assert "marathon" not in json.dumps(first["messages"])
    assert first["tools"][0]["function"]["name"] == "recall_memory"
    call, result = second["messages"][-2:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert json.loads(result["content"])["items"][0]["text"] == "I ran a marathon in Lisbon."
    assert [t.role for t in turns] == ["user", "assistant", "tool", "assistant"]
    assert len(receipt.recalled_chunks) == 1
    assert len(usages) == 2


async def test_the_model_searches_one_topic_and_hears_when_no_turn_has_it(play: Play, model: OpenAIServer) -> None:
    calls = [{"query": "Lisbon", "topic": "Marathon"}, {"query": "Lisbon", "topic": "chess"}]
    model.reply(tool_calls=[("recall_memory", arguments) for arguments in calls])
    model.reply("In Lisbon.")
    async with play(context_window=1_500) as stage:
        await stage.runtime.log.append(turn("Lisbon is the capital.", minutes=-1))
        await long_ago(stage)
        await stage.runtime.log.append(event(TopicsTagged(topics={"marathon": 1}, derivation=derivation(1, 2))))
        assert await ask(stage, "Where did I run?") == "In Lisbon."
    marathon, chess = (json.loads(m["content"]) for m in model.bodies("chat")[1]["messages"][-2:])
    assert [item["text"] for item in marathon["items"]] == ["I ran a marathon in Lisbon."]
    assert chess["items"] == [] and "without it" in chess["note"]


async def test_wrong_arguments_and_unknown_tools_are_reported_to_the_model(play: Play, model: OpenAIServer) -> None:
    model.reply(tool_calls=[("recall_memory", {"question": "x"}), ("delete_everything", {})])
    model.reply("Sorry.")
    async with play() as stage:
        assert await ask(stage, "hello") == "Sorry."
    wrong, unknown = (json.loads(m["content"])["error"] for m in model.bodies("chat")[1]["messages"][-2:])
    assert "query" in wrong
    assert "delete_everything" in unknown


async def test_a_model_that_only_calls_tools_must_answer_in_the_end(play: Play, model: OpenAIServer) -> None:
    for _ in range(3):
        model.reply(tool_calls=[("recall_memory", {"query": "x"})])
    model.reply("Enough.")
    async with play() as stage:
        assert await ask(stage, "hello") == "Enough."
    assert ["tools" in body for body in model.bodies("chat")] == [True, True, True, False]


async def test_the_receipt_describes_the_request_that_the_server_received(play: Play, model: OpenAIServer) -> None:
    async with play(context_window=1_500) as stage:
        await long_ago(stage)
        await ask(stage, "What now?")
        [receipt] = await stage.all("answer_receipt")
        sent = model.bodies("chat")[0]["messages"]
        said = dict(await stage.rows("SELECT seq, content FROM messages"))
        shown = [span for tier in receipt.tiers for span in tier.turns.spans]
        seqs = [seq for seq in sorted(said) if any(first <= seq <= last for first, last in shown)]
    assert receipt.context_hash == context_hash(sent)
    assert [m["content"] for m in sent[1:]] == [said[seq] for seq in seqs]
    assert len(seqs) + receipt.dropped.count == len(said) - 1
    assert receipt.model == "test-model"


async def test_a_small_window_gets_the_tiers(play: Play, model: OpenAIServer) -> None:
    async with play(context_window=1_500) as stage:
        await long_ago(stage)
        data = SummaryWritten(summary="Ann runs.", message_count=20, covered_seq=20, derivation=derivation(1, 20))
        tagged = TopicsTagged(topics={"running": 3}, derivation=derivation(1, 20))
        await stage.runtime.log.append_many([event(data), event(tagged)])
        await ask(stage, "What now?")
        [receipt] = await stage.all("answer_receipt")
    head = model.bodies("chat")[0]["messages"][1]["content"]
    assert "[Conversation Summary]\nAnn runs." in head
    assert "[Recallable Topics]: running" in head
    assert [tier.tier for tier in receipt.tiers] == ["1", "2", "3"]
    assert sum(tier.tokens for tier in receipt.tiers) <= receipt.budget


async def test_a_refused_key_is_reported_and_never_shown(nats_url: str, database_url: str) -> None:
    secret = "sk-secret-0123456789abcdef"
    with OpenAIServer(accept_key="another") as model:
        play = player(nats_url, database_url, ROLES, api_base_url=model.url, api_key=secret)
        async with play() as stage:
            with pytest.raises(NoAnswer, match="API key is missing or wrong; set API_KEY") as refused:
                await ask(stage, "hello")
            [metered] = await stage.until("usage_metered", 1)
            log = json.dumps([event.model_dump(mode="json") for event in await stage.events()])
    assert metered.error.startswith("model-refused")
    assert secret not in str(refused.value) + log


@pytest.mark.usefixtures("no_second_try")
async def test_a_model_that_fails_is_not_asked_again_by_the_consumer(play: Play, model: OpenAIServer) -> None:
    model.fail(503, times=20)
    before = counted_requests()
    async with play(model_timeout_s=60.0) as stage:  # too short for a second try
        with pytest.raises(NoAnswer) as refused:
            await ask(stage, "still there?")
        assert refused.value.category == "network"
        await stage.rest("agent")
        [failed] = await stage.all("usage_metered")
        assert failed.error.startswith("model-unavailable")
        assert [turn.content for turn in await stage.all("turn_recorded")] == ["still there?"]
    assert len(model.bodies()) == 1
    assert counted_requests() - before == Counter(error=1, by_agent=1)


def counted_requests() -> Counter[str]:
    """Returns the number of answers of this process by their outcome."""
    names = {
        "success": ("ai_agent_requests_total", {"status": "success"}),
        "error": ("ai_agent_requests_total", {"status": "error"}),
        "by_agent": ("ai_agent_requests_by_agent_total", {}),
        "retries": ("ai_agent_request_retries_total", {}),
    }
    return Counter(
        {
            key: int(REGISTRY.get_sample_value(name, {"agent": "orchestrator", **labels}) or 0)
            for key, (name, labels) in names.items()
        }
    )


async def test_a_question_that_waited_for_its_worker_has_its_whole_time(play: Play, model: OpenAIServer) -> None:
    asked = question_events(Question("default", "t", "late?", "ann"))
    async with play("projectors", answer_timeout_s=60.0) as stage:
        old = asked.request.model_copy(update={"time": asked.request.time - timedelta(hours=1)})
        await stage.runtime.log.append_many([asked.turn, old])
    async with play(answer_timeout_s=60.0) as stage:
        await stage.until("answer_receipt", 1)
        assert [turn.content for turn in await stage.all("turn_recorded")] == ["late?", "echo: late?"]


async def test_a_client_without_progress_reads_the_failure_from_the_log(play: Play, model: OpenAIServer) -> None:
    model.fail(429, code="insufficient_quota")
    async with play() as stage:
        with pytest.raises(NoAnswer):
            await ask(stage, "hello")
        [request] = [event for event in await stage.events() if event.type == "answer_requested"]
        seq = await stage.runtime.log.thread_head_of("default", "t", ("answer_requested",))
        with pytest.raises(NoAnswer, match="no credit left") as refused:
            [piece async for piece in conversing.follow(stage.runtime, "default", "t", seq)]
    assert request.correlation is None and refused.value.category == "quota"


async def test_an_answer_that_breaks_twice_ends_with_the_received_text_and_is_marked(
    play: Play, model: OpenAIServer
) -> None:
    model.drop(after=2)
    model.drop(after=3)
    async with play() as stage:
        *_, answer = await pieces_of(stage.runtime, PLACE, "hello")
        [usage] = await stage.all("usage_metered")
    assert isinstance(answer, Answered)
    assert (answer.answer, answer.finish_reason, usage.error) == ("one two ", "broken", "broken")
    assert len(model.bodies()) == 2


async def test_an_empty_answer_is_a_failure_and_its_tokens_are_counted(play: Play, model: OpenAIServer) -> None:
    model.reply("")
    async with play() as stage:
        with pytest.raises(NoAnswer, match="was empty"):
            await ask(stage, "hello")
        [usage] = await stage.all("usage_metered")
    assert usage.error.startswith("model-empty-answer") and usage.tokens_in > 0


async def test_a_stream_that_breaks_starts_again_and_the_asker_is_told(play: Play, model: OpenAIServer) -> None:
    model.drop(after=2)
    async with play() as stage:
        *shown, answer = await pieces_of(stage.runtime, PLACE, "hello")
    last = shown[shown.index(Restarted()) + 1 :]
    assert "".join(piece.text for piece in last if isinstance(piece, Text)) == "echo: hello"
    assert isinstance(answer, Answered) and answer.answer == "echo: hello"


async def test_two_questions_at_once_are_answered_in_their_order(play: Play, model: OpenAIServer) -> None:
    model.reply("first answer", until=(go := threading.Event()))
    model.reply("second answer")
    async with play() as stage:
        first = asyncio.create_task(ask(stage, "question one"))
        await eventually(lambda: arrived(model, 1))
        second = asyncio.create_task(ask(stage, "question two"))
        go.set()
        assert await second == "second answer"
        assert await first == "first answer"
        said = [data.content for data in await stage.all("turn_recorded")]
    assert said == ["question one", "first answer", "question two", "second answer"]


async def test_threads_do_not_wait_for_each_other(play: Play, model: OpenAIServer) -> None:
    model.reply("slow", until=(go := threading.Event()))
    async with play() as stage:
        slow = asyncio.create_task(ask(stage, "one"))
        await eventually(lambda: arrived(model, 1))
        assert await ask(stage, "two", Place(thread="other")) == "echo: two"
        assert not slow.done()
        go.set()
        assert await slow == "slow"


@pytest.mark.parametrize("removal", [ThreadDeleted(), Erased()])
async def test_a_thread_that_is_removed_while_it_is_answered_stays_removed(
    play: Play, model: OpenAIServer, removal: EventData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The projectors are stopped, so that no read model shows the removal yet."""
    # otherwise the asker would wait for the projectors, which wait for this test
    monkeypatch.setattr(conversing, "LOOK_AGAIN_S", 60.0)
    model.reply("too late", until=(go := threading.Event()))
    async with play() as stage:
        asking = asyncio.create_task(ask(stage, "hello"))
        await eventually(lambda: arrived(model, 1))
        async with stage.runtime.pool.connection() as conn, conn.transaction():
            await conn.execute("SELECT FROM projection_positions ORDER BY projection, partition FOR UPDATE")
            await stage.runtime.log.append(event(removal))
            go.set()
            with pytest.raises(NotFound, match="deleted"):
                await asking
        await stage.rest("agent")
        assert await stage.rows("SELECT count(*) FROM messages") == [(0,)]


async def test_a_question_whose_row_was_deleted_meanwhile_gets_no_answer(play: Play, model: OpenAIServer) -> None:
    """This happens when one of several people in the thread is erased."""
    model.reply("too late", until=(go := threading.Event()))
    async with play() as stage:
        asking = asyncio.create_task(ask(stage, "hello"))
        await eventually(lambda: arrived(model, 1))
        async with stage.runtime.pool.connection() as conn:
            await conn.execute("DELETE FROM messages")
        go.set()
        with pytest.raises(NoAnswer, match="deleted"):
            await asking
        await stage.rest("agent")
        assert [data.content for data in await stage.all("turn_recorded")] == ["hello"]


async def test_a_question_after_a_parked_event_is_refused_with_the_cause_and_no_model_is_asked(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await stage.bad("turn_recorded")
        with pytest.raises(NoAnswer, match=r"could not be projected \(1: .*dead-letters list"):
            await ask(stage, "hello")
        await stage.rest("agent")
    assert model.bodies() == []


async def test_a_window_without_room_is_reported_and_not_retried(play: Play, model: OpenAIServer) -> None:
    async with play(context_window=256) as stage:
        with pytest.raises(NoAnswer, match="MEMORY_CONTEXT_WINDOW"):
            await ask(stage, "hello")
        await stage.rest("agent")
    assert model.bodies() == []


async def test_a_request_on_an_internal_thread_fails_before_the_model_is_asked(play: Play, model: OpenAIServer) -> None:
    asked = question_events(Question("default", "memories/ann", "hello", "ann"))
    async with play() as stage:
        for asked_event in (asked.turn, asked.request):
            await stage.twice(asked_event)  # as any NATS client can do
        await stage.rest("agent")
        assert await stage.rows("SELECT thread_id, content FROM messages") == [("memories/ann", "hello")]
        [failed] = await stage.all("usage_metered", "memories/ann")
    assert failed.error.startswith("invalid-id: thread id 'memories/ann' cannot be a conversation's")
    assert model.bodies() == []


@pytest.mark.parametrize(
    ("shown", "rest"),
    [
        ("You ran ", [Text("in Lisbon.")]),
        ("in Lisbon.", [Restarted(), Text("You ran in Lisbon.")]),
        ("You ran in Lisbon.", []),
    ],
)
async def test_lost_progress_is_replaced_by_the_recorded_answer(
    play: Play, shown: str, rest: list[AnswerPiece]
) -> None:
    async with play("projectors") as stage:
        log, pieces = stage.runtime.log, conversing.ask(stage.runtime, "default", "t", "Where did I run?")
        asked = await anext(pieces)
        assert isinstance(asked, QuestionStored)
        request = recorded(await log.stored(asked.seq)).event
        await Progress(log.nc, progress_subject("default", "t", str(request.id)), 1).tell("text", shown)
        assert await anext(pieces) == Text(shown)
        await log.append(turn("You ran in Lisbon.", "assistant", id=answer_id(request.id, "answer")))
        *received, answered = [piece async for piece in pieces]
    assert received == rest
    assert isinstance(answered, Answered) and answered.answer == "You ran in Lisbon."


async def arrived(model: OpenAIServer, count: int) -> bool:
    return len(model.bodies("chat")) >= count
