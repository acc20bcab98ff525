"""Somebody else's words in a person's turn give no memory; the person's own words beside them still do."""

import json
from pathlib import Path

import pytest
from helpers.extraction import contents

FOLDER = Path(__file__).parents[1] / "evaluation" / "quoted"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_quoted_invented_and_retracted_words_give_nothing(language: str) -> None:
    """Mails, articles, logs, essays, dreams, jokes, role play and suppositions."""
    found = {text: contents(text) for text, words in _lines(language) if words is None}
    assert len(found) >= 60
    assert {text: made for text, made in found.items() if made} == {}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_own_words_that_look_alike_are_still_remembered(language: str) -> None:
    kept = {text: words for text, words in _lines(language) if words is not None}
    assert len(kept) >= 60
    found = {text: " ".join(contents(text)).lower() for text in kept}
    assert {text: made for text, made in found.items() if not all(word in made for word in kept[text])} == {}


def _lines(language: str) -> list[tuple[str, list[str] | None]]:
    """Each: what somebody writes, and the words that the memories of it must hold; null when there must be none."""
    return [tuple(json.loads(line)) for line in (FOLDER / f"{language}.jsonl").read_text("utf-8").splitlines()]
