"""retrieve: the documents of the route's namespace, nearest first."""

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime as Run
from langgraph.store.memory import InMemoryStore
from test_graph_recall import words_store

from turnlog.consumers.langgraph.graph.retrieve import NO_STORE, NO_VECTORS, item_text, retrieve_node
from turnlog.consumers.langgraph.graph.state import ConversationState


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
    update = await retrieve_node(2)(asking("how many words has an essay"), runtime=Run(store=await filled()))
    first, second = update["retrieval_results"]
    assert (first["key"], first["namespace"]) == ("length", ["essays", "guides"])
    assert first["text"] == "An essay has 650 words at most"
    assert first["score"] > second["score"]
    assert update["debug"] == {"route": "essay"}


async def test_chinese_finds_chinese() -> None:
    update = await retrieve_node(1)(asking("文书的结构"), runtime=Run(store=await filled()))
    assert [found["key"] for found in update["retrieval_results"]] == ["结构"]


async def test_without_a_store_the_results_are_empty_and_debug_says_so() -> None:
    update = await retrieve_node(2)(asking("anything"), runtime=Run())
    assert update == {"retrieval_results": [], "debug": {"route": "essay", "retrieve": NO_STORE}}


async def test_documents_that_no_vector_ranked_are_left_out_and_debug_says_so() -> None:
    store = InMemoryStore()
    await store.aput(("essays",), "length", {"text": "An essay has 650 words at most"})
    update = await retrieve_node(2)(asking("essay"), runtime=Run(store=store))
    assert update == {"retrieval_results": [], "debug": {"route": "essay", "retrieve": NO_VECTORS}}


def test_an_item_says_its_text_or_all_it_holds() -> None:
    assert item_text({"text": " tea "}) == "tea"
    assert item_text({"content": "green", "kind": "x"}) == "green"
    assert item_text({"school": "MIT", "rank": 1}) == '{"school": "MIT", "rank": 1}'
