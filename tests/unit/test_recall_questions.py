"""Tests how texts are recognised as questions or details, and how questions in English and Chinese are parsed."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from turnlog.agent.recall.questions import MOST_PARTS, Kind, WordsOf, read_question
from turnlog.agent.recall.scope import asks, tells_detail


def test_numbers_names_and_quotes_are_details() -> None:
    assert all(map(tells_detail, ["I ran 5 km", "We went to Banff", 'she said "no"', "我在读《三体》", "跑了5公里"]))
    assert not any(map(tells_detail, ["Nice to hear that!", "I know, I was there.", "今天天气很好"]))


def test_both_question_marks_ask() -> None:
    assert asks("Where?") and asks("哪里？") and not asks("Here.")


def parts(query: str) -> list[str]:
    return [part.text for part in read_question(query).parts]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Where is my flat? Also, who is my landlord?", ["Where is my flat?", "who is my landlord?"]),
        ("Where do I work? What does Ann do?", ["Where do I work?", "What does Ann do?"]),
        ("Where does Bob live and what does Ann do?", ["Where does Bob live", "what does Ann do?"]),
        ("我的手机是什么型号？另外，舅妈叫什么名字来着？", ["我的手机是什么型号？", "舅妈叫什么名字来着？"]),
        ("我的手机是什么型号，另外舅妈叫什么名字", ["我的手机是什么型号", "舅妈叫什么名字"]),
        ("爸爸的生日是哪天？妈妈的电话是多少？", ["爸爸的生日是哪天？", "妈妈的电话是多少？"]),
        ("How many days were there between the first draft and my deadline?", ["the first draft", "my deadline"]),
        (
            "How many weeks passed between when I moved, and when I met Linda?",
            ["when I moved", "when I met Linda"],
        ),
        ("Which happened first: my trip to Rome, or the new job?", ["my trip to Rome", "the new job"]),
        ("搬家和换工作相隔多少天？", ["搬家", "换工作"]),
        ("搬家和换工作哪个更早？", ["搬家", "换工作"]),
    ],
)
def test_a_question_has_a_part_for_each_thing_to_find(query: str, expected: list[str]) -> None:
    assert parts(query) == expected


@pytest.mark.parametrize(
    "query",
    [
        "What did Ann and Bob cook?",
        "Where did we meet and when?",
        "Do you remember when and where we met?",
        "Who and what do I like?",
        "What is in the report and how does it end?",
        "Who is Ann and what did he tell her?",
        "I am planning a Flask app. What libraries would you suggest?",
        "Where did I go? And why?",
        "I know that. I also like tea.",
        "How many weeks passed between Ann adopting Coco and Shadow?",
        "What is the difference between Python and Java?",
        "Should I take the first offer or the second?",
        "王芳和李明做了什么菜？",
        "我住在哪里，和谁一起住",
        "我另外一部手机",
        "妈妈的生日是哪天？她多大？",
        "When did we water the plants? Yesterday?",
        "Yesterday? What did we do?",
        "What?",
        "",
    ],
)
def test_one_question_stays_whole(query: str) -> None:
    assert parts(query) == [query]


def test_more_questions_than_parts_share_the_last_one() -> None:
    asked = [f"Where is room {number}?" for number in range(5)]
    assert parts(" ".join(asked)) == [*asked[: MOST_PARTS - 1], " ".join(asked[MOST_PARTS - 1 :])]


@pytest.mark.parametrize(
    ("query", "meant"),
    [
        ("今天天气真好，晚上吃什么呢？不好意思，我真正想问的是：爸爸的生日是哪天？", ["爸爸的生日是哪天？"]),
        ("The weather is lovely. What I actually want to ask is: where is my flat?", ["where is my flat?"]),
        ("我真正想问的是：", ["我真正想问的是："]),
    ],
)
def test_text_before_the_actual_question_is_left_out(query: str, meant: list[str]) -> None:
    assert parts(query) == meant


@pytest.mark.parametrize(
    ("query", "kind", "topic"),
    [
        (
            "Can you list the order in which I brought up different aspects of my weather app throughout our "
            "conversations, in order? Mention ONLY and ONLY five items.",
            "order",
            "my weather app",
        ),
        ("In what order did I visit Rome and Paris?", "order", "In what order did I visit Rome and Paris"),
        (
            "Can you give me a comprehensive summary of my understanding of probability?",
            "summary",
            "my understanding of probability",
        ),
        ("请总结一下毕业论文的进展", "summary", "毕业论文的进展"),
        ("What did we talk about?", "summary", "What did we talk about?"),
        ("我们聊了什么？", "summary", "我们聊了什么？"),
    ],
)
def test_questions_for_an_order_or_a_summary_search_the_topic(query: str, kind: Kind, topic: str) -> None:
    assert (read_question(query).kind, parts(query)) == (kind, [topic])


@pytest.mark.parametrize(
    "query",
    [
        "What did I order at the restaurant?",
        "What was the number of the order I placed?",
        "What did I do in order to pass?",
        "Where did I first meet Ann?",
        "What did the overview say?",
        "我点了什么菜？",
    ],
)
def test_orders_of_other_kinds_are_facts(query: str) -> None:
    read = read_question(query)
    assert (read.kind, parts(query)) == ("fact", [query])


@pytest.mark.parametrize(
    ("query", "words_of"),
    [
        ("What did you recommend for my resume?", "anyone"),
        ("The book you suggested?", "anyone"),
        ("你曾经给我推荐过哪些画家？", "anyone"),
        ("Give me a summary of my resume.", "anyone"),
        ("In what order did we visit Rome and Paris?", "people"),
        ("List the order in which I brought up trips.", "user"),
        ("我先后提到了哪些城市？", "user"),
        ("What did I tell you about Ann?", "people"),
        ("Can you list my pets?", "people"),
        ("我告诉过你我的生日吗？", "people"),
    ],
)
def test_the_requested_speaker_is_recognised(query: str, words_of: WordsOf) -> None:
    assert read_question(query).words_of == words_of


@given(
    st.text() | st.text("?？和与 and between how many when 另外我真正想问的是：，first:or") | st.text(min_size=2_100)
)
def test_every_text_has_one_to_three_parts(text: str) -> None:
    assert 1 <= len(parts(text)) <= MOST_PARTS
    assert not text or all(parts(text))
