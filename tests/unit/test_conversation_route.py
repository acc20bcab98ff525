"""The node `route` scores questions by rules that are data, in Chinese and English."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from turnlog.consumers.langgraph.conversation import Nodes
from turnlog.consumers.langgraph.conversation_routes import InvalidRoute, Route
from turnlog.consumers.langgraph.conversation_state import ConversationState

ESSAY = Route(
    "essay",
    keywords=("文书", "essay", "ps", "润色", "大纲", "outline", "draft"),
    patterns=(r"帮我(写|修改|润色|评估).*文书", r"(improve|review|write) my essay"),
    kb_prefix="essays",
    agent_type="ESSAY",
)
SCHOOL = Route("school", keywords=("学校", "school", "ranking", "deadline"), kb_prefix="schools", agent_type="SCHOOL")
ROUTES = (ESSAY, SCHOOL)


def nodes(*routes: Route) -> Nodes:
    """Returns nodes without a server, because routing needs none."""
    return Nodes(cast(Any, None), routes)


async def chosen(text: str, routes: Sequence[Route]) -> str:
    state: ConversationState = {"messages": [HumanMessage(text)], "user_id": "ann", "conversation_id": "c"}
    return str((await nodes(*routes).route(state))["debug"]["route"])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Can you review my essay? The DRAFT is short.", "essay"),
        ("请帮我修改一下文书，大纲也看看", "essay"),
        ("school ranking and deadline of that 学校", "school"),
        ("which school has a good ranking", None),
        ("please improve my essay", None),
        ("improve my essay draft", "essay"),
        ("essay draft outline", None),
        ("今天天气怎么样", None),
    ],
)
async def test_the_best_route_over_the_threshold_is_chosen(text: str, name: str | None) -> None:
    assert await chosen(text, ROUTES) == (name or "general")


async def test_the_first_of_equal_routes_is_chosen_and_none_of_no_routes() -> None:
    again = Route("again", ESSAY.keywords, ESSAY.patterns)
    assert await chosen("帮我写文书大纲", (ESSAY, again)) == "essay"
    assert await chosen("帮我写文书大纲", (again, ESSAY)) == "again"
    assert await chosen("帮我写文书大纲", ()) == "general"


async def test_a_route_that_is_trusted_less_needs_more() -> None:
    doubtful = Route("essay", ESSAY.keywords, ESSAY.patterns, confidence=0.8)
    assert await chosen("improve my essay draft", (doubtful,)) == "general"
    assert await chosen("improve my essay draft outline", (doubtful,)) == "essay"


async def test_the_node_reads_the_latest_question_and_clears_results_of_the_last_turn() -> None:
    node = nodes(*ROUTES).route
    messages = [HumanMessage("帮我写文书大纲"), AIMessage("好的"), HumanMessage("thanks!")]
    first = await node({"messages": messages[:1], "user_id": "ann", "conversation_id": "c"})
    assert (first["agent_type"], first["kb_prefix"], first["use_retrieval"]) == ("ESSAY", "essays", True)
    then = await node(
        {"messages": messages, "user_id": "ann", "conversation_id": "c", "retrieval_results": [{"text": "old"}]}
    )
    assert then == {
        "kb_prefix": "general",
        "agent_type": "general",
        "use_retrieval": False,
        "retrieval_results": None,
        "answer": None,
        "debug": {"route": "general"},
    }


@pytest.mark.parametrize(
    ("fields", "says"),
    [({"kb_prefix": "memories"}, "single users"), ({"kb_prefix": "a.b"}, "label"), ({"patterns": ("(",)}, "pattern")],
)
def test_an_invalid_route_is_refused_when_it_is_made(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRoute, match=says):
        Route("bad", **fields)


async def test_a_route_without_documents_answers_without_retrieval() -> None:
    node = nodes(Route("chat", patterns=("hello",), keywords=("hello", "there"), agent_type="CHAT")).route
    update = await node({"messages": [HumanMessage("Hello there")], "user_id": "ann", "conversation_id": "c"})
    assert (update["agent_type"], update["use_retrieval"]) == ("CHAT", False)
