"""With real graphs, TurnlogSaver reads back the same values as LangGraph's own saver."""

import operator
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import uuid4

import pytest
from helpers.langgraph_graphs import chat, config, history, one_node, turns
from helpers.mirrored_saver import MirroredSaver
from helpers.servers import rows
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, _messages_delta_reducer, add_messages
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.runtime import connection_pool
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection


@pytest.fixture
async def pool(database_url: str, running_projectors: Runner) -> AsyncIterator[Pool]:
    async with connection_pool(database_url) as opened:
        yield opened


@pytest.fixture
async def saver(log: Log, pool: Pool) -> TurnlogSaver:
    return TurnlogSaver(log, pool)


@pytest.fixture
async def mirror(saver: TurnlogSaver) -> AsyncIterator[MirroredSaver]:
    mirrored = MirroredSaver(saver)
    yield mirrored
    assert mirrored.reads > 0


async def test_a_conversation_reads_back_and_its_messages_are_turns_once(mirror: MirroredSaver, db: Connection) -> None:
    graph = chat(mirror)
    for said in ("one", "two", "three"):
        await graph.ainvoke({"messages": [HumanMessage(said)]}, config())
    assert len(await history(graph)) == 9
    assert await turns(db) == [
        ("user", "one"),
        ("assistant", "I saw 1"),
        ("user", "two"),
        ("assistant", "I saw 3"),
        ("user", "three"),
        ("assistant", "I saw 5"),
    ]


async def test_input_tuples_and_dicts_become_turns(mirror: MirroredSaver, db: Connection) -> None:
    graph = chat(mirror)
    await graph.ainvoke({"messages": [("user", "a tuple"), {"role": "user", "content": "a dict"}]}, config())
    await history(graph)
    assert await turns(db) == [("user", "a tuple"), ("user", "a dict"), ("assistant", "I saw 2")]


async def test_an_agent_calls_tools_in_parallel(mirror: MirroredSaver, db: Connection) -> None:
    async def agent(state: MessagesState) -> Any:
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage("done")]}
        calls = [{"name": "look", "args": {"n": n}, "id": f"c{n}"} for n in range(3)]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    async def tool(call: Any) -> Any:
        return {"messages": [ToolMessage(f"found {call['call']['args']['n']}", tool_call_id=call["call"]["id"])]}

    def route(state: MessagesState) -> Any:
        last = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        return [Send("tool", {"call": call, "state": state}) for call in calls] or END

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tool", tool)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", route, ["tool", END])
    graph.add_edge("tool", "agent")
    compiled = graph.compile(checkpointer=mirror)
    for _ in range(2):
        result = await compiled.ainvoke({"messages": [HumanMessage("look", id=str(uuid4()))]}, config())
    assert [m.content for m in result["messages"][-4:]] == ["found 0", "found 1", "found 2", "done"]
    await history(compiled)
    assert len(await turns(db)) == 12
    calls = await rows(db, "SELECT tool_calls -> 2 ->> 'arguments' FROM messages WHERE tool_calls IS NOT NULL")
    assert calls == [('{"n":2}',)] * 2


async def test_an_interrupted_run_resumes_in_another_process(log: Log, pool: Pool, mirror: MirroredSaver) -> None:
    async def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"you said {interrupt({'question': state['messages'][-1]})}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    await graph.compile(checkpointer=mirror).ainvoke({"messages": [HumanMessage("hello")]}, config())
    elsewhere = graph.compile(checkpointer=MirroredSaver(TurnlogSaver(log, pool), mirror.reference))
    state = await elsewhere.aget_state(config())
    assert state.interrupts[0].value["question"].content == "hello"
    result = await elsewhere.ainvoke(Command(resume="yes"), config())
    assert result["messages"][-1].content == "you said yes"
    assert len(await history(graph.compile(checkpointer=mirror))) == 3


async def test_subgraphs_keep_their_own_state_and_name_the_turns_of_the_root(
    mirror: MirroredSaver, db: Connection
) -> None:
    async def think(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"thought of {interrupt('?')}")]}

    inner = StateGraph(MessagesState)
    inner.add_node("think", think)
    inner.add_edge(START, "think")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    graph = outer.compile(checkpointer=mirror)
    for n in range(2):
        await graph.ainvoke({"messages": [HumanMessage(f"ask {n}")]}, config())
        state = await graph.aget_state(config(), subgraphs=True)
        assert len(state.tasks[0].state.values["messages"]) == 2 * n + 1
        await graph.ainvoke(Command(resume=n), config())
    await history(graph)
    assert [content for _, content in await turns(db)] == ["ask 0", "thought of 0", "ask 1", "thought of 1"]
    inner_items = await rows(
        db,
        "SELECT count(*) FROM checkpoint_blobs b JOIN checkpoint_lists l "
        "ON l.list_id = convert_from(b.blob, 'UTF8')::jsonb ->> 'list' "
        "WHERE b.type = 'turnlog.list' AND b.checkpoint_ns <> '' AND l.items::jsonb @> '[{\"kind\": \"human\"}]'",
    )
    assert inner_items[0][0] > 0


async def test_messages_of_a_subgraph_are_turns_once_even_in_another_process(
    log: Log, pool: Pool, mirror: MirroredSaver, db: Connection, settled: Any
) -> None:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"I saw {len(state['messages'])}")]}

    expected = []
    for text in ("one", "two", "three"):
        saver = MirroredSaver(TurnlogSaver(log, pool), mirror.reference)
        graph = one_node(MessagesState, one_node(MessagesState, answer, None), saver)
        await graph.ainvoke({"messages": [HumanMessage(text)]}, config())
        expected += [text, f"I saw {len(expected) + 1}"]
        await settled()
        assert [content for _, content in await turns(db)] == expected
    assert [m.content for m in (await chat(mirror).aget_state(config())).values["messages"]] == expected


async def test_messages_that_are_removed_edited_and_replaced(mirror: MirroredSaver, db: Connection) -> None:
    graph = chat(
        mirror,
        [AIMessage("first", id="a1")],
        [RemoveMessage(id="h1"), AIMessage("second", id="a2")],
        [AIMessage("first, better", id="a1")],
        [RemoveMessage(id=REMOVE_ALL_MESSAGES), SystemMessage("summary", id="s"), HumanMessage("kept", id="k")],
    )
    for n in range(1, 6):
        await graph.ainvoke({"messages": [HumanMessage(f"h{n}", id=f"h{n}")]}, config())
    states = [[m.content for m in state.values.get("messages", [])] for state in await history(graph)]
    assert states[0] == ["summary", "kept", "h5", "I saw 3"]
    assert states[6] == ["first, better", "h2", "second", "h3"]
    assert [content for _, content in await turns(db)] == [
        *["h1", "first", "h2", "second", "h3", "first, better", "h4", "summary", "kept", "h5", "I saw 3"]
    ]


async def test_time_travel_and_forks(mirror: MirroredSaver) -> None:
    graph = chat(mirror)
    for said in ("one", "two", "three"):
        await graph.ainvoke({"messages": [HumanMessage(said, id=said)]}, config())
    past = (await history(graph))[3]
    assert len(past.values["messages"]) == 4
    await graph.ainvoke({"messages": [HumanMessage("other", id="other")]}, past.config)
    forked = await graph.aupdate_state(past.config, {"messages": [HumanMessage("one, edited", id="one")]})
    await graph.ainvoke(None, forked)
    await graph.ainvoke({"messages": [HumanMessage("on")]}, config())
    state = await graph.aget_state(config())
    assert state.values["messages"][0].content == "one, edited"
    await history(graph)


async def test_lists_without_messages_are_read_back(mirror: MirroredSaver, db: Connection) -> None:
    class State(TypedDict):
        log: Annotated[list[Any], operator.add]
        notes: list[str]
        said: list[AnyMessage]

    async def node(state: State) -> Any:
        n = len(state["log"])
        return {
            "log": [{"n": n, "tags": {"a"}}, n, f"text {n} \x00"],
            "notes": [*state.get("notes", []), f"note {n}"],
            "said": [*state.get("said", []), HumanMessage("again"), AIMessage("again")],
        }

    compiled = one_node(State, node, mirror)
    for n in range(6):
        await compiled.ainvoke({"log": [n]}, config())
    await history(compiled)
    sizes = await rows(
        db,
        "SELECT octet_length(blob) FROM checkpoint_blobs WHERE channel = 'log' ORDER BY version DESC LIMIT 4",
    )
    assert all(size < 80 for (size,) in sizes)
    assert len(await turns(db)) == 12


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_delta_channels_are_made_again_from_their_writes(
    log: Log, pool: Pool, mirror: MirroredSaver, durability: Any
) -> None:
    class State(TypedDict):
        messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]

    async def node(state: State) -> Any:
        return {"messages": [AIMessage(f"reply {len(state['messages'])}")]}

    compiled = one_node(State, node, mirror)
    for n in range(4):
        await compiled.ainvoke({"messages": [HumanMessage(f"m{n}")]}, config(), durability=durability)
    state = await one_node(State, node, TurnlogSaver(log, pool)).aget_state(config())
    assert [m.content for m in state.values["messages"]][-2:] == ["m3", "reply 7"]
    with pytest.raises(NotImplementedError, match="DeltaChannel: t"):
        await mirror.saver.aprune(["t"])


async def test_add_messages_on_a_differently_named_channel(mirror: MirroredSaver, db: Connection) -> None:
    class State(TypedDict):
        dialogue: Annotated[list[AnyMessage], add_messages]
        last: AnyMessage

    async def node(state: State) -> Any:
        reply = AIMessage(f"reply {len(state['dialogue'])}")
        return {"dialogue": [reply], "last": reply}

    compiled = one_node(State, node, mirror)
    for n in range(3):
        await compiled.ainvoke({"dialogue": [HumanMessage(f"m{n}")]}, config())
    await history(compiled)
    assert len(await turns(db)) == 6
