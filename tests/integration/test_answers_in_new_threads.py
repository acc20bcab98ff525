"""A new conversation's answer gets the best turns of the user's other conversations: attributed, on the receipt, in
time travel, and no longer once their conversation is deleted."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, answer_to
from helpers.stage import Play, Stage, player

from turnlog.agent.context import counter_for
from turnlog.agent.recall.memory_block import FORGOTTEN, room
from turnlog.agent.recall.other_threads import END, MOST_TURNS, TITLE
from turnlog.agent.use_cases.context import context_as_of, context_of
from turnlog.agent.use_cases.threads import delete_thread
from turnlog.agent.use_cases.turns import NewTurn, add_turns
from turnlog.events.contracts import Event, PreferencesSet, TurnRecorded, UserPreferences
from turnlog.events.subjects import memory_thread

NEW = Place("default", "new", "ann")
SAID_AT = datetime.fromisoformat("2026-05-01T00:30:00+08:00")
BOOKED = "My hotel in Lisbon is the Casa Azul, booked for June."
QUESTION = "What is my hotel in Lisbon called?"


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    given = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "system_prompt": "Answer."}
    return player(nats_url, database_url, ("projectors", "agent"), **given)


def said(text: str, thread: str = "trip", user: str = "ann", **fields: Any) -> Event:
    data = TurnRecorded(**{"role": "user", "content": text, **fields})
    return Event(time=SAID_AT, tenant="default", thread=thread, user=user, data=data)


OTHERS = [said(f"The weather in town {n} was fine, and we walked a lot.", f"walk{n}") for n in range(6)]


async def ask(stage: Stage, text: str, place: Place = NEW) -> None:
    await stage.runtime.settle()
    await answer_to(stage.runtime, place, text)
    await stage.runtime.settle()


def shown(body: dict[str, Any]) -> list[str]:
    found = [m for m in body["messages"] if str(m["content"]).startswith(TITLE)]
    assert len(found) <= 1
    assert all(m["role"] == "user" and m["content"].endswith(END) for m in found)
    return [line[2:] for line in str(found[0]["content"]).splitlines() if line.startswith("- ")] if found else []


async def test_a_new_thread_gets_the_best_turns_of_the_other_threads_and_the_receipt_names_them(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([*OTHERS, said(BOOKED), said(QUESTION, "earlier")])
        await ask(stage, QUESTION)
        [receipt] = await stage.all("answer_receipt", "new")
        then = await context_as_of(stage.runtime, "default", "new", receipt.as_of_seq)
        await delete_thread(stage.runtime, "default", "trip")
        gone = await context_as_of(stage.runtime, "default", "new", receipt.as_of_seq)
        await ask(stage, QUESTION, Place("default", "later", "ann"))
    first, later = model.bodies("chat")
    assert shown(first)[0] == f"2026-05-01 user: {BOOKED}"
    assert len(shown(first)) <= MOST_TURNS
    assert QUESTION not in "".join(shown(first))
    assert first["messages"][-1]["content"] == QUESTION
    assert len(receipt.known.turns) == len(shown(first))
    assert receipt.recalled_chunks == receipt.known.turns
    assert then.matches
    assert then.context.messages == first["messages"]
    assert (gone.matches, gone.withheld) == (False, 1)
    assert "Casa Azul" not in json.dumps([gone.context.messages, later])
    assert FORGOTTEN in json.dumps(gone.context.messages)


async def test_the_words_of_others_are_attributed_and_those_of_other_users_are_not_there(
    play: Play, model: OpenAIServer
) -> None:
    texts = {
        "bob": "My hotel in Lisbon is called Rosa.",
        None: "> My hotel in Lisbon is called [Quoted].",
        "user": "My hotel in Lisbon is called Own.",
    }
    async with play() as stage:
        await stage.runtime.log.append_many([*OTHERS, *(said(text, name=name) for name, text in texts.items())])
        await stage.runtime.log.append(said("My hotel in Lisbon is called Secret.", "theirs", "eve"))
        await ask(stage, QUESTION)
    lines = shown(model.bodies("chat")[0])
    assert {line.removeprefix("2026-05-01 ") for line in lines[:3]} == {
        f"bob (not the user): {texts['bob']}",
        "quoted (not the user): > My hotel in Lisbon is called (Quoted).",
        f"user: {texts['user']}",
    }
    assert "Secret" not in json.dumps(model.bodies("chat"))


async def test_there_are_none_where_nothing_answers_in_a_long_thread_or_where_memory_is_off(
    play: Play, model: OpenAIServer
) -> None:
    off = PreferencesSet(preferences=UserPreferences(enable_memory=False))
    async with play() as stage:
        await stage.runtime.log.append_many([*OTHERS, said(BOOKED), *(said(f"Line {n}", "long") for n in range(10))])
        await ask(stage, "Which instrument does the neighbour of Frieda play?")
        await ask(stage, "Hello!", Place("default", "greeting", "ann"))
        await ask(stage, QUESTION, Place("default", "long", "ann"))
        await ask(stage, QUESTION, Place("default", "nobody", None))
        await stage.runtime.log.append(Event(tenant="default", thread=memory_thread("ann"), user="ann", data=off))
        await ask(stage, QUESTION, Place("default", "off", "ann"))
    assert [shown(body) for body in model.bodies("chat")] == [[]] * 5


async def test_a_receipt_of_a_question_that_came_with_its_answer_keeps_no_word_of_other_threads(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([*OTHERS, said(BOOKED)])
        await stage.runtime.settle()
        made = await context_of(stage.runtime, "default", "new", query=QUESTION, user="ann")
        answer = [NewTurn(role="assistant", content="It is the Casa Azul.")]
        await add_turns(stage.runtime, "default", "new", answer, user="ann", receipt=made.receipt)
        await stage.runtime.settle()
        [receipt] = await stage.all("answer_receipt", "new")
        then = await context_as_of(stage.runtime, "default", "new", receipt.as_of_seq)
    assert BOOKED in json.dumps(made.context.messages)
    assert "Casa Azul" not in receipt.model_dump_json()
    assert then.matches
    assert then.context.messages == made.context.messages


async def test_the_turns_stay_within_the_room_of_the_memories(play: Play, model: OpenAIServer) -> None:
    async with play(context_window=6_000) as stage:
        long = [said(f"{BOOKED} Note {n}: " + "the hotel has a pool and a garden. " * 20, f"t{n}") for n in range(6)]
        await stage.runtime.log.append_many([*OTHERS, *long])
        await ask(stage, QUESTION)
    [body] = model.bodies("chat")
    [wire] = [m for m in body["messages"] if str(m["content"]).startswith(TITLE)]
    assert 0 < len(shown(body)) < MOST_TURNS
    assert counter_for("test-model").wire(wire) <= room(6_000, "test-model")
