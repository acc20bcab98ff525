"""`turnlog extract` shows the memories that it would store with reasons, and stores them."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.extraction import user_turn
from helpers.preloaded_cli import run_command

from turnlog.events.log import Log

RULES = """
[rule.tea]
name = "Tea"
type = "PREFERENCE"
importance = 0.5
en = ['my tea is (?P<value>\\w+)']
content = "Tea: {value}"
"""


@pytest.fixture
def environment(nats_url: str, database_url: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    return kept | {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_HOME": str(tmp_path), "COLUMNS": "200"}


async def turnlog(environment: dict[str, str], *words: str) -> tuple[int, str]:
    """Returns the exit code and the output on stdout, or on stderr if stdout is empty."""
    done = await asyncio.to_thread(run_command, *words, environment=environment)
    return done.code, done.out or done.err


async def document(environment: dict[str, str], *words: str) -> Any:
    code, text = await turnlog(environment, "extract", *words, "--json")
    assert code == 0, text
    return json.loads(text)


async def test_a_dry_run_says_what_would_be_stored_and_why_and_stores_nothing(
    log: Log, environment: dict[str, str], tmp_path: Path
) -> None:
    await log.append_many(
        [user_turn("My GPA is 3.6. Is my GPA of 3.8 ok?", 1), user_turn("我的GPA是3.8。My tea is oolong.", 2)]
    )
    [shown] = await document(environment, "t", "--dry-run")
    assert [(memory["content"], memory["outcome"], memory["rule"]) for memory in shown["memories"]] == [
        ("GPA is 3.60", "recorded", "gpa"),
        ("GPA是3.80", "recorded", "gpa"),
    ]
    assert shown["memories"][0]["quote"] == "My GPA is 3.6."
    assert [(rejected["reason"], rejected["rule"], rejected["quote"]) for rejected in shown["rejected"]] == [
        ("question", "gpa", "Is my GPA of 3.8 ok?")
    ]
    (tmp_path / "mine.toml").write_text(RULES)
    [tried] = await document(environment, "--user", "ann", "--dry-run", "--rules", str(tmp_path / "mine.toml"))
    assert "Tea: oolong" in {memory["content"] for memory in tried["memories"]}
    [made] = await document(environment, "t")
    assert made["stages"]["rules"]["stored"] == 2
    assert made["stages"]["llm"] is None
    [again] = await document(environment, "t", "--dry-run")
    assert {memory["outcome"] for memory in again["memories"]} == {"known"}
    code, text = await turnlog(environment, "extract", "t", "--dry-run")
    assert code == 0
    assert "“My GPA is 3.6.”" in text and "left out  question  gpa" in text


async def test_turns_without_a_time_give_memories_that_last(environment: dict[str, str], tmp_path: Path) -> None:
    """Without times "tomorrow" is not a date, and no memory expires because of an old date."""
    said = ["I live in Berlin.", "My birthday is May 3rd.", "Today is my birthday!", "I plan to go to Rome next month."]
    lines = [json.dumps({"thread": "old", "user": "ann", "role": "user", "text": text}) for text in said]
    (tmp_path / "old.jsonl").write_text("\n".join(lines))
    assert (await turnlog(environment, "import", str(tmp_path / "old.jsonl"), "--no-embed"))[0] == 0
    await document(environment, "--user", "ann")
    code, text = await turnlog(environment, "memories", "--user", "ann", "--json")
    assert code == 0
    assert {(memory["content"], memory["expires_at"]) for memory in json.loads(text)} == {
        ("Lives in Berlin", None),
        ("Birthday is 05-03", None),
    }


async def test_memories_say_on_stderr_that_turns_wait_for_the_extraction(log: Log, environment: dict[str, str]) -> None:
    await log.append_many([user_turn("I'm allergic to nuts.", 1), user_turn("And you?", 2)])
    waits = "2 turns of ann not read yet"
    for words in ((), ("--json",)):
        listed = await asyncio.to_thread(run_command, "memories", "--user", "ann", *words, environment=environment)
        assert waits in listed.err
        assert waits not in listed.out
    assert json.loads(listed.out) == []
    await document(environment, "--user", "ann")
    listed = await asyncio.to_thread(run_command, "memories", "--user", "ann", environment=environment)
    assert "Allergic to nuts" in listed.out
    assert "not read yet" not in listed.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "say which conversation"),
        (("nowhere",), "no turn there has a user"),
        (("t", "--rules", "none.toml"), "cannot read the rules in none.toml"),
    ],
    ids=["nothing", "nowhere", "no-rules"],
)
async def test_impossible_extractions_are_errors_with_a_cause(
    log: Log, environment: dict[str, str], words: tuple[str, ...], told: str
) -> None:
    await log.append(user_turn("hello"))
    code, text = await turnlog(environment, "extract", *words)
    assert code == 1
    assert told in text
