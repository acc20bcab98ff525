"""Every call of a saver or store after the end of its `open` block fails at once with a clear error."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from helpers.langgraph_graphs import chat, config
from langgraph.checkpoint.base import empty_checkpoint

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.langgraph.store.store import TurnlogStore
from turnlog.consumers.sync_bridge import LoopClosed

Calls = list[Callable[[], Any]]
ROOT = config(checkpoint_ns="", checkpoint_id="c")


@pytest.fixture
def settings(nats_url: str, database_url: str) -> Settings:
    return Settings(nats_url=nats_url, database_url=database_url)


async def listed(saver: TurnlogSaver) -> list[Any]:
    return [saved async for saved in saver.alist(config())]


def awaited(saver: TurnlogSaver, store: TurnlogStore) -> Calls:
    return [
        lambda: saver.aget_tuple(config()),
        lambda: listed(saver),
        lambda: saver.aput(ROOT, empty_checkpoint(), {}, {}),
        lambda: saver.aput_writes(ROOT, [("a", 1)], "task"),
        lambda: saver.adelete_thread("t"),
        lambda: saver.adelete_for_runs(["r"]),
        lambda: saver.acopy_thread("t", "u"),
        lambda: saver.aprune(["t"]),
        lambda: saver.aget_delta_channel_history(config=config(), channels=["a"]),
        lambda: chat(saver).ainvoke({"messages": "hello"}, config()),
        lambda: store.aput(("a",), "k", {"n": 1}),
        lambda: store.aget(("a",), "k"),
        lambda: store.asearch(("a",)),
        lambda: store.alist_namespaces(),
        lambda: store.adelete(("a",), "k"),
        lambda: store.areindex(),
    ]


def synchronous(saver: TurnlogSaver, store: TurnlogStore) -> Calls:
    return [
        lambda: saver.get_tuple(config()),
        lambda: list(saver.list(config())),
        lambda: saver.put(ROOT, empty_checkpoint(), {}, {}),
        lambda: saver.put_writes(ROOT, [("a", 1)], "task"),
        lambda: saver.delete_thread("t"),
        lambda: saver.delete_for_runs(["r"]),
        lambda: saver.copy_thread("t", "u"),
        lambda: saver.prune(["t"]),
        lambda: saver.get_delta_channel_history(config=config(), channels=["a"]),
        lambda: store.put(("a",), "k", {"n": 1}),
        lambda: store.get(("a",), "k"),
        lambda: store.search(("a",)),
        lambda: store.list_namespaces(),
        lambda: store.delete(("a",), "k"),
    ]


async def all_closed(calls: Calls) -> None:
    for call in calls:
        with pytest.raises(LoopClosed, match=r"this Turnlog(Saver|Store) is closed: its `open` block has ended"):
            result = call()
            if isinstance(result, Coroutine):
                await result


async def test_closed_objects_of_an_event_loop_refuse_every_call(settings: Settings) -> None:
    async with TurnlogSaver.open(settings) as saver, TurnlogStore.open(settings, project=False, index=False) as store:
        await chat(saver).ainvoke({"messages": "hello"}, config())
        assert not saver.is_closed and not store.is_closed
    assert saver.is_closed and store.is_closed
    for calls in (awaited(saver, store), synchronous(saver, store)):
        await all_closed(calls)
        await asyncio.to_thread(asyncio.run, all_closed(calls))


async def test_closed_objects_with_a_separate_event_loop_refuse_every_call(settings: Settings) -> None:
    def program() -> tuple[TurnlogSaver, TurnlogStore]:
        with TurnlogSaver.open_sync(settings) as saver, TurnlogStore.open_sync(settings, index=False) as store:
            return saver, store

    saver, store = await asyncio.to_thread(program)
    for calls in (awaited(saver, store), synchronous(saver, store)):
        await all_closed(calls)
