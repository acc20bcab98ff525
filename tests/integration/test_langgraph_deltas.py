"""Tests messages of a DeltaChannel in tasks' writes and in snapshots, in every form that LangChain accepts."""

import operator
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from helpers.langgraph_graphs import config, one_node, turns
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, convert_to_messages
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import MessagesState
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.runtime import connection_pool
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection

Say = Callable[[str], Any]


@pytest.fixture
async def pool(database_url: str, running_projectors: Runner) -> AsyncIterator[Pool]:
    async with connection_pool(database_url) as opened:
        yield opened


def gathered(state: Any, writes: Any) -> Any:
    """A reducer like that of deepagents. LangGraph gives ids only to messages and dicts."""
    parts = [part for write in writes for part in (write if isinstance(write, list) else [write])]
    return [*(state or []), *convert_to_messages(parts)]


class Gathering(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(gathered, snapshot_frequency=3)]


def answering(saver: TurnlogSaver, answer: Say, state: Any = Gathering) -> Any:
    async def agent(state: Any) -> Any:
        return {"messages": answer("fine")}

    return one_node(state, agent, saver)


FORMS: dict[str, Say] = {  # without a single pair, because LangGraph reads it back as a list of two messages
    "a pair in a list": lambda text: [("user", text)],
    "text in a list": lambda text: [text],
    "text": lambda text: text,
    "a dict": lambda text: {"role": "user", "content": text},
    "a dict in a list": lambda text: [{"type": "human", "content": text}],
    "blocks": lambda text: [{"role": "user", "content": [{"type": "text", "text": text}]}],
    "a message": lambda text: [HumanMessage(text)],
}
ANSWERS: tuple[Say, Say] = (lambda text: [("assistant", text)], lambda text: AIMessage(text))


@pytest.mark.parametrize("name", FORMS)
async def test_each_message_of_a_delta_channel_is_one_turn(log: Log, pool: Pool, db: Connection, name: str) -> None:
    saver = TurnlogSaver(log, pool)
    for at in range(5):
        if at == 3:
            saver = TurnlogSaver(log, pool)  # as after a restart
        await answering(saver, ANSWERS[at % 2]).ainvoke({"messages": FORMS[name]("go on")}, config())
    expected = [("user", "go on"), ("assistant", "fine")] * 5
    state = await answering(TurnlogSaver(log, pool), ANSWERS[0]).aget_state(config())
    assert [
        ("user" if message.type == "human" else "assistant", message.text) for message in state.values["messages"]
    ] == expected
    assert [(role, _text(content)) for role, content in await turns(db)] == expected


class Lines(TypedDict):
    messages: Annotated[list[Any], operator.add]


@pytest.mark.parametrize("state", [MessagesState, Lines])
async def test_pairs_and_dicts_of_other_channels_are_one_turn_each(
    log: Log, pool: Pool, db: Connection, state: Any
) -> None:
    for _ in range(3):
        graph = answering(TurnlogSaver(log, pool), lambda text: [("assistant", text)], state)
        await graph.ainvoke({"messages": [{"role": "user", "content": "go on"}]}, config())
    await answering(TurnlogSaver(log, pool), lambda text: text, state).aget_state(config())
    assert await turns(db) == [("user", "go on"), ("assistant", "fine")] * 3


async def test_a_message_that_a_node_returns_again_is_one_turn(log: Log, pool: Pool, db: Connection) -> None:
    """LangChain's SummarizationMiddleware does this. Its write may come before the checkpoint with the message's id."""

    async def again(state: MessagesState) -> Any:
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *state["messages"], AIMessage("fine")]}

    for _ in range(3):
        graph = one_node(MessagesState, again, TurnlogSaver(log, pool))
        await graph.ainvoke({"messages": [("user", "go on")]}, config())
    await one_node(MessagesState, again, TurnlogSaver(log, pool)).aget_state(config())
    assert await turns(db) == [("user", "go on"), ("assistant", "fine")] * 3


async def test_messages_that_overwrite_a_delta_channel_are_turns(log: Log, pool: Pool, db: Connection) -> None:
    graph = answering(TurnlogSaver(log, pool), lambda text: Overwrite([HumanMessage("in short"), AIMessage(text)]))
    await graph.ainvoke({"messages": [HumanMessage("go on")]}, config())
    await answering(TurnlogSaver(log, pool), lambda text: text).aget_state(config())
    assert await turns(db) == [("user", "go on"), ("user", "in short"), ("assistant", "fine")]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else str(content[0]["text"])
