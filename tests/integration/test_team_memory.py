"""Agents of a team get a person's memories and suggest next questions."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from helpers.memory_events import event, memory_id
from helpers.memory_events import recorded as recorded_at
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, pieces_of
from helpers.servers import now
from helpers.stage import Play, Stage, player

from turnlog.agent.answering.asking import Answered
from turnlog.agent.answering.receipts import rebuilt
from turnlog.agent.recall.memory_block import END, TITLE
from turnlog.events.contracts import EntitiesFound, Entity, Event, PreferencesSet, UserPreferences
from turnlog.events.subjects import memory_thread

PLACE = Place(user="ann")
DELEGATE = ("delegate_to_agent", {"agent_type": "school", "task_description": "Find schools", "context": {"why": "x"}})
SEARCH = ("search_schools", {"limit": 1})
MARIA = Entity(type="PERSON", name="Maria Lopez", description="my sister", attributes={"priority": 1})


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "team": "advising"}
    return player(nats_url, database_url, ("projectors", "agent"), **settings)


def recorded(content: str, **fields: Any) -> Event:
    return recorded_at(content, now() - timedelta(days=1), **fields)


def preferring(**preferences: Any) -> Event:
    return event(PreferencesSet(preferences=UserPreferences(**preferences)))


async def ask(stage: Stage, text: str) -> Answered:
    await stage.runtime.wait_until_projected()
    answered = (await pieces_of(stage.runtime, PLACE, text))[-1]
    assert isinstance(answered, Answered)
    return answered


def blocks_of(body: dict[str, Any]) -> list[str]:
    return [str(said["content"]) for said in body["messages"] if str(said["content"]).startswith(TITLE)]


async def test_each_agent_of_a_run_gets_the_memories_and_the_receipt_names_them(
    play: Play, model: OpenAIServer
) -> None:
    model.reply(tool_calls=[DELEGATE])
    model.reply(tool_calls=[SEARCH])
    model.reply("Here is one.")
    said, question = "Maria Lopez studies in Boston", "Where does Maria Lopez study?"
    async with play() as stage:
        known = [event(EntitiesFound(entities=(MARIA,))), recorded(said, entities=(MARIA.name,))]
        said_once = recorded("Answer me in English", kind="PREFERENCE")
        await stage.runtime.log.append_many([*known, said_once, preferring(response_length="brief")])
        await ask(stage, question)
        [receipt] = await stage.all("answer_receipt")
        async with stage.runtime.pool.connection() as conn:
            log, settings = stage.runtime.log, stage.runtime.settings
            then = await rebuilt(conn, log, settings, "default", "t", receipt.as_of_seq)
    planned, handed_on, solved = model.bodies("chat")
    (block,) = blocks_of(planned)
    preferences, entity = ("response length: brief", "language: en"), "PERSON Maria Lopez: my sister; priority 1"
    for line in (*preferences, entity, "Messages in this conversation: 1. Memories below: 2."):
        assert line in block
    assert said in block and block.endswith(END)
    assert planned["messages"][-1] == {"role": "user", "content": question}
    assert planned["messages"][-2]["content"] == block, "right before the question, and not in the system prompt"
    assert blocks_of(handed_on) == blocks_of(solved) == [block]
    assert receipt.known is not None
    assert (receipt.known.preferences, receipt.known.entities) == (preferences, (entity,))
    assert str(memory_id(said)) in receipt.memories
    assert then.matches and then.context.messages == handed_on["messages"]


async def test_a_person_who_wants_nothing_remembered_gets_no_memory_into_a_run(play: Play, model: OpenAIServer) -> None:
    model.reply(tool_calls=[DELEGATE])
    model.reply("I do not know.")
    async with play() as stage:
        off = preferring(enable_memory=False, communication_style="casual")
        await stage.runtime.log.append_many([recorded("My favorite color is blue"), off])
        await ask(stage, "What is my favorite color?")
        [receipt] = await stage.all("answer_receipt")
    assert "blue" not in json.dumps(model.bodies("chat")) and receipt.memories == ()
    assert [["communication style: casual" in block for block in blocks_of(body)] for body in model.bodies("chat")] == [
        [True],
        [True],
    ]


async def test_an_answer_suggests_next_questions_unless_the_person_disabled_them(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        model.reply(tool_calls=[DELEGATE])
        model.reply(tool_calls=[SEARCH])
        model.reply("Here is one.")
        english = await ask(stage, "Find me a school")
        school = json.loads(model.bodies("chat")[-1]["messages"][-1]["content"])["schools"][0]["name"]
        assert english.suggestions == (
            f"What are my chances at {school}?",
            "Recommend reach, match and safety schools",
        )
        model.reply("你好。")
        assert (await ask(stage, "你好")).suggestions == ("帮我推荐适合我的学校",)
        await stage.runtime.log.append(preferring(language="en"))
        model.reply("你好。")
        assert (await ask(stage, "你好")).suggestions == ("Which schools fit my profile?",)
        await stage.runtime.log.append(preferring(enable_suggestions=False))
        model.reply("Hello.")
        assert (await ask(stage, "Hello")).suggestions == ()
        assert "suggestions: only when asked for" in blocks_of(model.bodies("chat")[-1])[0]
    assert len(model.bodies("chat")) == 6, "no call of the model is for suggestions"


async def test_an_agent_of_a_team_may_recall_the_past_in_a_loop(
    nats_url: str, database_url: str, model: OpenAIServer, tmp_path: Path
) -> None:
    """This works as for the agent without a team; recalled memories count as read."""
    (tmp_path / "team.toml").write_text('name = "t"\nentry = "one"\n')
    agent = 'name = "One"\nprompt = "p"\npolicy = "loop"\ntools = ["recall_memory"]\n'
    (tmp_path / "one.toml").write_text(agent)
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "m", "team": str(tmp_path)}
    play = player(nats_url, database_url, ("projectors", "agent"), long_term_top_k=1, **settings)
    model.reply("I look.", tool_calls=[("recall_memory", {"query": "Where do I live?", "k": 1})])
    model.reply("Blue.")
    async with play() as stage:
        await stage.runtime.log.append_many([recorded("My favorite color is blue"), recorded("I live in Berlin")])
        await ask(stage, "Which color did I name?")
        [receipt] = await stage.all("answer_receipt")
        answered = await stage.all("run_tool_answered")
        [read] = await stage.until("memories_accessed", 1, memory_thread("ann"))
    result = json.loads(model.bodies("chat")[-1]["messages"][-1]["content"])
    assert [memory["text"] for memory in result["memories"]] == ["I live in Berlin"]
    assert receipt.memories == (str(memory_id("My favorite color is blue")),)
    assert set(read.memory_ids) == {memory_id("My favorite color is blue"), memory_id("I live in Berlin")}
    assert len(answered) == 1 and json.loads(answered[0].result) == result
