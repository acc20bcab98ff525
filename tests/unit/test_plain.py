"""Stored content is converted to plain text for summaries and topics."""

from typing import Any

import pytest
from helpers.context_messages import image, text, thinking, tool, tool_result, tool_use, turn, user

from turnlog.agent.context.plain_text import content_text, said
from turnlog.agent.models.keywords import topics


def test_thinking_and_images_are_left_out_and_calls_and_results_are_shortened() -> None:
    content = [thinking("hm"), text("On it."), image(), tool_use("1", "search"), tool_result("1", "x" * 500)]
    assert content_text(content, tool_chars=10) == "On it.\n[call search]\nxxxxxxxxxx"


@pytest.mark.parametrize("content", ["x" * 500, [text("x" * 500)], [tool_result("1", "x" * 500)]])
def test_the_result_of_a_tool_is_shortened_in_a_line_whatever_its_form(content: Any) -> None:
    assert said(turn("tool", content)) == f"tool: {'x' * 400}"
    assert said(turn("tool", content), tool_chars=10) == "tool: xxxxxxxxxx"


def test_the_words_of_a_person_are_not_shortened_in_a_line() -> None:
    assert said(user("x" * 500)) == f"user: {'x' * 500}"


def test_a_line_names_its_speaker() -> None:
    assert said(user("hello")) == "user: hello"
    assert said(user("hello", name="Ann")) == "Ann: hello"
    assert said(tool("1", "found it")) == "tool: found it"
    assert said(turn("assistant", [thinking("hm")])) == ""


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("Look! [image: a photo of a brown dog on a beach]", "Look! (a brown dog on a beach)"),
        ("[image: a photography of two girls running]", "(two girls running)"),
        ("[image: sunset]", "(sunset)"),
        ("array[image: 3", "array[image: 3"),
    ],
)
def test_the_words_of_a_caption_are_kept(stored: str, words: str) -> None:
    assert said(user(stored)) == f"user: {words}"


def test_captions_make_neither_image_nor_photo_a_topic() -> None:
    shown = [said(user(f"Here [image: a photo of a lighthouse in storm {n}]")) for n in range(6)]
    joined = " ".join(topics(shown, 8)).lower()
    assert "lighthouse" in joined
    assert "image" not in joined
    assert "photo" not in joined


def test_a_nested_caption_begins_at_the_last_beginning() -> None:
    assert said(user("[image: [image: a photo of a dog]")) == "user: [image: (a dog)"
