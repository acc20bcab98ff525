"""The rules extract these memories from messages as people type them; changes of the rules show here."""

import json
from pathlib import Path

import pytest
from helpers.extraction import contents

FOLDER = Path(__file__).parents[1] / "evaluation" / "typed"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_typed_messages_give_the_memories_that_were_read_and_judged_true(language: str) -> None:
    lines = map(json.loads, (FOLDER / f"{language}.jsonl").read_text("utf-8").splitlines())
    assert [(text, expected) for text, _, expected in lines if contents(text) != expected] == []
