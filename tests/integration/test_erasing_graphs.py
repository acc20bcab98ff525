"""A graph's thread of two people continues from its intact state after one of them was erased."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from helpers.erased_users import erase
from helpers.key_rings import KEK
from helpers.langgraph_graphs import config, history, one_node
from helpers.servers import eventually
from helpers.stage import Stage, on_stage
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import MessagesState
from pydantic import SecretStr

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.events.contracts import Event
from turnlog.projectors.models.checkpoints.projection import CHECKPOINTS
from turnlog.projectors.rebuild.rebuild import rebuild_several

pytestmark = pytest.mark.slow

SECRET = "My cat is called Xanthippe of Quimper."
TOPIC = "the harvest festival in Spoleto"
ONE, TWO = ["bob says hello", "I saw 1"], ["bob says hello", "I saw 3"]
# The order of speakers, the messages that are left when ann is erased, and the number of remaining checkpoints.
ORDERS = {
    "ann spoke last": (["bob", "bob", "ann"], ONE + TWO, 6),
    "ann spoke last, twice": (["bob", "ann", "ann"], ONE, 3),
    "ann spoke between": (["bob", "ann", "bob"], ONE, 3),
    "ann spoke first": (["ann", "bob"], [], 0),
}


class State(MessagesState):
    """The graph's state. topic: stored in each checkpoint itself. plan: stored as a separate value."""

    topic: str
    plan: dict[str, str]


@pytest.fixture(
    params=[pytest.param(SecretStr(KEK), id="sealed"), pytest.param(None, id="in clear", marks=pytest.mark.nightly)]
)
async def room(request: Any, tmp_path: Path, nats_url: str, database_url: str) -> AsyncIterator[Stage]:
    settings = Settings(home=tmp_path, nats_url=nats_url, database_url=database_url, kek=request.param)
    async with on_stage(settings, ["projectors"]) as opened:
        yield opened


def saver_of(stage: Stage) -> TurnlogSaver:
    """Returns a saver without cached data."""
    return TurnlogSaver(stage.runtime.log, stage.runtime.pool)


def graph_of(saver: TurnlogSaver) -> Any:
    async def answer(state: State) -> Any:
        return {"messages": [AIMessage(f"I saw {len(state['messages'])}")]}

    return one_node(State, answer, saver)


async def say(saver: TurnlogSaver, user: str) -> list[str]:
    """Lets bob set a topic and a plan, or ann say something; returns the messages of the graph."""
    values: dict[str, Any] = {"messages": [HumanMessage(SECRET)]}
    if user == "bob":
        values = {"messages": [HumanMessage("bob says hello")], "topic": TOPIC, "plan": {"on": TOPIC}}
    return texts(await graph_of(saver).ainvoke(values, config(user_id=user)))


def texts(values: Any) -> list[str]:
    return [message.text for message in values.get("messages", [])]


async def state(saver: TurnlogSaver) -> Any:
    return (await graph_of(saver).aget_state(config())).values


async def ids(saver: TurnlogSaver) -> list[str]:
    return [saved.checkpoint["id"] async for saved in saver.alist(config())]


async def table_rows(stage: Stage) -> dict[str, Any]:
    await stage.runtime.wait_until_projected()
    names = [table.name for table in CHECKPOINTS.tables]
    return {name: await stage.rows(f"SELECT t::text FROM {name} t ORDER BY 1") for name in names}


async def rebuilt(stage: Stage) -> dict[str, Any]:
    await rebuild_several(stage.runtime.log, stage.runtime.database_url, [CHECKPOINTS])
    return await table_rows(stage)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_shared_thread_goes_on_from_the_newest_whole_checkpoint(room: Stage, order: str) -> None:
    people, left, count = ORDERS[order]
    for user in people:
        await say(saver_of(room), user)
    before = await ids(saver_of(room))
    whole = before[len(before) - count :]

    receipt = await erase(room, "ann", [SECRET])
    assert receipt.hits == {}
    assert await ids(saver_of(room)) == whole
    assert [
        saved_state.config["configurable"]["checkpoint_id"] for saved_state in await history(graph_of(saver_of(room)))
    ] == whole
    values = await state(saver_of(room))
    assert texts(values) == left
    assert not left or (values["topic"], values["plan"]) == (TOPIC, {"on": TOPIC})
    live = await table_rows(room)
    assert await rebuilt(room) == live

    await saver_of(room).aprune(["t"])
    assert await ids(saver_of(room)) == whole[:1]
    onward = [*left, "bob says hello", f"I saw {len(left) + 1}"]
    assert await say(saver_of(room), "bob") == onward
    assert texts(await state(saver_of(room))) == onward
    assert await say(saver_of(room), "ann") == [*onward, SECRET, f"I saw {len(onward) + 1}"]
    live = await table_rows(room)
    assert await rebuilt(room) == live


@pytest.mark.parametrize("people", [["bob", "ann"], ["ann", "bob"]], ids=["ann spoke last", "ann spoke first"])
async def test_a_saver_with_a_cached_thread_reads_the_intact_state(room: Stage, people: list[str]) -> None:
    saver = saver_of(room)
    for user in people:
        await say(saver, user)
    await erase(room, "ann", [SECRET])
    left = ONE if people[0] == "bob" else []

    async def has_forgotten() -> bool:
        return texts(await state(saver)) == left

    await eventually(has_forgotten)
    assert await say(saver, "bob") == [*left, "bob says hello", f"I saw {len(left) + 1}"]


@pytest.mark.parametrize("shared", [True, False], ids=["one process", "a process each"])
async def test_a_late_checkpoint_is_readable_without_the_erased_persons_data(room: Stage, shared: bool) -> None:
    """Another process stores a checkpoint after the erasure, and its lists continue deleted rows."""
    saver = saver_of(room)
    for user in ("bob", "ann"):
        await say(saver if shared else saver_of(room), user)
    known = {event.id for event in await room.events()}
    await say(saver if shared else saver_of(room), "bob")
    late = [event for event in await room.events() if event.id not in known]
    await erase(room, "ann", [SECRET])
    await room.runtime.log.append_many([anew(event) for event in late if event.type.startswith("checkpoint")])

    values = await state(saver_of(room))
    assert texts(values) == [*(ONE if shared else []), "bob says hello", "I saw 5"]
    assert (values["topic"], values["plan"]) == (TOPIC, {"on": TOPIC})
    assert len(await history(graph_of(saver_of(room)))) == 6
    live = await table_rows(room)
    assert await rebuilt(room) == live
    assert await say(saver_of(room), "bob") == [*texts(values), "bob says hello", f"I saw {len(texts(values)) + 1}"]


def anew(event: Event) -> Event:
    return event.model_copy(update={"id": uuid4()})
