"""recall without servers: turns as the state keeps them, and sources that are away."""

from datetime import UTC, datetime
from uuid import UUID

from helpers.openai_bodies import bag_of_words
from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime as Run
from langgraph.store.memory import InMemoryStore
from psycopg_pool import AsyncConnectionPool

from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.graph.recall import episodes, recall_node
from turnlog.consumers.langgraph.graph.state import ConversationState
from turnlog.projectors.models.message import Message
from turnlog.projectors.models.store.lookup import memories_of

MAY = datetime(2023, 5, 8, tzinfo=UTC)


def words_store() -> InMemoryStore:
    """LangGraph's own store; vectors are of words, so that equal words are near."""

    def embed(texts: list[str]) -> list[list[float]]:
        return [bag_of_words(text, 64) for text in texts]

    return InMemoryStore(index={"dims": 64, "embed": embed, "fields": ["text"]})


def closed_pool() -> Pool:
    return AsyncConnectionPool("postgresql://nobody@127.0.0.1:1/none", open=False)


def test_turns_become_plain_json_and_those_without_words_are_left_out() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "你好"}]
    messages = [
        Message(7, UUID(int=7), "user", "hello", MAY, name="Ann"),
        Message(8, UUID(int=8), "assistant", "", MAY, tool_calls=[{"id": "1", "name": "x", "arguments": "{}"}]),
        Message(9, UUID(int=9), "assistant", blocks, MAY),
    ]
    assert episodes(messages) == [
        {"role": "Ann", "content": "hello", "timestamp": "2023-05-08T00:00:00+00:00", "seq": 7},
        {"role": "assistant", "content": "你好", "timestamp": "2023-05-08T00:00:00+00:00", "seq": 9},
    ]


async def test_without_a_database_memories_still_come_and_debug_says_what_is_missing() -> None:
    store = words_store()
    await store.aput(("memories", "ann"), "tea", {"text": "Ann drinks green tea"})
    await store.aput(("memories", "bob"), "tea", {"text": "Bob drinks black tea"})
    node = recall_node(closed_pool(), None, Settings())
    update = await node(
        {"messages": [HumanMessage("which tea?")], "user_id": "ann", "conversation_id": "c", "debug": {"route": "x"}},
        runtime=Run(store=store),
    )
    assert update["memory_context"] == "Ann drinks green tea"
    assert update["conversation_summary"] is None
    assert (update["topics"], update["episodic_memory"], update["pruned_through"]) == ([], [], 0)
    assert set(update["debug"]) == {"route", "recall summary", "recall turns", "recall long-term memories"}
    assert "pool" in update["debug"]["recall turns"]


async def test_a_user_whose_id_has_dots_has_memories_of_their_own() -> None:
    store, node = words_store(), recall_node(closed_pool(), None, Settings())
    users = ("ann@example.org", "ann@example%2Eorg", "ann@example", "ann")
    for user in users:
        await store.aput(memories_of(user), "tea", {"text": f"{user} likes tea"})
    for user in users:
        asked: ConversationState = {"messages": [HumanMessage("tea?")], "user_id": user, "conversation_id": "c"}
        assert (await node(asked, runtime=Run(store=store)))["memory_context"] == f"{user} likes tea"
    nobody: ConversationState = {"messages": [HumanMessage("tea?")], "user_id": "", "conversation_id": "c"}
    assert (await node(nobody, runtime=Run(store=store)))["memory_context"] is None


async def test_without_a_store_or_a_question_there_are_no_memories() -> None:
    node = recall_node(closed_pool(), None, Settings())
    asked = HumanMessage("which tea?")
    update = await node({"messages": [asked], "user_id": "ann", "conversation_id": "c"}, runtime=Run())
    assert update["memory_context"] is None
    silent = await node({"messages": [], "user_id": "ann", "conversation_id": "c"}, runtime=Run(store=words_store()))
    assert (silent["memory_context"], silent["episodic_memory"]) == (None, [])
