"""In the search of memories, words for the same role match each other, and other words do not."""

import pytest

from turnlog.agent.memory.role_words import role_words

MEET = [
    ("王芳的孩子几岁了？", {"儿子", "女儿", "son", "daughter", "kid"}, {"妈妈", "朋友"}),
    ("How old are my kids?", {"child", "son", "daughter", "孩子", "儿子"}, {"mother", "older"}),
    ("What does my son like?", {"child", "儿子", "孩子"}, {"daughter", "女儿"}),
    ("Where does my mom live?", {"mother", "妈妈", "母亲", "parents"}, {"father", "爸爸"}),
    ("我妈多大了？", {"妈妈", "mother", "mom"}, {"爸爸"}),
    ("What is my spouse allergic to?", {"husband", "wife", "partner", "老公", "老婆"}, {"girlfriend"}),
    ("我老公对什么过敏？", {"husband", "丈夫", "爱人", "spouse"}, {"wife", "老婆"}),
    ("我女朋友喜欢什么？", {"girlfriend", "女友"}, {"friend", "好友"}),
    ("我叔叔的电话？", {"uncle"}, {"舅舅"}),
    ("My uncle's phone?", {"叔叔", "舅舅"}, {"aunt"}),
]


@pytest.mark.parametrize(("question", "there", "absent"), MEET, ids=[question for question, _, _ in MEET])
def test_a_question_names_a_role_by_all_its_words(question: str, there: set[str], absent: set[str]) -> None:
    words = set(role_words(question))
    assert there <= words
    assert not absent & words


@pytest.mark.parametrize("question", ["Where do I live?", "我住在哪里？", "Which person is old?", "什么是妈祖？", ""])
def test_a_question_without_a_role_asks_for_no_other_words(question: str) -> None:
    assert role_words(question) == []
