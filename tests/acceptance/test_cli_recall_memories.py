"""`turnlog recall --user` with memories and `turnlog entities`, run as processes."""

import asyncio
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from helpers.memory_events import entities, recorded, yesterdays_of_zone_and_utc
from helpers.preloaded_cli import run_command
from helpers.sample_events import derivation, event, turn
from helpers.servers import now

from turnlog.events.contracts import TopicsTagged
from turnlog.events.log import Log


@pytest.fixture
def environment(nats_url: str, database_url: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    return kept | {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_HOME": str(tmp_path), "COLUMNS": "200"}


async def turnlog(environment: dict[str, str], *words: str) -> tuple[int, str]:
    """Returns the exit code and the output on stdout, or on stderr if stdout is empty."""
    done = await asyncio.to_thread(run_command, *words, environment=environment)
    return done.code, done.out or done.err


async def test_recall_of_a_user_shows_memories_with_reasons(log: Log, environment: dict[str, str]) -> None:
    week = now() - timedelta(days=7)
    await log.append_many([recorded("我的GPA是3.8", week), recorded("I live in Berlin", week)])

    async def document(*words: str) -> Any:
        code, text = await turnlog(environment, "recall", "--user", "ann", *words, "--keyword-only", "--json")
        assert code == 0, text
        return json.loads(text)

    recalled = await document("我的GPA是多少？", "--explain")
    assert [memory["content"] for memory in recalled["memories"]] == ["我的GPA是3.8"]
    assert recalled["memories"][0]["explain"]["words"]["value"] > 0.9
    assert "words, entities and dates only" in recalled["memories_degraded"]
    assert recalled["items"] == []
    before = f"{week - timedelta(days=1):%Y-%m-%d}"
    assert (await document("Where do I live?", "--as-of", before))["memories"] == []
    assert (await document("Where do I live?", "--max-tokens", "3"))["memories"] == []
    code, text = await turnlog(
        environment, "recall", "Where do I live?", "--user", "ann", "--keyword-only", "--explain"
    )
    assert code == 0
    assert "I live in Berlin" in text
    assert ") × importance 0.7" in text


async def test_recall_says_when_probably_nothing_answers(log: Log, environment: dict[str, str]) -> None:
    said = ["I adopted a grey kitten from the shelter", "My guitar needs new strings", "Work was tiring this week"]
    await log.append_many([turn(text, user="ann", minutes=n) for n, text in enumerate(said)])
    where = ("--thread", "t", "--keyword-only")
    for question, answered in (
        ("What did I adopt from the shelter?", True),
        ("Which university in Norway did my sister attend near the shelter?", False),
    ):
        _, text = await turnlog(environment, "recall", question, *where)
        assert text.startswith("probably nothing here answers that") is not answered
        assert "kitten" in text
        recalled = json.loads((await turnlog(environment, "recall", question, *where, "--json"))[1])
        assert (recalled["confidence"] > 0.5) is answered
    summary = json.loads((await turnlog(environment, "recall", "Summarise our talks", *where, "--json"))[1])
    assert summary["confidence"] is None


async def test_recall_by_topic_returns_its_turns_and_lists_topics_for_an_unknown_one(
    log: Log, environment: dict[str, str], tmp_path: Path
) -> None:
    said = ["我的论文什么时候交？", "My essay is about boats.", "Boats are fine."]
    about = derivation(1, 3)
    tagged = TopicsTagged(topics={"论文": 1, "Essay": 1}, derivation=about)
    await log.append_many([*(turn(text, user="ann", minutes=n) for n, text in enumerate(said)), event(tagged)])
    batch = tmp_path / "asked.jsonl"
    lines = [{"query": "boats", "thread": "t", "topic": topic} for topic in ("essay", "tea", 3)]
    batch.write_text("".join(json.dumps(line) + "\n" for line in lines))
    where, asked = ("recall", "--keyword-only"), ("boats", "--topic", "ESSAY", "--json")
    for scope in (("--thread", "t"), ("--user", "ann")):
        recalled = json.loads((await turnlog(environment, *where, *scope, *asked))[1])
        assert [item["text"] for item in recalled["items"]] == ["My essay is about boats."]
    code, text = await turnlog(environment, *where, "--thread", "t", "--topic", "论文")
    assert (code, "我的论文什么时候交？" in text, "boats" in text) == (0, True, False)
    code, text = await turnlog(environment, *where, "--thread", "t", "--topic", "tea")
    assert code == 1 and "'tea'" in text and "essay, 论文" in text
    code, text = await turnlog(environment, *where, "--batch", str(batch))
    assert [len(json.loads(line)["items"]) for line in text.splitlines()] == [1, 0, 0]


@pytest.mark.parametrize("question", ["What did I buy yesterday?", "昨天我买了什么？"])
async def test_yesterday_follows_the_configured_timezone(log: Log, environment: dict[str, str], question: str) -> None:
    zone = "Asia/Shanghai"
    there, utc = yesterdays_of_zone_and_utc(ZoneInfo(zone))
    await log.append_many([recorded("I 买 buy a chair", there), recorded("I 买 buy a lamp", utc)])
    for variables, first in (({"TURNLOG_TIMEZONE": zone}, "chair"), ({}, "lamp")):
        code, text = await turnlog(environment | variables, "recall", question, "-u", "ann", "--keyword-only", "--json")
        assert code == 0, text
        assert json.loads(text)["memories"][0]["content"] == f"I 买 buy a {first}"


async def test_of_similar_turns_the_one_of_the_named_day_comes_first(log: Log, environment: dict[str, str]) -> None:
    for days in range(4):
        said = turn("We watered the plants.", thread=f"{days}-ago", user="ann")
        await log.append(said.model_copy(update={"time": now() - timedelta(days=days)}))
    asked = "When did we water the plants? yesterday?"
    code, text = await turnlog(environment, "recall", asked, "--user", "ann", "--keyword-only", "--json")
    assert code == 0, text
    assert json.loads(text)["items"][0]["thread"] == "1-ago"


async def test_a_timezone_that_does_not_exist_is_an_error_that_names_the_setting(environment: dict[str, str]) -> None:
    nowhere = environment | {"TURNLOG_TIMEZONE": "Mars/Olympus"}
    code, text = await turnlog(nowhere, "recall", "What?", "--user", "ann")
    assert code == 1
    assert "TURNLOG_TIMEZONE" in text and "Mars/Olympus" in text and "invalid-setting" in text


async def test_as_of_without_a_user_is_an_error_that_says_what_to_give(environment: dict[str, str]) -> None:
    code, text = await turnlog(environment, "recall", "What?", "--thread", "t", "--as-of", "2026-01-01")
    assert code == 1
    assert "--user" in text


async def test_entities_of_a_user_are_listed(log: Log, environment: dict[str, str]) -> None:
    await log.append_many([entities(("PERSON", "Maria"), ("SCHOOL", "清华大学")), entities(("PERSON", "Maria"))])
    code, text = await turnlog(environment, "entities", "--user", "ann", "--json")
    assert code == 0, text
    assert [(entity["type"], entity["name"], entity["mention_count"]) for entity in json.loads(text)] == [
        ("PERSON", "Maria", 2),
        ("SCHOOL", "清华大学", 1),
    ]
    code, text = await turnlog(environment, "entities", "--user", "ann", "--type", "school")
    assert (code, text.splitlines()[1].split()[:2]) == (0, ["SCHOOL", "清华大学"])
    code, text = await turnlog(environment, "entities", "--user", "bob")
    assert (code, "bob" in text) == (0, True)
