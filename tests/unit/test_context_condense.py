"""The condenser shortens turns for tier 2."""

import pytest
from helpers.context_messages import assistant, image, text, thinking, tool, tool_result, tool_use, turn, user

from turnlog.agent.context.condense import MARK, condense
from turnlog.projectors.models.conversation.message import Message


@pytest.mark.parametrize("role", ["user", "system"])
def test_user_and_system_messages_are_unchanged(role: str) -> None:
    message = turn(role, "很长 " * 1_000)
    assert condense(message) is message


def test_an_assistant_loses_thinking_and_keeps_text_and_calls() -> None:
    message = assistant([thinking("hmm " * 500), text("查询结果如下"), tool_use("c1", "bash", command="ls")])
    assert condense(message).content == [text("查询结果如下"), tool_use("c1", "bash", command="ls")]


def test_reasoning_blocks_of_other_makers_go_too() -> None:
    message = assistant([{"type": "reasoning", "reasoning": "so"}, {"type": "redacted_thinking"}, text("ok")])
    assert condense(message).content == [text("ok")]


def test_a_tool_message_is_cut_to_200_characters_and_marked() -> None:
    assert condense(tool("c1", "x" * 201)).content == "x" * 200 + "... (truncated)"


@pytest.mark.parametrize("length", [0, 199, 200])
def test_a_short_tool_message_is_unchanged(length: int) -> None:
    message = tool("c1", "x" * length)
    assert condense(message) is message


def test_the_length_is_counted_in_characters_not_bytes() -> None:
    assert condense(tool("c1", "中" * 200)).content == "中" * 200


def test_tool_result_blocks_are_cut_and_the_users_own_words_stay() -> None:
    words = text("请看 " * 200)
    message = user([tool_result("c1", "y" * 500), words])
    assert condense(message).content == [tool_result("c1", "y" * 200 + MARK), words]


def test_the_length_is_configurable() -> None:
    assert condense(tool("c1", "abcdef"), tool_max=3).content == "abc" + MARK


def test_images_in_results_are_named_not_kept() -> None:
    message = tool("c1", [text("a chart"), image("data:image/png;base64,AAAA")])
    assert condense(message).content == "a chart\n[image]"


@pytest.mark.parametrize(
    "message",
    [
        tool("c1", "z" * 900),
        tool("c1", [text("z" * 900), image()]),
        assistant([thinking("t"), text("a"), tool_result("c2", "r" * 400)]),
        user([tool_result("c1", [text("y" * 300)])]),
    ],
)
def test_condensing_twice_changes_nothing(message: Message) -> None:
    once = condense(message)
    assert condense(once) == once


def test_the_stored_message_is_not_touched() -> None:
    content = [thinking("t"), text("a"), tool_result("c2", "r" * 400)]
    message = assistant(content)
    condense(message)
    assert message.content is content
    assert content == [thinking("t"), text("a"), tool_result("c2", "r" * 400)]
