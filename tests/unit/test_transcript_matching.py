"""Messages that a client sends again are recognised by speaker and words."""

from typing import Any
from uuid import uuid4

import pytest
from helpers.extraction import FIRST_TURN_AT

from turnlog.agent.conversations.transcript_matching import unseen
from turnlog.projectors.models.conversation.message import Message


def stored(name: str | None, text: str = "I agree.") -> Message:
    return Message(1, uuid4(), "user", text, FIRST_TURN_AT, name=name)


def said(name: str | None, text: str = "I agree.") -> dict[str, Any]:
    return {"role": "user", "content": text} | ({"name": name} if name else {})


def test_the_same_words_of_another_speaker_are_another_message() -> None:
    assert unseen([said("bob")], [stored("alice")]) is None
    assert unseen([said("alice"), said("bob")], [stored("alice")]) == [said("bob")]
    assert unseen([said("alice")], [stored("alice")]) == []


@pytest.mark.parametrize("name", ["user", "Human", None])
def test_a_word_for_the_role_is_not_a_speaker(name: str | None) -> None:
    assert unseen([said(name)], [stored(None)]) == []
    assert unseen([said(None)], [stored(name)]) == []
