"""The messages of the next read are made while nothing goes on, for the threads that were used last."""

import asyncio

from graph_messages import CODEC, MESSAGES, items_of

from turnlog.consumers.langgraph.held import AHEAD_THREADS, Threads
from turnlog.consumers.langgraph.idle import Idle
from turnlog.consumers.langgraph.item_list import ItemList
from turnlog.consumers.langgraph.tuples import ROOT, Saved
from turnlog.consumers.langgraph.values import Listed


def use(threads: Threads, name: str, ns: str = ROOT) -> ItemList:
    """The list that the thread's newest checkpoint names, which was written to."""
    items = ItemList(items_of(message)[0] for message in MESSAGES)
    items.begins([])
    values = {("messages", "1"): Listed("list", len(items), items)}
    threads.get(name).latest[ns] = Saved(name, ns, "c", None, "{}", "{}", values)
    return items


def test_those_that_were_used_last_have_their_messages_made_and_the_others_keep_none() -> None:
    threads = Threads("acme", 100)
    lists = {str(number): use(threads, str(number)) for number in range(AHEAD_THREADS)}
    for _ in lists:
        assert threads.make_ahead(CODEC)
    assert not threads.make_ahead(CODEC)
    assert [len(items._ahead) for items in lists.values()] == [len(MESSAGES)] * AHEAD_THREADS
    lists["new"] = use(threads, "new")
    assert threads.make_ahead(CODEC)
    assert {name for name, items in lists.items() if not items._ahead} == {"0"}, "at once: there may be no second pass"
    assert not threads.make_ahead(CODEC)


def test_nothing_is_made_for_subgraphs_whose_next_run_is_another_namespace() -> None:
    threads = Threads("acme", 100)
    items = use(threads, "t", "agent:1")
    assert not threads.make_ahead(CODEC)
    assert not items._ahead


async def test_work_begins_when_the_last_call_has_ended_and_goes_on_while_there_is_some() -> None:
    left, done, under_way = 3, asyncio.Event(), list[int]()

    def work() -> bool:
        nonlocal left
        under_way.append(calls)
        left -= 1
        if not left:
            done.set()
        return left > 0

    idle, calls = Idle(work), 0

    async def call(end: asyncio.Event) -> None:
        nonlocal calls
        with idle.busy():
            calls += 1
            await end.wait()
            calls -= 1

    with idle.busy():
        pass
    ends = [asyncio.Event(), asyncio.Event()]
    running = [asyncio.create_task(call(end)) for end in ends]
    await asyncio.sleep(0)  # both have begun
    ends[0].set()
    await running[0]
    assert idle._timer is not None
    assert idle._timer.cancelled(), "a call goes on"
    ends[1].set()
    await asyncio.wait_for(done.wait(), 10)
    assert under_way == [0, 0, 0]
