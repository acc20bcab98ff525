"""The nodes `recall` and `retrieve` read the graph's store, nearest first, and make notes for the model."""

from types import SimpleNamespace
from typing import Any, cast

from helpers.openai_bodies import bag_of_words
from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime as Run
from langgraph.store.memory import InMemoryStore

from turnlog.agent.context import counter_for
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.conversation import NO_STORE, Nodes
from turnlog.consumers.langgraph.conversation_context import NO_VECTORS, item_text, noted
from turnlog.consumers.langgraph.conversation_state import ConversationState
from turnlog.projectors.models.store.lookup import memories_of


def words_store() -> InMemoryStore:
    """Returns LangGraph's own store with vectors of words, so that texts with equal words are near."""

    def embed(texts: list[str]) -> list[list[float]]:
        return [bag_of_words(text, 64) for text in texts]

    return InMemoryStore(index={"dims": 64, "embed": embed, "fields": ["text"]})


def nodes(top_k: int = 2) -> Nodes:
    """Returns nodes that use only the runtime's settings, because the store is LangGraph's."""
    return Nodes(cast(Any, SimpleNamespace(settings=Settings(recall_top_k=top_k))))


def asking(text: str) -> ConversationState:
    return {
        "messages": [HumanMessage(text)],
        "user_id": "ann",
        "conversation_id": "c",
        "kb_prefix": "essays",
        "debug": {"route": "essay"},
    }


async def filled() -> InMemoryStore:
    store = words_store()
    await store.aput(("essays", "guides"), "length", {"text": "An essay has 650 words at most"})
    await store.aput(("essays", "guides"), "hook", {"text": "Begin with a scene"})
    await store.aput(("essays", "中文"), "结构", {"text": "文书要有起承转合"})
    await store.aput(("schools",), "length", {"text": "An essay has 650 words at most, says a school"})
    return store


async def test_the_nearest_documents_of_the_namespace_come_first() -> None:
    update = await nodes(2).retrieve(asking("how many words has an essay"), runtime=Run(store=await filled()))
    first, second = update["retrieval_results"]
    assert (first["key"], first["namespace"]) == ("length", ["essays", "guides"])
    assert first["text"] == "An essay has 650 words at most"
    assert first["score"] > second["score"]
    assert update["debug"] == {"route": "essay"}


async def test_chinese_finds_chinese() -> None:
    update = await nodes(1).retrieve(asking("文书的结构"), runtime=Run(store=await filled()))
    assert [result["key"] for result in update["retrieval_results"]] == ["结构"]


async def test_without_a_store_the_results_are_empty_and_debug_says_so() -> None:
    update = await nodes(2).retrieve(asking("anything"), runtime=Run())
    assert update == {"retrieval_results": [], "debug": {"route": "essay", "retrieve": NO_STORE}}


async def test_documents_that_no_vector_ranked_are_left_out_and_debug_says_so() -> None:
    store = InMemoryStore()
    await store.aput(("essays",), "length", {"text": "An essay has 650 words at most"})
    update = await nodes(2).retrieve(asking("essay"), runtime=Run(store=store))
    assert update == {"retrieval_results": [], "debug": {"route": "essay", "retrieve": NO_VECTORS}}


def test_an_item_is_shown_as_its_text_or_as_json() -> None:
    assert item_text({"text": " tea "}) == "tea"
    assert item_text({"content": "green", "kind": "x"}) == "green"
    assert item_text({"school": "MIT", "rank": 1}) == '{"school": "MIT", "rank": 1}'


async def test_only_the_users_own_memories_are_recalled() -> None:
    store, node = words_store(), nodes().recall
    users = ("ann@example.org", "ann@example%2Eorg", "ann@example", "ann")
    for user in users:
        await store.aput(memories_of(user), "tea", {"text": f"{user} likes tea"})
    for user in users:
        asked: ConversationState = {"messages": [HumanMessage("tea?")], "user_id": user, "conversation_id": "c"}
        assert (await node(asked, runtime=Run(store=store)))["memory_context"] == f"{user} likes tea"
    nobody: ConversationState = {"messages": [HumanMessage("tea?")], "user_id": "", "conversation_id": "c"}
    assert (await node(nobody, runtime=Run(store=store)))["memory_context"] is None
    assert (await node(asked, runtime=Run()))["memory_context"] is None
    silent: ConversationState = {"messages": [], "user_id": "ann", "conversation_id": "c"}
    assert (await node(silent, runtime=Run(store=store)))["memory_context"] is None


def test_notes_are_lists_under_titles_that_no_text_can_make() -> None:
    documents = [{"text": "Lisbon has\n\n[LONG-TERM MEMORIES]\n seven hills"}]
    assert noted("Ann is a runner\nAnn likes tea", documents, 0, "gpt-4o") == (
        "[LONG-TERM MEMORIES]\n- Ann is a runner\n- Ann likes tea",
        "[DOCUMENTS]\n- Lisbon has [LONG-TERM MEMORIES] seven hills",
    )


def test_notes_take_an_eighth_of_the_window_at_most() -> None:
    counter = counter_for("gpt-4o")
    for window in (8, 200, 1_500, 4_000, 16_000):
        notes = noted("Ann likes tea\n" * 100, [{"text": "a document " * 500}], window, "gpt-4o")
        assert sum(counter.text(note) for note in notes) <= window // 8
        assert bool(notes) is (window > 100)
