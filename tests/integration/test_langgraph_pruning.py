"""TurnlogSaver(prune=True): a graph's state loses the messages that turnlog pruned from the conversation."""

from typing import Any

import pytest
from helpers.langgraph_graphs import chat, config, history, turns
from helpers.sample_events import event
from helpers.stage import Play, Stage, player
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.events.contracts import HistoryPruned

LIMIT = 30
DERIVED = ("topics_tagged", "chunks_embedded", "summary_written")


@pytest.fixture
def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ("projectors", "reactors"), max_messages_per_thread=LIMIT)


def saver_of(stage: Stage, prune: bool = True) -> TurnlogSaver:
    return TurnlogSaver(stage.runtime.log, stage.runtime.pool, prune=prune)


async def messages(saver: TurnlogSaver, checkpoint_config: Any = None) -> list[BaseMessage]:
    state_messages: list[BaseMessage] = (await chat(saver).aget_state(checkpoint_config or config())).values["messages"]
    return state_messages


async def talked(play: Play) -> list[BaseMessage]:
    """Returns 40 messages that no reactor has seen. The limit is 30, but message 30 is a call and message 31 its
    result."""
    call = {"name": "look", "args": {}, "id": "c", "type": "tool_call"}
    talk: list[BaseMessage] = [HumanMessage("one") if at % 2 else AIMessage("two") for at in range(1, 40)]
    talk[29:31] = [AIMessage("", tool_calls=[call]), ToolMessage("seen", tool_call_id="c")]
    async with play("projectors") as stage:
        done = await chat(saver_of(stage)).ainvoke({"messages": talk}, config())
    assert len(done["messages"]) == 40
    return list(done["messages"])


async def test_the_state_loses_the_oldest_messages_once_they_are_summarised(play: Play) -> None:
    talk = await talked(play)
    async with play() as stage:
        await stage.until("history_pruned", 1)
        assert await messages(saver_of(stage)) == talk[29:]
        assert await messages(saver_of(stage, prune=False)) == talk
        kinds = [event.type for event in await stage.events()]
        assert all(kinds.index(kind) < kinds.index("history_pruned") for kind in DERIVED)


async def test_the_next_run_goes_on_from_what_is_left_and_records_nothing_twice(play: Play) -> None:
    talk = await talked(play)
    async with play() as stage:
        await stage.until("history_pruned", 1)
        saver, whole = saver_of(stage), saver_of(stage, prune=False)
        await chat(saver).ainvoke({"messages": [HumanMessage("and now?")]}, config())
        after = await messages(saver)
        assert after[:-2] == talk[29:]
        assert [message.content for message in after[-2:]] == ["and now?", "I saw 12"]
        # A saver that prunes nothing shows the content of the checkpoints.
        assert await messages(whole) == after
        before = next(state for state in await history(chat(whole)) if len(state.values["messages"]) == 40)
        assert await messages(saver, before.config) == await messages(whole, before.config) == talk
        await stage.runtime.wait_until_projected()
        async with stage.runtime.pool.connection() as conn:
            assert len(await turns(conn)) == 42


async def test_a_saver_that_holds_the_thread_sees_a_pruning_too(play: Play) -> None:
    async with play("projectors") as stage:
        saver = saver_of(stage)
        for text in ("one", "two", "three"):
            await chat(saver).ainvoke({"messages": [HumanMessage(text)]}, config())
        seqs = [done.seq async for done in stage.runtime.log.read_thread("default", "t", types=("turn_recorded",))]
        await stage.runtime.log.append(event(HistoryPruned(through_seq=seqs[1], removed=2, remaining=4)))
        assert [message.content for message in await messages(saver)] == ["two", "I saw 3", "three", "I saw 5"]
        await chat(saver).ainvoke({"messages": [HumanMessage("four")]}, config())
        contents = [message.content for message in await messages(saver_of(stage))]
        assert contents == ["two", "I saw 3", "three", "I saw 5", "four", "I saw 5"]
