"""The persist node by itself, on real servers: all that an answer leaves, once; a full log is told."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.memory_events import memory_id, recorded
from helpers.sample_events import turn
from helpers.servers import rows
from langchain_core.messages import AIMessage, HumanMessage

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.models.protocol import Completion
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.graph.generate import answer_message
from turnlog.consumers.langgraph.graph.persist import Receipts, persist_node
from turnlog.consumers.langgraph.graph.request import build_request
from turnlog.consumers.langgraph.graph.state import ConversationState, Node
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import AnswerReceipt, UsageMetered
from turnlog.events.errors import LogFull
from turnlog.events.subjects import STREAM, memory_thread

MODEL, TEA = "gpt-4o", "I like tea"
SAID = Completion("Green tea.", (), 120, 3, 0.25, MODEL, "api.openai.com", 81.5, finish_reason="stop")
ASKED: ConversationState = {
    "messages": [HumanMessage("What do I drink?")],
    "user_id": "ann",
    "conversation_id": "c",
    "memory_context": f"- {TEA}",
    "memory_ids": [str(memory_id(TEA))],
}


@pytest.fixture
async def runtime(nats_url: str, database_url: str) -> AsyncIterator[Runtime]:
    """With what the checkpointer and the extraction have put on the log before the node runs."""
    settings = Settings(nats_url=nats_url, database_url=database_url, model=MODEL)
    async with opened(settings) as made, projecting(made):
        await made.log.append_many(
            [turn("What do I drink?", "user", "c"), turn(SAID.text, "assistant", "c"), recorded(TEA)]
        )
        await made.settle()
        yield made


def node(runtime: Runtime) -> Node:
    receipts = Receipts(runtime.log, runtime.pool, runtime.settings, MODEL)
    return persist_node(runtime.log, Memories(runtime.log, runtime.pool), receipts, runtime.settings)


def answered(runtime: Runtime, completion: Completion = SAID) -> ConversationState:
    answer = answer_message(completion, "general", build_request(ASKED, runtime.settings, MODEL).context_hash)
    return {**ASKED, "messages": [*ASKED["messages"], answer]}


async def stored(runtime: Runtime, kind: type[Any], thread: str = "c") -> list[Any]:
    return [
        one.event.data async for one in runtime.log.read_thread("default", thread) if isinstance(one.event.data, kind)
    ]


async def accesses(runtime: Runtime) -> int:
    await runtime.settle()
    async with runtime.pool.connection() as conn:
        query = "SELECT access_count FROM memories WHERE thread_id = %s"
        [(count,)] = await rows(conn, query, memory_thread("ann"))
    return int(count)


async def test_usage_receipt_and_what_was_read_are_stored_once_however_often_it_runs(runtime: Runtime) -> None:
    persist, state = node(runtime), answered(runtime)
    assert [await persist(state) for _ in range(2)] == [{}, {}]
    [used] = await stored(runtime, UsageMetered)
    assert (used.purpose, used.tokens_in, used.tokens_out, used.cost_usd) == ("answer", 120, 3, 0.25)
    [receipt] = await stored(runtime, AnswerReceipt)
    assert receipt.context_hash == state["messages"][-1].response_metadata["context_hash"]
    assert (receipt.memories, receipt.as_of_seq, len(receipt.answer_ids)) == ((str(memory_id(TEA)),), 1, 1)
    assert await accesses(runtime) == 1


async def test_an_answer_to_something_else_is_metered_and_says_why_it_has_no_receipt(runtime: Runtime) -> None:
    state = answered(runtime)
    state["debug"] = {"route": "general"}
    state["messages"] = [HumanMessage("Nobody said this."), state["messages"][-1]]
    found = await node(runtime)(state)
    assert found["debug"].keys() == {"route", "persist receipt"}
    assert await stored(runtime, AnswerReceipt) == []
    assert len(await stored(runtime, UsageMetered)) == 1


@pytest.mark.parametrize("messages", [[], [HumanMessage("hello")], [AIMessage("from nowhere, without usage")]])
async def test_without_an_answer_nothing_is_stored(runtime: Runtime, messages: list[Any]) -> None:
    head = await runtime.log.head()
    assert await node(runtime)({**ASKED, "messages": messages}) == {}
    assert await runtime.log.head() == head


async def test_a_log_that_is_full_is_told_and_the_next_run_stores_everything(runtime: Runtime) -> None:
    js, persist, state = runtime.log.nc.jetstream(), node(runtime), answered(runtime, replace(SAID, tokens_out=4))
    config = (await js.stream_info(STREAM)).config
    await js.update_stream(config.evolve(max_bytes=1))
    with pytest.raises(LogFull):
        await persist(state)
    await js.update_stream(config)
    assert await persist(state) == {}
    assert [one.tokens_out for one in await stored(runtime, UsageMetered)] == [4]
    assert len(await stored(runtime, AnswerReceipt)) == 1
    assert await accesses(runtime) == 1
