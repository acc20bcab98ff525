"""Sensitive data is masked by level in English and Chinese, once; similar texts stay unchanged."""

import io
import logging

import pytest
from helpers.sample_events import BLOCKS, turn
from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel, mask_secrets, sanitise, sanitise_json
from turnlog.agent.privacy.screening import screen_of
from turnlog.consumers.cli.runner import SanitisedLines
from turnlog.events.contracts import TextBlock, ToolCall, TurnRecorded

LIGHT, MODERATE, FULL = SanitiseLevel.LIGHT, SanitiseLevel.MODERATE, SanitiseLevel.FULL
KEY = "sk-abcdefghijklmnopqrst1234"
HIGH = [
    ("my ssn is 536-90-4399 ok", "my ssn is ***-**-**** ok"),
    ("SSN: 536904399", "SSN: ***-**-****"),
    ("身份证11010519491231002X谢谢", "身份证******************谢谢"),
    ("身份证１１０１０５１９４９１２３１００２Ｘ谢谢", "身份证******************谢谢"),
    ("身份证41111119900307421X", "身份证******************"),  # an unknown district
    ("卡号４１１１　１１１１　１１１１　１１１１", "卡号****-****-****-****"),
    ("卡号4111111111111111请保密", "卡号****-****-****-****请保密"),
    ("card 4111 1111 1111 1111, 378282246310005", "card ****-****-****-****, ****-****-****-****"),
    (f"key {KEY} x", "key **** x"),
    ("AKIAIOSFODNN7EXAMPLE", "****"),
    ("Authorization: Bearer abc123.def456ghi", "Authorization: Bearer ****"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcDEF", "****"),
    ("password=hunter2 and", "password=**** and"),
    ("我的密码是abc123。", "我的密码是****。"),
    ("postgres://u:pw@h/db", "postgres://u:****@h/db"),
    ("-----BEGIN RSA PRIVATE KEY-----\nabc", "****"),
    ("a -----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY----- b", "a **** b"),
]
MEDIUM = [
    ("email bob.smith@example.com.", "email b***@***."),
    ("邮箱是zhang@example.com谢谢", "邮箱是z***@***谢谢"),
    ("邮箱是ｚｈａｎｇ＠ｅｘａｍｐｌｅ．ｃｏｍ谢谢", "邮箱是z***@***谢谢"),
    ("我的电话是13812345678你打吧", "我的电话是138****5678你打吧"),
    ("电话１３８１２３４５６７８", "电话138****5678"),
    ("+86 138 1234 5678", "+86 138****5678"),
    ("座机0755-86013388", "座机****88"),
    ("call me at (415) 555-2671", "call me at ****71"),
    ("+1 415 555 2671", "+1****71"),
    ("+44 20 7946 0958", "+44****58"),
    ("phone: 4155552671", "phone: ****71"),
]
TYPOS = [
    ("110105194912310021", "******************"),  # its check digit is wrong
    ("身份证号：990105194912310021", "身份证号：******************"),  # there is no such region
    ("我的身份证是110105194913310021", "我的身份证是******************"),  # there is no such month
    ("000-12-3456", "***-**-****"),  # never issued
    ("666-12-3456 or 901-12-0000", "***-**-**** or ***-**-****"),
    ("SSN: 000123456", "SSN: ***-**-****"),
]
LOW = [("my GPA: 3.85/4.0", "my GPA: [已脱敏]"), ("我的GPA是3.9", "我的GPA: [已脱敏]")]
HARMLESS = [
    "2024-11-05 12:30:45",
    "2024/11/05",
    "v1.2.3.4 and 10.0.22621.1265",
    "1730784000 and 1730784000123",
    "uuid 550e8400-e29b-41d4-a716-446655440000",
    "IP 192.168.100.200",
    "ISBN 978-7-111-54742-6",
    "order 4155552671 shipped, 20241105123456789",
    "订单号202411051234567890",
    "4111111111111112",
    "订单号123456789012345678",
    "1105194912310021 and 1101051949123100211",
    "000-12-34567, 1000-12-3456, 000-12-345 and 00-012-3456",
    "price 1,234,567.89",
    "bearer certificates are old",
    "the password: required",
    "seq 1234567 of 7654321",
    "GPA matters",
]


@pytest.mark.parametrize(("text", "masked"), HIGH)
def test_identities_cards_and_secrets_are_masked_at_every_level(text: str, masked: str) -> None:
    assert {sanitise(text, level) for level in SanitiseLevel} == {masked}


@pytest.mark.parametrize(("text", "masked"), MEDIUM)
def test_mail_and_phones_are_masked_for_exports(text: str, masked: str) -> None:
    assert sanitise(text, LIGHT) == text
    assert sanitise(text, MODERATE) == sanitise(text, FULL) == masked


@pytest.mark.parametrize(("text", "masked"), TYPOS)
def test_identity_numbers_with_a_typing_error_are_masked_for_exports(text: str, masked: str) -> None:
    assert sanitise(text, LIGHT) == text
    assert sanitise(text, MODERATE) == sanitise(text, FULL) == masked


@pytest.mark.parametrize(("text", "masked"), LOW)
def test_grades_are_masked_for_the_public_only(text: str, masked: str) -> None:
    assert sanitise(text, MODERATE) == text
    assert sanitise(text, FULL) == masked


@pytest.mark.parametrize("text", HARMLESS)
def test_similar_texts_are_not_masked(text: str) -> None:
    assert sanitise(text, FULL) == text


PIECES = st.sampled_from(
    [text for text, _ in [*HIGH, *MEDIUM, *TYPOS, *LOW]] + HARMLESS + list(" -.+*@:=0123456789a中")
)


@given(st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join), st.sampled_from(list(SanitiseLevel)))
def test_sanitising_twice_changes_nothing_more(text: str, level: SanitiseLevel) -> None:
    once = sanitise(text, level)
    assert sanitise(once, level) == once


@pytest.mark.parametrize("text", ["1", "a@", "sk-", "123-", "eyJ", "-----BEGIN PRIVATE KEY-----", "4111 ", "密码是a"])
def test_sanitising_a_long_text_takes_linear_time(text: str) -> None:
    assert isinstance(sanitise(text * 20_000, FULL), str)


def test_the_whole_value_of_a_secret_in_json_is_masked_and_keys_stay() -> None:
    value = {"api_key": "plain", "to": ["bob@example.com", 7, None], "bob@example.com": True}
    assert sanitise_json(value, FULL) == {"api_key": "****", "to": ["b***@***", 7, None], "bob@example.com": True}


def test_secrets_are_masked_in_log_lines_and_tracebacks() -> None:
    stream, logger = io.StringIO(), logging.Logger("t")
    handler = logging.StreamHandler(stream)
    handler.addFilter(SanitisedLines())
    logger.addHandler(handler)
    try:
        raise ValueError(f"bad {KEY}")
    except ValueError:
        logger.exception("with %s of bob@example.com", KEY)
    assert KEY not in stream.getvalue()
    assert "with **** of bob@example.com" in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("My wifi password is swordfish. And I like tea.", "My wifi password is ****. And I like tea."),
        ("my pin is 1234 and my password is sword.fish9!", "my pin is **** and my password is ****"),
        ("My seed phrase is apple my pin is 1234 pear. Bye", "My seed phrase is ****. Bye"),
        ("我的密码是swordfish，谢谢", "我的密码是****，谢谢"),
        ("You said “My password is ****.” before.", None),
        (f"card 4111111111111111, key {KEY}", "card ****-****-****-****, key ****"),
        ("The password must be long; mine is saved in a manager.", None),
    ],
)
def test_passwords_of_any_form_are_masked_as_secrets(text: str, masked: str | None) -> None:
    assert mask_secrets(text) == (masked or text)
    assert mask_secrets(mask_secrets(text)) == (masked or text)


async def test_turns_are_sanitised_before_they_are_published() -> None:
    screen = screen_of(FULL, ["US"])
    said = turn((TextBlock(text="I am bob@example.com"),), tool_calls=(ToolCall(id="c", name="n", arguments=KEY),))
    harmless = turn(BLOCKS)
    screened, unchanged = await screen([said, harmless])
    data = screened.data
    assert isinstance(data, TurnRecorded)
    assert data.content == (TextBlock(text="I am b***@***"),)
    assert data.tool_calls[0].arguments == "****"
    assert unchanged.data is harmless.data
