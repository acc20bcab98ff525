"""Explicit requests to remember are recognised by two patterns, and other sentences are not taken for requests."""

import json
import re
from pathlib import Path

import pytest
from helpers.extraction import apply_rules, contents, found, rejection_reasons

from turnlog.agent.context.about_memory import asks_to_forget, asks_to_forget_all, to_forget

REQUESTS = [
    ("remember my favorite color is blue", "my favorite color is blue"),
    ("记住我的名字是 Bob", "我的名字是 Bob"),
    ("Remember that the door code is 4411.", "the door code is 4411"),
    ("Please remember: I park on level 3!", "I park on level 3"),
    ("REMEMBER THAT my locker is 12", "my locker is 12"),
    ("Hey, can you remember that I'm allergic to nuts?", "I'm allergic to nuts"),
    ("请记住：我周三不上班。", "我周三不上班"),
    ("帮我记住 门禁密码是4411", "门禁密码是4411"),
    ("你要记住我对花生过敏！", "我对花生过敏"),
    ("记住，我的车停在三层，好吗？", "我的车停在三层"),
    ("你能记住我不吃辣吗？", "我不吃辣"),
    ("请记住这一点：我妈妈姓李", "我妈妈姓李"),
    ("Thanks! Also, remember that my train leaves at 9. What else?", "my train leaves at 9"),
    ("记住我的车停在三层。今天天气怎么样？", "我的车停在三层"),
    ("Remember to water the ficus on Sundays", "to water the ficus on Sundays"),
    ("记住她对花生过敏", "她对花生过敏"),
    ("记住你要用中文回答我", "你要用中文回答我"),
    ("记住他叫小明", "他叫小明"),
    ("记住这周五我有考试", "这周五我有考试"),
    ("记住过敏史：青霉素", "过敏史：青霉素"),
    ("老师，记住我叫王芳", "我叫王芳"),
    ("Remember it's my birthday on May 5", "it's my birthday on May 5"),
    ("remember her name is Lucy", "her name is Lucy"),
    ("Hey Bob, remember my dog is called Rex", "my dog is called Rex"),
    ("My train leaves at 9, remember that.", "My train leaves at 9"),
    ("我对头孢过敏。请记住这一点！", "我对头孢过敏"),
    ("Can you remember this for me? The bin goes out on Mondays.", "The bin goes out on Mondays"),
]
PHRASINGS = Path(__file__).parents[1] / "evaluation" / "explicit"
SEED = re.compile(r"记住[:：]?\s*(.+)$|remember(?:\s+that)?[:\s]+(.+)$", re.IGNORECASE | re.MULTILINE)


@pytest.mark.parametrize(("text", "content"), REQUESTS, ids=[text for text, _ in REQUESTS])
def test_a_request_to_remember_is_stored(text: str, content: str) -> None:
    [finding] = [finding for finding in found(text) if finding.origin == "explicit"]
    assert finding.content == content
    assert finding.importance >= 0.95
    assert finding.confidence == 1.0
    assert finding.source.quote in text


@pytest.mark.parametrize(
    "text",
    [
        "Do you remember that day?",
        "Do you remember my name?",
        "I remember that day well.",
        "I remember: it was raining.",
        "I can't remember the code.",
        "I'll always remember that trip.",
        "She remembers the code is 4411.",
        "Remember when we went hiking last year?",
        "Remember me?",
        "Remember how it felt.",
        "Can you remember my name?",
        "It helps me remember that life is short.",
        "你还记得我的名字吗？",
        "你记住了吗？",
        "我记住了。",
        "我会记住你的话。",
        "单词很难记住啊。",
        "你能记住我的名字吗？",
        "他让我记住这句话。",
        "记住了，谢谢！",
        "请记住我",
        "> remember that I am quoted",
        "```\nremember that this is code\n```",
        "assistant: remember that you have an exam",
        "The note says “remember that the door is locked”.",
        "《记住乡愁》很好看",
        "书记住在三楼",
        "Can you remember this?",
        "记住了，谢谢！",
    ],
)
def test_sentences_that_are_not_requests_store_nothing(text: str) -> None:
    assert contents(text) == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nearly_all_phrasings_of_requests_are_stored_and_nearly_nothing_else(language: str) -> None:
    """Each line contains a person's text and the words that its memory must contain; null if it is no request."""
    lines = [json.loads(line) for line in (PHRASINGS / f"{language}.jsonl").read_text("utf-8").splitlines()]
    stored = {
        text: [finding.content.lower() for finding in found(text) if finding.origin == "explicit"] for text, _ in lines
    }
    missed = [text for text, says in lines if says and not any(_holds(memory, says) for memory in stored[text])]
    wrong = [text for text, says in lines if says is None and stored[text]]
    requests = sum(says is not None for _, says in lines)
    assert len(missed) <= 0.03 * requests, missed
    assert len(wrong) <= 0.05 * (len(lines) - requests), wrong
    assert [text for text in missed if SEED.search(text)] == []


def _holds(content: str, says: str) -> bool:
    return all(word in content for word in says.lower().split())


def test_a_rule_gives_a_remembered_statement_its_key_so_that_it_can_be_contradicted() -> None:
    first, second = found("记住我的名字是 Bob", "Please remember that my name is Rob.")
    assert (first.dedupe_key, first.value, first.rule) == ("name", "Bob", "name")
    assert (second.dedupe_key, second.value) == ("name", "Rob")


def test_statements_without_a_rule_are_stored_in_the_users_words() -> None:
    made = found("Remember that my name is Bob and the safe behind the picture opens with 77-31-05.")
    assert [finding.content for finding in made] == [
        "Name is Bob",
        "my name is Bob and the safe behind the picture opens with 77-31-05",
    ]


def test_each_line_of_a_list_after_a_colon_is_a_memory() -> None:
    text = "请记住：\n- 我不吃辣\n- 周三不上班\n\n谢谢！"
    assert contents(text) == ["我不吃辣", "周三不上班"]
    assert all(finding.source.quote in text for finding in found(text))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("remember that I prefer the window", "PREFERENCE"),
        ("记住我宁愿坐火车", "PREFERENCE"),
        ("remember that I've decided against the boat", "DECISION"),
        ("remember that your answers take too long", "FEEDBACK"),
        ("remember that the bin goes out on Mondays", "FACT"),
    ],
)
def test_the_kind_follows_from_the_statement(text: str, kind: str) -> None:
    assert found(text)[0].kind == kind


def test_a_refused_request_has_a_reason() -> None:
    assert "no-request" in rejection_reasons("I remember that day well.")
    assert "says-nothing" in rejection_reasons("Remember when we met.")
    assert "question" in rejection_reasons("Can you remember my name?")


def test_a_statement_beside_a_request_is_still_read_by_the_rules() -> None:
    looked = apply_rules("I live in Berlin. Remember that the bin goes out on Mondays.")
    assert [(finding.content, finding.origin) for finding in looked.findings] == [
        ("the bin goes out on Mondays", "explicit"),
        ("Lives in Berlin", "rule"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Please forget everything about me",
        "Forget everything I told you.",
        "Delete all my memories, please",
        "Forget what you know about me",
        "forget everything",
        "请忘记关于我的一切",
        "把你知道的关于我的所有事情都忘掉吧",
        "清除我的所有数据",
    ],
)
def test_a_request_to_forget_everything_is_understood(text: str) -> None:
    assert asks_to_forget_all(text)
    assert asks_to_forget(text)
    assert to_forget(text) is None


@pytest.mark.parametrize(
    "text", ["Forget it", "Forget everything about my job", "Delete everything", "别忘了我的一切", "我忘了一切"]
)
def test_other_sentences_are_not_requests_to_forget_everything(text: str) -> None:
    assert not asks_to_forget_all(text)
