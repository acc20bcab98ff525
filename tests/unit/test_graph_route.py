"""route: rules as data, scores of G2, Chinese and English."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from turnlog.consumers.langgraph.graph.route import InvalidRoute, Route, choose_route, route_node, score

ESSAY = Route(
    "essay",
    keywords=("文书", "essay", "ps", "润色", "大纲", "outline", "draft"),
    patterns=(r"帮我(写|修改|润色|评估).*文书", r"(improve|review|write) my essay"),
    kb_prefix="essays",
    agent_type="ESSAY",
)
SCHOOL = Route("school", keywords=("学校", "school", "ranking", "deadline"), kb_prefix="schools", agent_type="SCHOOL")
ROUTES = (ESSAY, SCHOOL)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("essay", 0.15),
        ("essay draft", 0.30),
        ("essay draft outline", 0.65),
        ("please improve my essay", 0.65),
        ("improve my essay draft", 0.80),
        ("帮我润色这篇文书", 0.80),
        ("帮我润色这篇文书的大纲", 1.0),
        ("what is the weather?", 0.0),
        ("", 0.0),
    ],
)
def test_patterns_and_keywords_add_up(text: str, expected: float) -> None:
    assert score(text, ESSAY) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Can you review my essay? The DRAFT is short.", "essay"),
        ("请帮我修改一下文书，大纲也看看", "essay"),
        ("school ranking and deadline of that 学校", "school"),
        ("which school has a good ranking", None),
        ("今天天气怎么样", None),
    ],
)
def test_the_best_route_over_the_threshold_is_chosen(text: str, name: str | None) -> None:
    chosen = choose_route(text, ROUTES)
    assert (chosen.name if chosen else None) == name


def test_the_first_of_equal_routes_is_chosen_and_none_of_no_routes() -> None:
    again = Route("again", ESSAY.keywords, ESSAY.patterns)
    assert choose_route("帮我写文书大纲", (ESSAY, again)) is ESSAY
    assert choose_route("帮我写文书大纲", (again, ESSAY)) is again
    assert choose_route("帮我写文书大纲", ()) is None


def test_a_latin_keyword_is_a_whole_word_also_beside_chinese() -> None:
    assert score("tips", ESSAY) == 0.0
    assert score("我的ps怎么写", ESSAY) == pytest.approx(0.15)


async def test_the_node_looks_at_the_latest_question_and_clears_what_the_last_turn_looked_up() -> None:
    node = route_node(ROUTES)
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
        "debug": {"route": "general"},
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [({"kb_prefix": "memories"}, "single users"), ({"kb_prefix": "a.b"}, "label"), ({"patterns": ("(",)}, "pattern")],
)
def test_a_route_that_cannot_be_is_refused_when_it_is_made(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRoute, match=says):
        Route("bad", **given)


async def test_a_route_without_documents_answers_without_retrieval() -> None:
    node = route_node((Route("chat", patterns=("hello",), keywords=("hello", "there"), agent_type="CHAT"),))
    update = await node({"messages": [HumanMessage("Hello there")], "user_id": "ann", "conversation_id": "c"})
    assert (update["agent_type"], update["use_retrieval"]) == ("CHAT", False)
