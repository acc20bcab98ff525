"""Tests threads of TurnlogSaver over time: several savers, copies, deletion, pruning, cost and rebuilds."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from helpers.langgraph_graphs import chat, config, history, one_node, turns
from helpers.mirrored_saver import MirroredSaver
from helpers.sample_events import memory_event, memory_of
from helpers.servers import rows
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import MessagesState

from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.runtime import connection_pool
from turnlog.events.errors import InvalidToken
from turnlog.events.log import Log
from turnlog.events.subjects import STREAM, thread_filter
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.checkpoints.projection import CHECKPOINTS
from turnlog.projectors.rebuild.verify import verify

pytestmark = pytest.mark.slow


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


async def test_a_second_saver_goes_on_from_what_the_first_wrote(
    log: Log, pool: Pool, mirror: MirroredSaver, db: Connection
) -> None:
    for n in range(40):
        saver = MirroredSaver(TurnlogSaver(log, pool), mirror.reference) if n % 2 else mirror
        await chat(saver).ainvoke({"messages": [HumanMessage(f"m{n}")]}, config())
    await history(chat(mirror))
    assert len(await turns(db)) == 80
    most = await rows(
        db, "SELECT max(json_array_length(items)), count(*) FROM checkpoint_lists WHERE base_list IS NOT NULL"
    )
    assert most[0][0] <= 2
    whole = await rows(db, "SELECT count(*) FROM checkpoint_lists WHERE base_list IS NULL AND first = 0")
    assert whole[0][0] <= 3  # the first list, and new lists that keep chains short


async def test_returned_objects_belong_to_the_caller(saver: TurnlogSaver) -> None:
    graph = chat(saver, [AIMessage("reply", additional_kwargs={"a": {"b": 1}}, response_metadata={"x": [1]})])
    await graph.ainvoke({"messages": [HumanMessage("said")]}, config())
    for _ in range(2):
        messages = (await graph.aget_state(config())).values["messages"]
        assert [m.content for m in messages] == ["said", "reply"]
        assert messages[1].additional_kwargs == {"a": {"b": 1}}
        assert messages[1].response_metadata == {"x": [1]}
        messages[0].content = "changed"
        messages[1].additional_kwargs["a"]["b"] = 2
        messages[1].response_metadata["x"].append(2)
        messages.clear()


async def test_a_message_changed_in_place_is_stored_as_it_is_now(mirror: MirroredSaver) -> None:
    async def agent(state: MessagesState) -> Any:
        first = state["messages"][0]
        first.content = f"seen {len(state['messages'])}"
        first.additional_kwargs.setdefault("seen", []).append(len(state["messages"]))
        return {"messages": [AIMessage("ok")]}

    compiled = one_node(MessagesState, agent, mirror)
    for n in range(3):
        await compiled.ainvoke({"messages": [HumanMessage(f"m{n}", id=f"m{n}")]}, config(), durability="sync")
    state = await compiled.aget_state(config())
    assert state.values["messages"][0].additional_kwargs == {"seen": [1, 3, 5]}


async def test_a_thread_deleted_elsewhere_starts_empty(
    log: Log, pool: Pool, saver: TurnlogSaver, db: Connection, settled: Any
) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, config())
    other = TurnlogSaver(log, pool)
    await other.adelete_thread("t")
    await other.adelete_thread("t")
    await other.adelete_thread("never there")
    assert (await graph.aget_state(config())).values == {}
    result = await graph.ainvoke({"messages": [HumanMessage("two")]}, config())
    assert [m.content for m in result["messages"]] == ["two", "I saw 1"]
    await settled()
    assert [content for _, content in await turns(db)] == ["two", "I saw 1"]
    counted = await rows(db, "SELECT count(*) FROM checkpoint_lists")
    assert counted[0][0] <= 2


async def test_a_thread_whose_events_are_gone_from_the_log_is_empty(log: Log, saver: TurnlogSaver) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, config())
    await log.nc.jetstream().purge_stream(STREAM, subject=thread_filter("default", "t"))
    assert (await graph.aget_state(config())).values == {}


async def test_a_value_that_cannot_be_read_is_an_error_and_the_thread_goes_on(log: Log, pool: Pool) -> None:
    class Forgetful(JsonPlusSerializer):
        knows = True

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            if not self.knows:
                raise LookupError("the class of this value is gone")
            return super().loads_typed(data)

    serde = Forgetful()
    graph = chat(TurnlogSaver(log, pool, serde=serde))
    await graph.ainvoke({"messages": [HumanMessage("one", id="1", by_hand=1)]}, config())
    serde.knows = False
    with pytest.raises(LookupError, match="is gone"):
        await graph.aget_state(config())
    serde.knows = True
    assert [m.content for m in (await graph.aget_state(config())).values["messages"]] == ["one", "I saw 1"]


async def test_a_copy_lives_on_when_its_source_is_deleted(mirror: MirroredSaver, db: Connection) -> None:
    graph = chat(mirror)
    for said in ("one", "two"):
        await graph.ainvoke({"messages": [HumanMessage(said)]}, config("source", user_id="ann"))
    before = await history(graph, "source")
    await mirror.saver.acopy_thread("source", "target")
    await mirror.saver.adelete_thread("source")
    copied = [state async for state in chat(mirror.saver).aget_state_history(config("target"))]
    assert [s.values for s in copied] == [s.values for s in before]
    assert [s.metadata for s in copied] == [s.metadata for s in before]
    result = await chat(mirror.saver).ainvoke({"messages": [HumanMessage("three")]}, config("target"))
    assert [m.content for m in result["messages"]][-1] == "I saw 5"
    users = await rows(db, "SELECT DISTINCT user_id FROM messages WHERE thread_id = 'target' AND seq < 100")
    assert ("ann",) in users


async def test_pruning_keeps_the_newest_state_whole(log: Log, pool: Pool, saver: TurnlogSaver, db: Connection) -> None:
    graph = chat(saver)
    for n in range(5):
        await chat(TurnlogSaver(log, pool)).ainvoke({"messages": [HumanMessage(f"m{n}")]}, config())
    before = await graph.aget_state(config())
    await saver.aprune(["t", "unknown"])
    after = await graph.aget_state(config())
    assert after.values == before.values
    assert after.parent_config is None
    assert len(await history(graph)) == 1
    fresh = await chat(TurnlogSaver(log, pool)).aget_state(config())
    assert fresh.values == before.values
    result = await graph.ainvoke({"messages": [HumanMessage("on")]}, config())
    assert len(result["messages"]) == 12


@pytest.mark.nightly
async def test_a_thread_costs_as_much_per_turn_when_it_is_long(saver: TurnlogSaver, db: Connection) -> None:
    graph, sizes = chat(saver), list[int]()
    for _ in range(40):
        await graph.ainvoke({"messages": [HumanMessage("x" * 100)]}, config())
    await graph.aget_state(config())
    async for _ in saver.alist(config(), limit=1):
        pass
    for table in ("checkpoint_blobs", "checkpoint_lists", "checkpoint_writes", "checkpoints"):
        row_sizes = await rows(db, f"SELECT pg_column_size(t) FROM {table} t ORDER BY ctid")
        size = [value for (value,) in row_sizes]
        quarter = len(size) // 4
        sizes.append(sum(size))
        assert sum(size[-quarter:]) <= 1.3 * sum(size[:quarter]) + 200, table
    assert sum(sizes) < 40 * 6_000


@pytest.mark.parametrize("thread", ["memories/ann", "store/users.ann"])
async def test_internal_thread_names_can_be_neither_used_nor_deleted(
    log: Log, saver: TurnlogSaver, db: Connection, settled: Any, thread: str
) -> None:
    await log.append(memory_event(memory_of(1)))
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, config())
    head = await log.head()
    for refused in (
        graph.ainvoke({"messages": [HumanMessage("two")]}, config(thread)),
        graph.aupdate_state(config(thread), {"messages": [HumanMessage("three")]}),
        saver.aput_writes(config(thread, checkpoint_ns="", checkpoint_id="1"), [("plan", "run")], "task"),
        saver.acopy_thread("t", thread),
        saver.adelete_thread(thread),
        saver.aprune(["t", thread], strategy="delete"),
    ):
        with pytest.raises(InvalidToken, match="choose another"):
            await refused
    assert await log.head() == head
    await settled()
    assert await rows(db, "SELECT thread_id, content FROM memories") == [("memories/ann", "fact 1")]


async def test_a_rebuild_makes_the_same_rows(log: Log, database_url: str, mirror: MirroredSaver, settled: Any) -> None:
    graph = chat(mirror, [AIMessage("reply", id="a1")], [RemoveMessage(id="a1")])
    for n in range(4):
        await graph.ainvoke({"messages": [HumanMessage(f"m{n}")]}, config())
        await chat(mirror).ainvoke({"messages": [HumanMessage(f"m{n}")]}, config("u"))
    await mirror.saver.aprune(["t"])
    await mirror.saver.adelete_thread("u")
    await chat(mirror.saver).ainvoke({"messages": [HumanMessage("after")]}, config())
    await settled()
    verified = await verify(log, database_url, CHECKPOINTS)
    assert verified.rows > 0
    assert verified.clean, verified.differences
