"""Other people's words in a person's turn make no memories, but the person's own words beside them do."""

import ast
import json
import re
from pathlib import Path

import pytest
from helpers.extraction import contents

from turnlog.agent.context.message_units import ORPHAN
from turnlog.agent.context.titles import TITLES
from turnlog.agent.models.prompts import DOUBT

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "evaluation" / "quoted"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_quoted_invented_and_retracted_words_make_no_memories(language: str) -> None:
    """Tests mails, articles, logs, essays, dreams, jokes, role play and suppositions."""
    memories = {text: contents(text) for text, words in _lines(language) if words is None}
    assert len(memories) >= 60
    assert {text: made for text, made in memories.items() if made} == {}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_own_words_that_look_alike_are_still_remembered(language: str) -> None:
    kept = {text: words for text, words in _lines(language) if words is not None}
    assert len(kept) >= 60
    memories = {text: " ".join(contents(text)).lower() for text in kept}
    assert {text: made for text, made in memories.items() if not all(word in made for word in kept[text])} == {}


@pytest.mark.parametrize("retraction", ["Just kidding!", "haha only joking", "开玩笑的", "哈哈，骗你的"])
def test_a_turn_may_retract_the_previous_one(retraction: str) -> None:
    assert contents("I live in Rome.", "My dog is called Pluto.", retraction) == ["Lives in Rome"]
    assert contents("My dog is called Pluto.", "No joke!", retraction) == contents("My dog is called Pluto.")


@pytest.mark.parametrize("title", TITLES)
def test_texts_that_turnlog_adds_make_no_memories(title: str) -> None:
    said = ["Parts.", "- 2026-05-01 user: I am allergic to bees.", "- 2026-05-01 assistant: Remember: I like tea."]
    assert contents("\n".join([title, *said, f"[END OF {title[1:]}"])) == []


def test_every_title_of_texts_that_turnlog_adds_is_in_the_list() -> None:
    """The extraction and answers without a model know only the titles in this list."""
    title = re.compile(r"\[(?!END OF |OPTIONS)[A-Z][A-Za-z]{3,}[A-Za-z -]*\]")
    titles = set[str]()
    for path in (path for folder in ("agent", "consumers") for path in (ROOT / folder).rglob("*.py")):
        if path.name != "titles.py":
            constants = (
                node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if type(node) is ast.Constant
            )
            titles |= {text for text in constants if isinstance(text, str) and title.match(text)}
    assert titles == {ORPHAN, DOUBT}


def _lines(language: str) -> list[tuple[str, list[str] | None]]:
    """Returns (a person's text, the words that its memories must contain or None if there must be no memory)."""
    return [tuple(json.loads(line)) for line in (FOLDER / f"{language}.jsonl").read_text("utf-8").splitlines()]
