"""The conversation graph on the real log, read models and store, with a model over HTTP."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from helpers.conversation_graphs import THREAD, instance, sent, settings_of
from helpers.memory_events import recorded, yesterdays_of_zone_and_utc
from helpers.openai_server import OpenAIServer
from helpers.sample_events import derivation, event
from helpers.servers import now
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from psycopg_pool import AsyncConnectionPool

from turnlog.agent.models.errors import ModelUnavailable
from turnlog.agent.models.factory import make_models
from turnlog.agent.recall.embedding.embedder import embed_pending
from turnlog.agent.settings import Settings
from turnlog.agent.team.agents import configure_agent
from turnlog.agent.team.teams import bundled_team
from turnlog.consumers.langgraph.chat import STARTS_AGAIN, converse, thread_config
from turnlog.consumers.langgraph.conversation import conversation_graph
from turnlog.consumers.langgraph.conversation_context import NO_VECTORS
from turnlog.events.contracts import SummaryWritten, TopicsTagged
from turnlog.events.errors import LogFull
from turnlog.events.subjects import STREAM

pytestmark = pytest.mark.slow


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def settings(nats_url: str, database_url: str, model: OpenAIServer) -> Settings:
    return settings_of(nats_url, database_url, model)


async def test_a_conversation_continues_in_another_process_and_is_in_the_read_models(
    settings: Settings, model: OpenAIServer
) -> None:
    model.reply("Nice to meet you, Ann.")
    model.reply("你叫 Ann。")
    async with instance(settings) as first:
        assert await first.ask("Hi, I am Ann.") == "Nice to meet you, Ann."
    async with instance(settings) as second:
        assert await second.ask("我叫什么？") == "你叫 Ann。"
        assert await second.usage() == [("ann", "general", 2, 0)]
        rows = await second.stage.rows("SELECT role, content FROM messages WHERE thread_id = 't' ORDER BY seq")
        kinds = [event.type for event in await second.stage.events()]
    said = [("user", "Hi, I am Ann."), ("assistant", "Nice to meet you, Ann."), ("user", "我叫什么？")]
    assert sent(model) == said
    assert rows == [*said, ("assistant", "你叫 Ann。")]
    told = [kind for kind in kinds if kind in ("turn_recorded", "usage_metered")]
    assert told == 2 * ["turn_recorded", "turn_recorded", "usage_metered"], "an answer is on the log before its cost"


async def test_text_and_nodes_show_as_they_come(settings: Settings, model: OpenAIServer) -> None:
    model.reply("The capital is Lisbon.", between=0.02)
    state = {"messages": [HumanMessage("Which?")], "user_id": "ann", "conversation_id": THREAD}
    seen: list[Any] = []
    async with instance(settings) as chat:
        async for mode, told in chat.graph.astream(state, thread_config(THREAD), stream_mode=["custom", "updates"]):
            seen.append(told["text"] if mode == "custom" else next(iter(told)))
        turns = await chat.stage.all("turn_recorded")
    assert seen == ["route", "recall", "The ", "capital ", "is ", "Lisbon.", "generate", "persist"]
    assert [data.content for data in turns] == ["Which?", "The capital is Lisbon."], "also without an id of its own"


async def test_a_question_waits_in_the_state_while_the_model_is_away_and_is_answered_once_it_is_back(
    settings: Settings, model: OpenAIServer
) -> None:
    model.fail(503, times=4)
    async with instance(settings) as chat:
        with pytest.raises(ModelUnavailable):
            await chat.ask("Still there?")
        state = await chat.state()
        assert state.next == ("generate",)
        assert [message.text for message in state.values["messages"]] == ["Still there?"]
        assert await chat.usage() == []
    async with instance(settings) as second:
        assert await second.ask(None) == "echo: Still there?"
        state = await second.state()
        assert state.next == ()
        assert [message.type for message in state.values["messages"]] == ["human", "ai"]
        assert await second.usage() == [("ann", "general", 1, 0)]


async def test_a_run_that_ends_between_answer_and_metering_is_finished_without_another_answer(
    settings: Settings, model: OpenAIServer
) -> None:
    async with instance(settings) as chat:
        state = {"messages": [HumanMessage("Hi.")], "user_id": "ann", "conversation_id": THREAD}
        await chat.graph.ainvoke(state, thread_config(THREAD), interrupt_after=["generate"], durability="sync")
        assert await chat.usage() == []
    async with instance(settings) as second:
        assert (await second.state()).next == ("persist",)
        assert await second.ask(None) == ""
        assert [message.text for message in (await second.state()).values["messages"]] == ["Hi.", "echo: Hi."]
        assert await second.usage() == [("ann", "general", 1, 0)]
        assert len(await second.stage.all("turn_recorded")) == 2
    assert len(model.bodies("chat")) == 1


async def test_a_full_log_is_reported_and_the_next_run_records_the_answer_once(settings: Settings) -> None:
    async with instance(settings) as chat:
        state = {"messages": [HumanMessage("Hi.")], "user_id": "ann", "conversation_id": THREAD}
        await chat.graph.ainvoke(state, thread_config(THREAD), interrupt_after=["generate"], durability="sync")
        js = chat.stage.runtime.log.nc.jetstream()
        config = (await js.stream_info(STREAM)).config
        await js.update_stream(config.evolve(max_bytes=1))
        with pytest.raises(LogFull):
            await chat.ask(None)
        await js.update_stream(config)
        await chat.ask(None)
        [receipt] = await chat.stage.all("answer_receipt")
        [answer] = [event.id for event in await chat.stage.events() if getattr(event.data, "role", "") == "assistant"]
        assert receipt.answer_ids == (answer,)
        assert await chat.usage() == [("ann", "general", 1, 0)]


async def test_without_postgres_the_answer_is_made_of_the_state_alone_and_has_no_receipt(
    settings: Settings, model: OpenAIServer
) -> None:
    async with instance(settings) as chat:
        away = AsyncConnectionPool[Any]("postgresql://nobody@127.0.0.1:1/none", open=False)
        runtime = replace(chat.stage.runtime, pool=away, _models=chat.stage.runtime.models)
        graph = conversation_graph(runtime, checkpointer=InMemorySaver())
        for text in ("First.", "Second?"):
            assert "".join([piece async for piece in converse(graph, THREAD, "ann", text)]) == f"echo: {text}"
        debug = (await graph.aget_state(thread_config(THREAD))).values["debug"]
        assert await chat.usage() == [("ann", "general", 2, 0)]
        assert await chat.stage.all("answer_receipt") == []
    assert "pool" in debug["generate"] and debug["persist receipt"] == debug["generate"]
    assert sent(model) == [("user", "First."), ("assistant", "echo: First."), ("user", "Second?")]


async def test_a_stream_that_breaks_starts_again_and_says_so(settings: Settings, model: OpenAIServer) -> None:
    model.drop(after=2)
    model.reply("whole answer")
    async with instance(settings) as chat:
        assert (await chat.ask("Which?")).endswith(f"{STARTS_AGAIN}whole answer")
        assert (await chat.state()).values["messages"][-1].text == "whole answer"


async def test_asking_again_after_a_failure_shows_the_model_both_questions(
    settings: Settings, model: OpenAIServer
) -> None:
    model.fail(400)
    async with instance(settings) as chat:
        with pytest.raises(Exception, match="400"):
            await chat.ask("First?")
        assert await chat.ask("Second?") == "echo: Second?"
    assert sent(model) == [("user", "First?"), ("user", "Second?")]


async def test_a_relevant_old_episode_is_in_a_request_with_little_room(settings: Settings, model: OpenAIServer) -> None:
    model.reply("Lisbon is lovely for a marathon.")
    async with instance(settings, context_window=1_500) as chat:
        await chat.ask("I ran a marathon in Lisbon.")
        for number in range(12):
            await chat.ask(f"Filler {number}: {'weather and traffic ' * 12}")
        await chat.stage.runtime.wait_until_projected()
        models = make_models(settings)
        await embed_pending(chat.stage.runtime, models.embedder)
        await models.close()
        await chat.stage.runtime.wait_until_projected()
        await chat.ask("Where was my marathon?")
        assert await chat.debug() == {"route": "general"}
    *shown, question = sent(model)
    assert question == ("user", "Where was my marathon?")
    assert ("user", "I ran a marathon in Lisbon.") in shown
    assert ("assistant", "Lisbon is lovely for a marathon.") in shown
    assert len(shown) < 26, "not all turns have room"


async def test_summary_and_topics_of_the_thread_reach_the_model(settings: Settings, model: OpenAIServer) -> None:
    async with instance(settings, context_window=1_500) as chat:
        for number in range(14):
            await chat.ask(f"Filler {number}: {'weather and traffic ' * 12}")
        summary = SummaryWritten(summary="Ann runs.", message_count=8, covered_seq=8, derivation=derivation(1, 8))
        tagged = TopicsTagged(topics={"running": 3}, derivation=derivation(1, 8))
        await chat.stage.runtime.log.append_many([event(summary), event(tagged)])
        await chat.stage.runtime.wait_until_projected()
        await chat.ask("What now?")
    head = sent(model)[0][1]
    assert "[Conversation Summary]\nAnn runs." in head and "[Recallable Topics]: running" in head


async def test_documents_are_retrieved_only_for_routes_that_have_some(settings: Settings, model: OpenAIServer) -> None:
    async with instance(settings) as chat:
        await chat.store.aput(("essays", "guides"), "length", {"text": "An essay draft has 650 words"})
        await chat.store.aput(("schools",), "length", {"text": "This essay draft belongs elsewhere"})
        await chat.ask("Please write an essay draft")
        assert "[DOCUMENTS]\n- An essay draft has 650 words" in sent(model)[-2][1]
        values = (await chat.state()).values
        assert [result["key"] for result in values["retrieval_results"]] == ["length"]
        await chat.ask("thanks!")
        assert (await chat.state()).values["retrieval_results"] is None
        assert "[DOCUMENTS]" not in str(sent(model))
        assert sorted(await chat.usage()) == [("ann", "ESSAY", 1, 0), ("ann", "general", 1, 0)]


async def test_an_agent_of_the_team_answers_by_its_own_prompt_and_model(
    settings: Settings, model: OpenAIServer
) -> None:
    essay = bundled_team().agents["essay"]
    async with instance(settings, team="advising") as chat:
        await configure_agent(chat.stage.runtime, "default", "essay", {"model": "essays"})
        await chat.stage.runtime.wait_until_projected()
        await chat.ask("Please write an essay draft")
        await chat.ask("thanks!")
    for_essay, general = model.bodies()
    assert (for_essay["model"], for_essay["temperature"]) == ("essays", essay.temperature)
    assert essay.prompt.strip() in str(for_essay["messages"][0]["content"])
    assert general["model"] != "essays" and essay.prompt.strip() not in str(general["messages"][0]["content"])


async def test_only_the_users_own_memories_are_in_the_request(settings: Settings, model: OpenAIServer) -> None:
    async with instance(settings) as chat:
        await chat.store.aput(("memories", "ann"), "1", {"text": "我喜欢绿茶"})
        for other in ("bob", "anna", "an"):
            await chat.store.aput(("memories", other), "1", {"text": "我喜欢喝什么茶？咖啡"})
        await chat.ask("我喜欢喝什么茶？")
    assert sent(model) == [("user", "[LONG-TERM MEMORIES]\n- 我喜欢绿茶"), ("user", "我喜欢喝什么茶？")]


async def test_yesterday_follows_the_configured_timezone(settings: Settings, model: OpenAIServer) -> None:
    there, utc = yesterdays_of_zone_and_utc(ZoneInfo("Asia/Shanghai"))
    async with instance(settings, timezone="Asia/Shanghai", long_term_top_k=1) as chat:
        told = [recorded("我买了一把椅子", there), recorded("我买了一盏灯", utc)]
        await chat.stage.runtime.log.append_many(told)
        await chat.stage.runtime.wait_until_projected()
        await chat.ask("昨天我买了什么？")
    assert "椅子" in str(sent(model)) and "灯" not in str(sent(model))


async def test_an_answer_is_made_without_the_embedder(settings: Settings, model: OpenAIServer) -> None:
    async with instance(settings) as chat:
        await chat.store.aput(("essays",), "length", {"text": "An essay draft has 650 words"})
        await chat.store.aput(("memories", "ann"), "1", {"text": "Ann likes tea"})
        model.fail(503, times=50, on="embeddings")
        assert await chat.ask("write an essay draft") == "echo: write an essay draft"
        debug = await chat.debug()
    assert debug["retrieve"] == NO_VECTORS
    assert "without vectors" in debug["recall memories"]
    assert sent(model) == [("user", "[LONG-TERM MEMORIES]\n- Ann likes tea"), ("user", "write an essay draft")]


async def test_a_node_that_runs_again_meters_the_answer_once(settings: Settings) -> None:
    async with instance(settings) as chat:
        await chat.ask("Hi.")
        before = [
            state async for state in chat.graph.aget_state_history(thread_config(THREAD)) if "persist" in state.next
        ]
        await chat.graph.ainvoke(None, before[0].config)
        assert await chat.usage() == [("ann", "general", 1, 0)]


async def test_only_the_users_own_other_conversations_are_quoted_and_labelled(
    settings: Settings, model: OpenAIServer
) -> None:
    async with instance(settings) as chat:
        await chat.ask("My dog is called Sesame.", "first")
        await chat.stage.runtime.wait_until_projected()
        await chat.ask("What is my dog called?", "second")
        [noted, question] = sent(model)
        assert noted[1].startswith("[OTHER CONVERSATIONS]") and "Sesame" in noted[1]
        assert question == ("user", "What is my dog called?")
        async for _ in converse(chat.graph, "third", "bob", "What is my dog called?"):
            pass
    assert sent(model) == [question]


async def test_long_term_memories_are_in_the_request_and_noted_as_read(settings: Settings, model: OpenAIServer) -> None:
    said_at = now() - timedelta(days=1)
    async with instance(settings.model_copy(update={"long_term_top_k": 1})) as chat:
        await chat.stage.runtime.log.append_many(
            [recorded("我最喜欢的颜色是蓝色", said_at), recorded("I live in Berlin", said_at)]
        )
        await chat.stage.runtime.wait_until_projected()
        await chat.ask("我喜欢什么颜色？")
        await chat.stage.runtime.wait_until_projected()
        counts = await chat.stage.rows("SELECT content, access_count FROM memories ORDER BY access_count DESC LIMIT 1")
    notes, question = sent(model)
    assert notes[1].startswith("[LONG-TERM MEMORIES]\n")
    assert f"\n- {said_at:%Y-%m-%d} 我最喜欢的颜色是蓝色\n" in notes[1] and "Berlin" not in notes[1]
    assert question == ("user", "我喜欢什么颜色？")
    assert counts == [("我最喜欢的颜色是蓝色", 1)]
