"""The form of a text, in English and Chinese."""

import pytest

from turnlog.agent.recall.scope import asks, asks_for_several, tells_detail


@pytest.mark.parametrize(
    "query",
    [
        "Which cities has Jon visited?",
        "What books has Melanie read?",
        "How many dogs did Maria adopt?",
        "What do Jon and Gina have in common?",
        "What pets does she own?",
        "她去过哪些城市？",
        "他一共去了几次医院？",
    ],
)
def test_a_question_for_several_things_is_seen(query: str) -> None:
    assert asks_for_several(query)


@pytest.mark.parametrize(
    "query", ["When did Caroline move?", "What was the name of the dog?", "Who is Ann?", "她的猫叫什么名字？", ""]
)
def test_a_question_for_one_thing_is_not_taken_for_it(query: str) -> None:
    assert not asks_for_several(query)


def test_numbers_names_and_quotes_are_details() -> None:
    assert all(map(tells_detail, ["I ran 5 km", "We went to Banff", 'she said "no"', "我在读《三体》", "跑了5公里"]))
    assert not any(map(tells_detail, ["Nice to hear that!", "I know, I was there.", "今天天气很好"]))


def test_both_question_marks_ask() -> None:
    assert asks("Where?") and asks("哪里？") and not asks("Here.")
