"""Stored messages are converted to the form of the OpenAI chat API."""

import json
from typing import Any

import pytest
from helpers.context_messages import assistant, image, text, thinking, tool, tool_result, tool_use, turn, user
from helpers.openai_validation import validate_openai_messages

from turnlog.agent.context.wire import WireOptions, to_wire
from turnlog.projectors.models.conversation.message import Message


def wire(message: Message, keep_thinking: bool = False) -> list[dict[str, Any]]:
    return to_wire(message, WireOptions(keep_thinking))


def test_plain_text_stays_plain_text() -> None:
    assert wire(user("hi")) == [{"role": "user", "content": "hi"}]


def test_blocks_become_parts() -> None:
    assert wire(user([text("look"), image("https://example.org/a.png")])) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            ],
        }
    ]


@pytest.mark.parametrize("url", ["sediment://file_1", "file-service://file-1"])
def test_an_address_that_only_chatgpt_can_open_never_reaches_a_model(url: str) -> None:
    assert wire(user([image(url), text("look")])) == [
        {"role": "user", "content": [{"type": "text", "text": "[image]"}, {"type": "text", "text": "look"}]}
    ]
    assert "file" not in json.dumps(wire(tool("c1", [image(url)])))


def test_a_single_text_block_is_sent_as_a_string() -> None:
    assert wire(assistant([text("only this")])) == [{"role": "assistant", "content": "only this"}]


def test_tool_use_blocks_become_tool_calls() -> None:
    [message] = wire(assistant([text("I look"), tool_use("c1", "bash", command="列出")]))
    assert message["content"] == "I look"
    [call] = message["tool_calls"]
    assert call["id"] == "c1"
    assert call["function"]["name"] == "bash"
    assert json.loads(call["function"]["arguments"]) == {"command": "列出"}


def test_the_same_call_in_both_places_is_one_call() -> None:
    [message] = wire(assistant([tool_use("c1", "search", q="x")], "c1"))
    assert len(message["tool_calls"]) == 1
    assert message["content"] is None


def test_tool_result_blocks_become_tool_messages_before_the_users_words() -> None:
    assert wire(user([tool_result("c1", "42"), text("and now?")])) == [
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": "and now?"},
    ]


def test_an_error_of_a_tool_is_marked() -> None:
    assert wire(user([tool_result("c1", "no such file", is_error=True)]))[0]["content"] == "[error] no such file"


def test_thinking_is_left_out_since_the_api_has_no_place_for_it() -> None:
    assert wire(assistant([thinking("secret"), text("ok")])) == [{"role": "assistant", "content": "ok"}]
    assert wire(assistant([thinking("secret")])) == []


def test_thinking_can_be_kept_as_marked_text() -> None:
    [message] = wire(assistant([thinking("let me see"), text("ok")]), keep_thinking=True)
    assert message["content"] == [
        {"type": "text", "text": "<thinking>let me see</thinking>"},
        {"type": "text", "text": "ok"},
    ]


@pytest.mark.parametrize(
    ("name", "sent"), [("bob", "bob"), ("Mary Ann", "Mary_Ann"), ("foo|away", "foo_away"), ("a" * 64, "a" * 64)]
)
def test_a_speaker_the_api_can_name_is_named(name: str, sent: str) -> None:
    assert wire(user("hi", name=name)) == [{"role": "user", "content": "hi", "name": sent}]


@pytest.mark.parametrize("name", ["小明", "Zoë", "b" * 65, "???"])
def test_any_other_speaker_is_named_before_the_text(name: str) -> None:
    assert wire(user("你好", name=name)) == [{"role": "user", "content": f"{name}: 你好"}]


def test_the_speaker_is_named_before_an_image_too() -> None:
    [message] = wire(user([image("u"), image("v")], name="小明"))
    assert message["content"][0] == {"type": "text", "text": "小明: "}


@pytest.mark.parametrize("call_id", ["", "x" * 41, "一" * 50])
def test_ids_the_api_refuses_are_replaced(call_id: str) -> None:
    [message] = wire(assistant("", call_id))
    assert 0 < len(message["tool_calls"][0]["id"]) <= 40


def test_names_of_functions_are_made_valid() -> None:
    [message] = wire(assistant([tool_use("c1", "文件.read file")]))
    assert message["tool_calls"][0]["function"]["name"] == "_read_file"


def test_images_of_tools_and_assistants_are_named_not_sent() -> None:
    assert wire(tool("c1", [text("chart"), image("data:image/png;base64,AA")]))[0]["content"] == "chart\n[image]"
    assert wire(assistant([image("https://example.org/a.png")])) == [
        {"role": "assistant", "content": "[image: https://example.org/a.png]"}
    ]


def test_empty_messages_stay_messages() -> None:
    assert [wire(turn(role, "")) for role in ("user", "assistant", "system")] == [
        [{"role": role, "content": ""}] for role in ("user", "assistant", "system")
    ]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([{"role": "robot", "content": "x"}], "unknown role"),
        ([{"role": "user", "content": None}], "content is missing"),
        ([{"role": "user", "content": []}], "neither a text nor"),
        ([{"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}], "not allowed"),
        ([{"role": "user", "content": "x", "name": "小明"}], "is not allowed"),
        ([{"role": "user", "content": "x", "seq": 3}], "unknown key"),
        ([{"role": "tool", "tool_call_id": "c1", "content": "x"}], "does not follow its call"),
        ([{"role": "assistant", "content": None, "tool_calls": [CALL]}], "not answered at the end"),
        (
            [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "user", "content": "x"}],
            "not answered before it",
        ),
        ([{"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}], "same id"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "content is missing"),
    ],
)
def test_the_validator_finds_messages_that_the_api_would_refuse(
    messages: list[dict[str, object]], problem: str
) -> None:
    assert any(problem in reported for reported in validate_openai_messages(messages))


def test_the_validator_accepts_a_good_conversation() -> None:
    good: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "x"}], "name": "bob"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "assistant", "content": "done"},
    ]
    assert validate_openai_messages(good) == []
