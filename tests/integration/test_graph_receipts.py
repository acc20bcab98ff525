"""An answer of the conversation graph has a receipt, and time travel rebuilds the model's context from it."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from helpers.conversation_graphs import THREAD, Instance, instance, settings_of
from helpers.memory_events import memory_id, recorded
from helpers.openai_server import OpenAIServer
from helpers.sample_events import derivation, event
from helpers.servers import end_deduplication_window, now
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from turnlog.agent.answering.receipts import RebuiltContext, RecordedReceipt, rebuilt, receipts
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models.prompts import DOUBT
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.chat import converse, thread_config
from turnlog.consumers.langgraph.conversation import NOT_ON_LOG, conversation_graph
from turnlog.events.contracts import HistoryPruned, ReceiptTier, SummaryWritten, TopicsTagged

pytestmark = pytest.mark.slow

FILLER = "weather and traffic " * 12


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def settings(nats_url: str, database_url: str, model: OpenAIServer) -> Settings:
    return settings_of(nats_url, database_url, model)


async def recorded_receipts(chat: Instance) -> list[RecordedReceipt]:
    await chat.stage.runtime.wait_until_projected()
    async with chat.stage.runtime.pool.connection() as conn:
        return await receipts(conn, chat.stage.runtime.log, "default", THREAD)


async def again(chat: Instance, as_of_seq: int, **other: Any) -> RebuiltContext:
    settings = chat.stage.runtime.settings.model_copy(update=other)
    async with chat.stage.runtime.pool.connection() as conn:
        return await rebuilt(conn, chat.stage.runtime.log, settings, "default", THREAD, as_of_seq)


async def check_all(chat: Instance, model: OpenAIServer) -> list[RecordedReceipt]:
    """Checks that all answers have a receipt, and that each receipt yields the model's context even if settings have
    changed."""
    made = await recorded_receipts(chat)
    requests = [body["messages"] for body in model.bodies("chat")]
    assert len(made) == len(requests)
    for (_, receipt), messages in zip(made, requests, strict=True):
        built = await again(
            chat, receipt.as_of_seq, system_prompt="Another.", context_window=9_000, enable_summary=False
        )
        assert built.receipt == receipt
        assert built.context.messages == messages
        assert built.matches
        assert [sources(tier) for tier in built.context.receipt.tiers] == [sources(tier) for tier in receipt.tiers]
    return made


def sources(tier: ReceiptTier) -> tuple[object, ...]:
    """Returns the sources of a tier without spans, because a receipt's spans refer to the thread and not to the
    state."""
    return tier.tier, tier.tokens, tier.turns.count, tier.summary_seq, tier.topics


async def test_every_context_is_rebuilt_with_its_notes_from_its_receipt(
    settings: Settings, model: OpenAIServer
) -> None:
    async with instance(settings) as chat:
        await chat.stage.runtime.log.append(recorded("我最喜欢的颜色是蓝色", now() - timedelta(days=1)))
        await chat.stage.runtime.wait_until_projected()
        await chat.store.aput(("memories", "ann"), "1", {"text": "我喜欢绿茶"})
        await chat.store.aput(("essays",), "length", {"text": "An essay draft has 650 words"})
        for text in ("我喜欢什么颜色？", "Please write an essay draft", "thanks!"):
            await chat.ask(text)
        assert "persist receipt" not in await chat.debug()
        made = await check_all(chat, model)
        turns = await chat.stage.rows("SELECT event_id, role, seq FROM messages WHERE thread_id = 't' ORDER BY seq")
    assert [receipt.answer_ids for _, receipt in made] == [(id_,) for id_, role, _ in turns if role == "assistant"]
    assert [receipt.turn_id for _, receipt in made] == [id_ for id_, role, _ in turns if role == "user"]
    assert [receipt.as_of_seq for _, receipt in made] == [seq for _, role, seq in turns if role == "user"]
    assert made[0][1].memories == (str(memory_id("我最喜欢的颜色是蓝色")),)
    assert [recorded.event.user for recorded, _ in made] == ["ann"] * 3
    assert "蓝色" in str(made[0][1].notes) and "650 words" in str(made[1][1].notes) and "绿茶" in str(made[2][1].notes)


async def test_a_model_is_warned_when_no_turn_answers_and_the_warning_is_rebuilt(
    settings: Settings, model: OpenAIServer
) -> None:
    asked = "Which university did my sister attend?"
    async with instance(settings, context_window=1_500) as chat:
        await chat.store.aput(("memories", "ann"), "1", {"text": "likes green tea"})
        for number in range(12):
            await chat.ask(f"Filler {number}: {FILLER}")
        for text in (asked, "Filler: was it about weather and traffic?"):
            await chat.ask(text)
        *_, (_, doubted), (_, sure) = await check_all(chat, model)
    assert (doubted.doubt, sure.doubt) == (DOUBT, None)
    notes, doubt, question = model.bodies("chat")[-2]["messages"][-3:]
    assert "green tea" in notes["content"]
    assert (doubt["content"], question["content"]) == (DOUBT, asked)


async def test_tiers_summary_and_topics_are_rebuilt_in_a_small_window(settings: Settings, model: OpenAIServer) -> None:
    async with instance(settings, context_window=1_500) as chat:
        for number in range(12):
            await chat.ask(f"Filler {number}: {FILLER}")
        for at in (8, 16):
            summary = SummaryWritten(
                summary="Ann runs. " * at, message_count=8, covered_seq=8, derivation=derivation(1, 8)
            )
            tagged = TopicsTagged(topics={"running": at, "tea": 1}, derivation=derivation(1, 8))
            await chat.stage.runtime.log.append_many([event(summary), event(tagged)])
            await chat.stage.runtime.wait_until_projected()
            await chat.ask("What now?")
        made = await check_all(chat, model)
    last = made[-1][1]
    assert {tier.tier for tier in last.tiers} == {"1", "2", "3"}
    assert last.dropped.count
    assert last.tiers[0].summary_seq is not None and last.tiers[0].topics == ("running", "tea")


async def test_turns_only_in_the_state_and_turns_lost_from_it_are_distinguished(
    settings: Settings, model: OpenAIServer
) -> None:
    """Pruning affects only the thread, a removed message only the state."""
    async with instance(settings) as chat:
        for text in ("First.", "Second.", "Third."):
            await chat.ask(text)
        seqs = [seq for (seq,) in await chat.stage.rows("SELECT seq FROM messages ORDER BY seq")]
        await chat.stage.runtime.log.append(event(HistoryPruned(through_seq=seqs[1], removed=2, remaining=4)))
        await chat.stage.runtime.wait_until_projected()
        second = (await chat.state()).values["messages"][2]
        await chat.graph.aupdate_state(thread_config(THREAD), {"messages": [RemoveMessage(id=second.id)]}, "persist")
        await chat.ask("Fourth?")
        made = await check_all(chat, model)
        shown = [span for tier in made[-1][1].tiers for span in tier.turns.spans]
    assert shown[0] == (seqs[0], seqs[1]) and shown[1][0] == seqs[3]


async def test_an_answer_on_a_branch_has_a_separate_receipt(settings: Settings, model: OpenAIServer) -> None:
    async with instance(settings) as chat:
        await chat.ask("First.")
        begun = (await chat.state()).config
        await chat.ask("Second?")
        state = {"messages": [HumanMessage("Or rather?")], "user_id": "ann", "conversation_id": THREAD}
        await chat.graph.ainvoke(
            state,
            {"configurable": {**thread_config(THREAD)["configurable"], **begun["configurable"]}},
            durability="sync",
        )
        made = await check_all(chat, model)
    assert len({receipt.as_of_seq for _, receipt in made}) == 3


async def test_tool_calls_and_repeated_words_are_rebuilt(settings: Settings, model: OpenAIServer) -> None:
    call = {"id": "c1", "name": "look_up", "args": {"什么": "tea", "a": [1, {"z": 1, "b": 2}]}}
    past = [
        HumanMessage("Hi."),
        AIMessage("", tool_calls=[call]),
        ToolMessage("x " * 400, tool_call_id="c1"),
        AIMessage([{"type": "text", "text": "Green."}, {"type": "text", "text": "Tea."}]),
        HumanMessage(
            [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]
        ),
        AIMessage("Hi."),
    ]
    async with instance(settings, context_window=1_000, full_recent_count=2) as chat:
        state = {"messages": [*past, HumanMessage("Hi.")], "user_id": "ann", "conversation_id": THREAD}
        await chat.graph.ainvoke(state, thread_config(THREAD), durability="sync")
        await chat.ask("Hi.")
        await check_all(chat, model)


async def test_a_node_that_runs_again_long_after_leaves_no_second_receipt(settings: Settings) -> None:
    async with instance(settings) as chat:
        await chat.ask("Hi.")
        await end_deduplication_window(chat.stage.runtime.log)
        [before] = [
            past async for past in chat.graph.aget_state_history(thread_config(THREAD)) if "persist" in past.next
        ]
        await chat.graph.ainvoke(None, before.config)
        assert len(await chat.stage.all("answer_receipt")) == 1


async def test_memories_forgotten_since_are_not_shown(settings: Settings) -> None:
    async with instance(settings) as chat:
        runtime = chat.stage.runtime
        await runtime.log.append(recorded("我最喜欢的颜色是蓝色", now() - timedelta(days=1)))
        await runtime.wait_until_projected()
        await chat.ask("我喜欢什么颜色？")
        [(_, receipt)] = await recorded_receipts(chat)
        await Memories(runtime.log, runtime.pool).forget("default", "ann", memory_id("我最喜欢的颜色是蓝色"))
        await runtime.wait_until_projected()
        built = await again(chat, receipt.as_of_seq)
    assert (built.matches, built.forgotten) == (False, (memory_id("我最喜欢的颜色是蓝色"),))
    assert "蓝色" not in str(built.context.messages)


async def test_a_receipt_names_the_settings_that_the_answer_was_made_with(
    settings: Settings, model: OpenAIServer
) -> None:
    state = {"messages": [HumanMessage("Hi.")], "user_id": "ann", "conversation_id": THREAD}
    async with instance(settings) as chat:
        await chat.graph.ainvoke(state, thread_config(THREAD), interrupt_after=["generate"], durability="sync")
    async with instance(settings, system_prompt="Another.") as two:
        await two.ask(None)
        [(_, receipt)] = await check_all(two, model)
        assert (receipt.system_prompt, await two.usage()) == (settings.system_prompt, [("ann", "general", 1, 0)])


async def test_turns_that_are_not_on_the_log_make_no_receipt_and_say_why(settings: Settings) -> None:
    """Uses another checkpointer than TurnlogSaver."""
    async with instance(settings) as chat:
        graph = conversation_graph(chat.stage.runtime, checkpointer=InMemorySaver())
        assert [piece async for piece in converse(graph, THREAD, "ann", "Hi.")] == ["echo: ", "Hi."]
        state = await graph.aget_state(thread_config(THREAD))
        assert state.values["debug"]["persist receipt"] == NOT_ON_LOG
        assert (await chat.stage.all("answer_receipt"), len(await chat.stage.all("usage_metered"))) == ([], 1)


async def test_commands_show_the_context_that_the_graph_gave_the_model(settings: Settings, turnlog: Cli) -> None:
    async with instance(settings) as chat:
        await chat.store.aput(("memories", "ann"), "1", {"text": "我喜欢绿茶"})
        await chat.ask("我喜欢喝什么茶？")
        [(_, receipt)] = await recorded_receipts(chat)
        listed = await turnlog("receipts", THREAD)
        told = await turnlog("context", THREAD, "--as-of", str(receipt.as_of_seq))
    assert listed.out.splitlines()[1].split()[0] == str(receipt.as_of_seq)
    assert "exactly the messages that the model got" in told.out and "我喜欢绿茶" in told.out
