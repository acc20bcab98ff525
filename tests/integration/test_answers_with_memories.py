"""Long-term memories are part of a request, named on the receipt, shown by time travel, and counted as read."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from helpers.memory_events import entities, event, memory, memory_id, yesterdays_of_zone_and_utc
from helpers.memory_events import recorded as recorded_at
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, answer_to
from helpers.servers import eventually, now
from helpers.stage import Play, Stage, player

from turnlog.agent.answering.receipts import RebuiltContext, rebuilt
from turnlog.agent.context.titles import NOT_KEPT, TO_FORGET
from turnlog.agent.recall.memory_block import END, FORGOTTEN, TITLE
from turnlog.events.contracts import (
    EntitiesFound,
    Entity,
    Event,
    Interval,
    MemoryConfirmed,
    MemoryForgotten,
    PreferencesSet,
    UserPreferences,
)
from turnlog.events.subjects import memory_thread

pytestmark = pytest.mark.slow

PLACE = Place("default", "t", "ann")
PROMPT = "You answer questions."


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "system_prompt": PROMPT}
    return player(nats_url, database_url, ("projectors", "agent"), **settings)


def recorded(content: str, **fields: Any) -> Event:
    return recorded_at(content, now() - timedelta(days=1), **fields)


async def ask(stage: Stage, text: str, place: Place = PLACE) -> str:
    await stage.runtime.wait_until_projected()
    return await answer_to(stage.runtime, place, text)


def block(body: dict[str, Any]) -> list[str]:
    """Returns the memory lines of a request to the model."""
    blocks = [str(m["content"]) for m in body["messages"] if str(m["content"]).startswith(TITLE)]
    assert len(blocks) <= 1
    return [line.split(" ", 2)[2] for line in blocks[0].splitlines() if line.startswith("- 2")] if blocks else []


async def accessed(stage: Stage, count: int) -> list[Any]:
    return await stage.until("memories_accessed", count, memory_thread("ann"))


async def test_relevant_memories_are_placed_right_before_the_question(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([recorded("My favorite color is blue"), recorded("I live in Berlin")])
        await ask(stage, "What is my favorite color?")
    (body,) = model.bodies("chat")
    assert [message["role"] for message in body["messages"]] == ["system", "user", "user"]
    assert body["messages"][0]["content"] == PROMPT
    assert block(body) == ["My favorite color is blue", "I live in Berlin"]
    assert body["messages"][1]["content"].endswith(END)
    assert body["messages"][2]["content"] == "What is my favorite color?"


async def test_the_block_works_in_chinese(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([recorded("我的GPA是3.8"), recorded("我最喜欢的颜色是蓝色")])
        await ask(stage, "我之前说的GPA是多少？")
    assert block(model.bodies("chat")[0]) == ["我的GPA是3.8", "我最喜欢的颜色是蓝色"]


async def test_the_model_gets_all_of_few_memories_and_of_many_those_on_health(play: Play, model: OpenAIServer) -> None:
    cat, nuts, home = "Pet: a cat named Tom", "Allergic to peanuts", "Lives in Rome"
    async with play() as stage:
        await stage.runtime.log.append_many([recorded(cat), recorded(nuts), recorded(home)])
        await ask(stage, "Give me a snack idea.")
        await stage.runtime.log.append_many([recorded(f"Has read book {n}") for n in range(4)])
        await stage.runtime.log.append(recorded("儿子对花生过敏"))
        await ask(stage, "Give me a snack idea.")
        await ask(stage, "What is my cat's name?")
        [receipt, *_] = await stage.all("answer_receipt")
    few, many, cats = map(block, model.bodies("chat"))
    assert sorted(few) == [nuts, home, cat]
    assert set(receipt.memories) == {str(memory_id(content)) for content in (cat, nuts, home)}
    assert sorted(many) == [nuts, "儿子对花生过敏"]
    assert cats[0] == cat
    assert nuts in cats


async def test_the_request_up_to_the_block_only_grows_from_turn_to_turn(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([recorded("My favorite color is blue"), recorded("I live in Berlin")])
        await ask(stage, "What is my favorite color?")
        await ask(stage, "And where do I live?")
    first, second = model.bodies("chat")
    assert block(second) == ["I live in Berlin", "My favorite color is blue"]
    stable = [message for message in first["messages"] if not str(message["content"]).startswith(TITLE)]
    assert second["messages"][: len(stable)] == stable


async def test_at_most_five_memories_or_as_many_as_the_setting_says(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([recorded(f"I like tea number {n}") for n in range(9)])
        await ask(stage, "Do I like tea?")
    async with play(long_term_top_k=2) as stage:
        await ask(stage, "Do I like tea?")
    assert [len(block(body)) for body in model.bodies("chat")] == [5, 2]


@pytest.mark.parametrize("question", ["What did I buy yesterday?", "昨天我买了什么？"])
async def test_yesterday_follows_the_configured_timezone(play: Play, model: OpenAIServer, question: str) -> None:
    zone = "Asia/Shanghai"
    there, utc = yesterdays_of_zone_and_utc(ZoneInfo(zone))
    events = [recorded_at("I 买 buy a chair", there), recorded_at("I 买 buy a lamp", utc)]
    for settings in ({"timezone": zone}, {}):
        async with play(long_term_top_k=1, **settings) as stage:
            await stage.runtime.log.append_many(events)
            await ask(stage, question)
    assert [block(body) for body in model.bodies("chat")] == [["I 买 buy a chair"], ["I 买 buy a lamp"]]


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"long_term": False}, PLACE),
        ({}, Place("default", "t", None)),
        ({}, Place("default", "t", "bob")),
    ],
)
async def test_there_is_no_block_if_memory_is_off_or_without_the_memories_user(
    play: Play, model: OpenAIServer, settings: dict[str, Any], place: Place
) -> None:
    async with play(**settings) as stage:
        await stage.runtime.log.append(recorded("My favorite color is blue"))
        await ask(stage, "What is my favorite color?", place)
        [receipt] = await stage.all("answer_receipt")
    assert [message["role"] for message in model.bodies("chat")[0]["messages"]] == ["system", "user"]
    assert receipt.memories == ()


async def test_memories_read_by_an_answer_are_recorded_once_and_on_its_receipt(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await stage.runtime.log.append(recorded("My favorite color is blue"))
        await ask(stage, "What is my favorite color?")
        [noted] = await accessed(stage, 1)
        [receipt] = await stage.all("answer_receipt")
        counts = await stage.rows("SELECT access_count FROM memories")
    assert noted.memory_ids == (memory_id("My favorite color is blue"),)
    assert receipt.memories == (str(memory_id("My favorite color is blue")),)
    assert counts == [(1,)]


async def test_an_answer_without_memories_records_none(play: Play, model: OpenAIServer) -> None:
    async with play(long_term_top_k=1) as stage:
        await stage.runtime.log.append_many([recorded("My favorite color is blue"), recorded("I live in Berlin")])
        await ask(stage, "How are things?")
        await ask(stage, "What is my favorite color?")
        await stage.rest("agent")
        assert len(await accessed(stage, 1)) == 1


async def past(stage: Stage, at: int) -> RebuiltContext:
    async with stage.runtime.pool.connection() as conn:
        return await rebuilt(conn, stage.runtime.log, stage.runtime.settings, "default", "t", at)


async def test_time_travel_shows_the_same_block_although_the_memory_was_replaced_since(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await stage.runtime.log.append(recorded("I live in Berlin"))
        await ask(stage, "Where do I live?")
        [receipt] = await stage.all("answer_receipt")
        new = recorded("I live in Rome")
        closed = Interval(
            memory_id=memory_id("I live in Berlin"),
            valid_to=new.time,
            replaced_by=memory_id("I live in Rome"),
            reason="superseded",
        )
        await stage.runtime.log.append(recorded("I live in Rome", intervals=(closed,)))
        await ask(stage, "Where do I live now?")
        await stage.runtime.wait_until_projected()
        then = await past(stage, receipt.as_of_seq)
    sent, later = model.bodies("chat")
    assert block(later) == ["I live in Rome"]
    assert then.matches
    assert then.context.messages == sent["messages"]


async def test_time_travel_shows_the_same_block_although_an_older_conversation_was_imported_since(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await stage.runtime.log.append(recorded("I live in Berlin"))
        await ask(stage, "Where do I live?")
        [receipt] = await stage.all("answer_receipt")
        earlier = memory("I live in Berlin", now() - timedelta(days=900)).sources[0]
        said = MemoryConfirmed(memory_id=memory_id("I live in Berlin"), source=earlier, importance=0.8, confidence=0.9)
        await stage.runtime.log.append(event(said))
        await stage.runtime.wait_until_projected()
        assert await stage.rows("SELECT valid_from < now() - interval '899 days' FROM memories") == [(True,)]
        then = await past(stage, receipt.as_of_seq)
    assert then.matches


async def test_time_travel_says_so_when_a_memory_was_forgotten(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await stage.runtime.log.append(recorded("I live in Berlin"))
        await ask(stage, "Where do I live?")
        [receipt] = await stage.all("answer_receipt")
        await stage.runtime.log.append(event(MemoryForgotten(memory_id=memory_id("I live in Berlin"))))
        await stage.runtime.wait_until_projected()
        then = await past(stage, receipt.as_of_seq)
    assert then.matches is False
    assert then.forgotten == (memory_id("I live in Berlin"),)
    assert "Berlin" not in json.dumps(then.context.messages)


@pytest.mark.parametrize(
    ("name", "said", "question", "prefers", "code"),
    [
        ("Maria Lopez", "Maria Lopez is my sister", "Who is Maria Lopez?", "Answer me in English", "en"),
        ("清华大学", "我想申请清华大学", "我想申请清华大学吗？", "请用中文回答", "zh"),
    ],
)
async def test_preferences_and_entities_reach_the_model_the_receipt_and_time_travel(
    play: Play, model: OpenAIServer, name: str, said: str, question: str, prefers: str, code: str
) -> None:
    async with play() as stage:
        known = Entity(type="OTHER", name=name, description="[x] very dear", attributes={"priority": 1})
        await stage.runtime.log.append_many(
            [
                event(EntitiesFound(entities=(known,))),
                recorded(said, entities=(name,)),
                recorded(prefers, kind="PREFERENCE"),
                event(PreferencesSet(preferences=UserPreferences(response_length="brief"))),
            ]
        )
        await ask(stage, question)
        [receipt] = await stage.all("answer_receipt")
        changed = known.model_copy(update={"description": "not so dear"})
        await stage.runtime.log.append(event(EntitiesFound(entities=(changed,))))
        await stage.runtime.wait_until_projected()
        then = await past(stage, receipt.as_of_seq)
    (shown,) = [str(m["content"]) for m in model.bodies("chat")[0]["messages"] if str(m["content"]).startswith(TITLE)]
    entity = f"OTHER {name}: (x) very dear; priority 1"
    preferences = ("response length: brief", f"language: {code}")
    for line in ("Messages in this conversation: 1.", *(f"- {text}" for text in (*preferences, entity))):
        assert line in shown
    assert receipt.known is not None
    assert (receipt.known.preferences, receipt.known.entities) == (preferences, (entity,))
    assert str(memory_id(said)) in receipt.memories
    assert then.matches
    assert then.context.messages == model.bodies("chat")[0]["messages"]


async def test_time_travel_hides_entities_of_a_memory_forgotten_since(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        turn = memory("Mia is allergic to nuts").sources[0]
        mia = Entity(type="PERSON", name="Mia", description="allergic to nuts", sources=(turn,))
        tom = Entity(type="PERSON", name="Tom", description="my uncle")
        await stage.runtime.log.append_many(
            [event(EntitiesFound(entities=(mia, tom))), recorded("Mia is allergic to nuts", entities=("Mia",))]
        )
        await ask(stage, "Who are Mia and Tom?")
        [receipt] = await stage.all("answer_receipt")
        forgotten = MemoryForgotten(memory_id=memory_id("Mia is allergic to nuts"), source_ids=(turn.event_id,))
        await stage.runtime.log.append(event(forgotten))
        await stage.runtime.wait_until_projected()
        then = await past(stage, receipt.as_of_seq)
    text = json.dumps(then.context.messages)
    assert receipt.known is not None
    assert len(receipt.known.entities) == 2
    assert (then.matches, then.withheld) == (False, 1)
    assert "allergic" not in text
    assert FORGOTTEN in text
    assert "PERSON Tom: my uncle" in text


async def test_a_model_is_told_the_results_of_requests_to_remember_and_forget(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await ask(stage, "Remember my API key sk-proj-abcdefghijklmnopqrstuv")
        await ask(stage, "把我的生日忘了吧")
        kept, forgotten = await stage.all("answer_receipt")
    first, second = (json.dumps(body) for body in model.bodies("chat"))
    assert NOT_KEPT in first
    assert TO_FORGET in second
    assert kept.known is not None
    assert kept.known.preferences == (NOT_KEPT,)
    assert forgotten.known is not None
    assert forgotten.known.preferences == (TO_FORGET,)


async def test_a_user_who_wants_nothing_remembered_gets_no_memory_into_a_prompt(
    play: Play, model: OpenAIServer
) -> None:
    model.reply(tool_calls=[("recall_memory", {"query": "favorite color", "k": 3})])
    model.reply("I do not know.")
    async with play() as stage:
        off = UserPreferences(enable_memory=False, communication_style="casual")
        await stage.runtime.log.append_many(
            [
                recorded("My favorite color is blue"),
                recorded("I prefer short answers", kind="PREFERENCE"),
                event(PreferencesSet(preferences=off)),
            ]
        )
        await ask(stage, "What is my favorite color?")
        [receipt] = await stage.all("answer_receipt")
    assert "blue" not in json.dumps(model.bodies("chat"))
    assert receipt.memories == ()
    assert receipt.known is not None
    assert receipt.known.preferences == ("communication style: casual",)


async def test_the_recall_tool_also_gives_memories_and_these_count_as_read(play: Play, model: OpenAIServer) -> None:
    model.reply(tool_calls=[("recall_memory", {"query": "what maria plays", "k": 3})])
    model.reply("The violin.")
    async with play(long_term_top_k=1) as stage:
        await stage.runtime.log.append_many(
            [
                entities(("PERSON", "Maria")),
                recorded("She plays the violin", entities=("Maria",)),
                recorded("I live in Berlin"),
            ]
        )
        await ask(stage, "Please look it up.")
        [noted] = await accessed(stage, 1)
        [receipt] = await stage.all("answer_receipt")
    result = json.loads(model.bodies("chat")[1]["messages"][-1]["content"])
    assert [memory["text"] for memory in result["memories"]] == ["She plays the violin"]
    assert noted.memory_ids == (memory_id("She plays the violin"),)
    assert receipt.memories == ()


async def test_the_answer_comes_by_words_when_the_embedding_model_is_away(play: Play, model: OpenAIServer) -> None:
    model.fail(503, times=20, on="embeddings")
    async with play() as stage:
        await stage.runtime.log.append(recorded("My favorite color is blue"))
        await ask(stage, "What is my favorite color?")

        async def is_noted() -> bool:
            return bool(await stage.all("memories_accessed", memory_thread("ann")))

        await eventually(is_noted)
    assert block(model.bodies("chat")[0]) == ["My favorite color is blue"]
