"""A merged text may state only what the memories state, and a merge must state all of it."""

import json
from collections.abc import Sequence

import pytest

from turnlog.agent.memory.upkeep.merge_groups import Method
from turnlog.agent.memory.upkeep.merge_prompt import check_answer, max_chars

CAT = ("Has a cat named Tom", "Has had the cat since 2019")
CAT_CN = ("养了一只叫小白的猫", "2019年开始养猫")


def verdict(contents: Sequence[str], text: str | None, method: Method = "merge") -> str:
    """Returns the text that is kept, or the reason for a refusal in brackets."""
    answer = check_answer(method, contents, json.dumps({"text": text}, ensure_ascii=False))
    assert bool(answer.text) == (answer.refused is None)
    return answer.text or f"({answer.refused})"


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        (CAT, "Has had a cat named Tom since 2019"),
        (CAT, "Has a cat named Tom, and has had it since 2019."),
        (CAT_CN, "养了一只叫小白的猫，2019年开始养"),
        (CAT_CN, "2019年开始养猫，是一只叫小白的猫"),
        (("Does not eat meat", "Does not like fish or meat"), "Does not eat meat and does not like fish"),
        (("不吃肉", "也不吃鱼和肉"), "不吃肉，也不吃鱼"),
        (
            ("Paid 1,200 euros for a bike", "Rides the bike that was 1200 euros"),
            "Rides the bike, paid 1,200 euros for it",
        ),
    ],
)
def test_a_text_that_states_all_of_its_members_is_kept(contents: Sequence[str], text: str) -> None:
    assert verdict(contents, text) == text


@pytest.mark.parametrize(
    ("contents", "text", "reason"),
    [
        (CAT, "Has had a cat named Tom since 2018", "number-not-said"),
        (CAT, "Has had two cats named Tom since 2019", "number-not-said"),
        (CAT, "Has had a cat named Tom since May 2019", "name-not-said"),
        (CAT, "Has had a cat named Tom since 2019, last summer", "date-not-said"),
        (CAT_CN, "去年开始养了一只叫小白的猫", "name-not-said"),
        (CAT, "Bob has had a cat named Tom since 2019", "name-not-said"),
        (CAT, "Has had a cat named Tom from Paris since 2019", "name-not-said"),
        (CAT, "Has had a cat named Tom", "left-out"),
        (CAT, "Has had the cat since 2019", "left-out"),
        (CAT, "Has never had a cat named Tom since 2019", "negation"),
        (CAT, "Has had a dog, a horse and a small bird named Tom since 2019", "other-words"),
        (CAT, "养了一只猫", "other-language"),
        (CAT, "Has had a cat named Tom since 2019" + " and a cat" * 9, "too-long"),
        (CAT, None, "declined"),
        (CAT, "  ", "declined"),
        (CAT_CN, "2018年开始养了一只叫小白的猫", "number-not-said"),
        (CAT_CN, "两只叫小白的猫，2019年开始养", "number-not-said"),
        (CAT_CN, "2019年开始养了一只叫王伟的猫", "name-not-said"),
        (CAT_CN, "2019年开始养了一只叫Tom的猫", "name-not-said"),
        (CAT_CN, "养了一只叫小白的猫", "left-out"),
        (CAT_CN, "2019年开始没养叫小白的猫", "name-not-said"),
        (CAT_CN, "Has a cat since 2019", "other-language"),
        (("不吃肉", "也不吃鱼和肉"), "吃肉也吃鱼", "negation"),
    ],
)
def test_a_text_that_states_more_less_or_something_else_is_refused(
    contents: Sequence[str], text: str | None, reason: str
) -> None:
    assert verdict(contents, text) == f"({reason})"


def test_a_summary_may_leave_out_and_may_not_add() -> None:
    told = ("Went to Rome in 2019", "Went to Rome with Mia", "Liked the old streets of Rome")
    assert verdict(told, "Went to Rome with Mia", "summary") == "Went to Rome with Mia"
    assert verdict(told, "Went to Rome with Leo", "summary") == "(name-not-said)"
    told = ("去年去了罗马", "和小美一起去罗马", "喜欢罗马的老街")
    assert verdict(told, "和小美去了罗马，喜欢老街", "summary") == "和小美去了罗马，喜欢老街"
    assert verdict(told, "和小李去了罗马", "summary") == "(name-not-said)"


def test_a_summary_is_not_longer_than_its_members() -> None:
    assert max_chars("summary", ["a" * 10] * 3) == 30
    assert max_chars("merge", ["a" * 10] * 3) == 50
    assert max_chars("summary", ["a" * 300] * 20) == 600


@pytest.mark.parametrize("answer", ["Has a cat", "[]", "{}", '{"text": 3}', '{"text": ["a"]}', '{"text": "a"', ""])
def test_an_answer_in_another_form_is_refused(answer: str) -> None:
    assert check_answer("merge", CAT, answer).refused == "malformed"


def test_an_answer_in_a_code_fence_is_read_and_its_lines_are_one() -> None:
    answer = check_answer("merge", CAT, '```json\n{"text": "Has had a cat named Tom\\n since 2019"}\n```')
    assert answer.text == "Has had a cat named Tom since 2019"
