"""Passwords, keys and card numbers make no memories unless the settings allow it."""

import pytest
from helpers.extraction import apply_rules, extractor_turn

from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.explicit import asks_to_keep_a_secret
from turnlog.agent.memory.extraction.proposals import without_secrets
from turnlog.agent.memory.extraction.rules import load_rules

SECRETS = (
    "remember my API key is sk-proj-abcdefghijklmnopqrstuv",
    "Remember that my card is 4111 1111 1111 1111.",
    "Please remember my wifi password is swordfish",
    "Remember: my PIN is 4411",
    "Note that the AWS key is AKIAIOSFODNN7EXAMPLE",
    "Remember that my password for Netflix: tiger",
    "Remember that my SSN is 536-90-4399",
    "Remember my seed phrase: witch collapse practice feed shame",
    "Remember that the card's CVV is 123",
    "请记住我的密码是小狗汪汪",
    "记住我的API key：sk-proj-abcdefghijklmnopqrstuv",
    "记住我的银行卡密码是 889900",
    "请记住我的信用卡号是 4111111111111111",
    "记住验证码是 123456",
)
NO_SECRETS = (
    "Remember that my password is weak.",
    "Remember that I changed my password on Monday.",
    "Remember the door code: 4411",
    "Remember that passwords are stored in the safe.",
    "Remember that I pay by card.",
    "Remember that my order number is 4111111111111112.",
    "Remember that I have a pin collection of 300 pins.",
    "Remember that my phone number is 650-253-0000.",
    "Remember that the key is under the mat.",
    "请记住：邮件密码每月更换",
    "记住门禁密码的提示：生日倒着写",
    "记住我喜欢刷卡",
    "请记住我的电话是13800138000",
    "记住密码不要告诉别人",
)


def kept(text: str) -> list[str]:
    turn = extractor_turn(text)
    return [finding.content for finding in without_secrets(Extractor(load_rules()).extract([turn]), [turn]).findings]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_makes_no_memory(text: str) -> None:
    assert apply_rules(text).findings
    assert kept(text) == []
    assert asks_to_keep_a_secret(text)


@pytest.mark.parametrize("text", NO_SECRETS)
def test_texts_that_only_look_like_secrets_are_remembered(text: str) -> None:
    assert kept(text)
    assert not asks_to_keep_a_secret(text)


def test_a_memory_beside_a_secret_in_its_sentence_is_left_out_and_others_stay() -> None:
    text = "I live in Rome and my card is 4111 1111 1111 1111. I'm vegan."
    turn = extractor_turn(text)
    checked = without_secrets(Extractor(load_rules()).extract([turn]), [turn])
    assert [finding.content for finding in checked.findings] == ["Diet: vegan"]
    assert checked.counts()["secret"] == 1
    assert "4111" not in "".join(rejection.quote for rejection in checked.rejections)
