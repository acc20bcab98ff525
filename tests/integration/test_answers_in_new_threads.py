"""The context of an answer in a new conversation contains the best turns of the user's other conversations.

The turns are attributed, named on the receipt and shown by time travel. Turns of deleted conversations are not used.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, answer_to
from helpers.stage import Play, Stage, player

from turnlog.agent.answering.context import context_as_of, context_of
from turnlog.agent.answering.turns import NewTurn, add_turns
from turnlog.agent.context import counter_for
from turnlog.agent.conversations.threads import delete_thread
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.recall.memory_block import FORGOTTEN, room
from turnlog.agent.recall.other_threads import END, MOST_TURNS, TITLE
from turnlog.events.contracts import Event, Memory, MemorySource, PreferencesSet, TurnRecorded, UserPreferences
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
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "system_prompt": "Answer."}
    return player(nats_url, database_url, ("projectors", "agent"), **settings)


def said(text: str, thread: str = "trip", user: str = "ann", **fields: Any) -> Event:
    data = TurnRecorded(**{"role": "user", "content": text, **fields})
    return Event(time=SAID_AT, tenant="default", thread=thread, user=user, data=data)


OTHERS = [said(f"The weather in town {n} was fine, and we walked a lot.", f"walk{n}") for n in range(6)]


async def ask(stage: Stage, text: str, place: Place = NEW) -> None:
    await stage.runtime.wait_until_projected()
    await answer_to(stage.runtime, place, text)
    await stage.runtime.wait_until_projected()


def shown(body: dict[str, Any]) -> list[str]:
    blocks = [m for m in body["messages"] if str(m["content"]).startswith(TITLE)]
    assert len(blocks) <= 1
    assert all(m["role"] == "user" and m["content"].endswith(END) for m in blocks)
    return [line[2:] for line in str(blocks[0]["content"]).splitlines() if line.startswith("- ")] if blocks else []


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


async def test_only_the_users_own_turns_and_their_answers_are_used(play: Play, model: OpenAIServer) -> None:
    texts = {
        "bob": "My hotel in Lisbon is called Rosa.",
        None: "> My hotel in Lisbon is called [Quoted].",
        "SummarizationMiddleware": "The hotel in Lisbon is called Summary.",
        "user": "My hotel in Lisbon is called [Own].",
    }
    answers = {name: f"Is the hotel in Lisbon called for {name} so?" for name in texts}
    turns = [
        turn
        for name, text in texts.items()
        for turn in (said(text, name=name), said(answers[name], role="assistant", name=None))
    ]
    async with play() as stage:
        await stage.runtime.log.append_many([*OTHERS, *turns])
        await stage.runtime.log.append(said("My hotel in Lisbon is called Secret.", "theirs", "eve"))
        await ask(stage, QUESTION)
    assert {line.removeprefix("2026-05-01 ") for line in shown(model.bodies("chat")[0])} == {
        "user: My hotel in Lisbon is called (Own).",
        f"assistant: {answers['user']}",
    }


KEY = "sk-proj-abcdefghijklmnopqrstuvwx1234567890ABCDEF"
CONFIDED = {
    "key": (f"Remember my API key {KEY} for the Foo service.", f"Noted, {KEY} for the Foo service."),
    "bank": ("My password for the bank Foobank is hunter22!x", "For Foobank it is hunter22!x, I see."),
    "bike": ("My neighbour Karl repairs bicycles in his garage.", "Good to know."),
}
ABOUT_SECRETS = ["What is my API key for the Foo service?", "What is my password for Foobank?", "Who repairs bicycles?"]


@pytest.mark.parametrize("remember_secrets", [False, True])
async def test_turns_with_secrets_are_not_used_in_other_threads(
    play: Play, model: OpenAIServer, remember_secrets: bool
) -> None:
    async with play(remember_secrets=remember_secrets) as stage:
        for thread, (text, answer) in CONFIDED.items():
            await stage.runtime.log.append_many([said(text, thread), said(answer, thread, role="assistant")])
        for question in ABOUT_SECRETS:
            await ask(stage, question, Place("default", f"about {question[-9:-1]}", "ann"))
    sent = [json.dumps(body["messages"]) for body in model.bodies("chat")]
    bicycles = [line for line in shown(model.bodies("chat")[2]) if "user:" in line]
    assert bicycles == [f"2026-05-01 user: {CONFIDED['bike'][0]}"]
    assert KEY not in sent[1] + sent[2]
    assert (KEY in sent[0], "hunter22" in "".join(sent)) == (remember_secrets, remember_secrets)


async def test_turns_of_a_forgotten_memory_and_their_repetitions_are_not_used(play: Play, model: OpenAIServer) -> None:
    birthday, question = "My birthday is 4 May.", "When is my birthday?"
    echoes = [said("Noted: 4 May.", "t1", role="assistant"), said("A good one?", "t2")]
    async with play() as stage:
        runtime = stage.runtime
        turn = said(birthday, "t1")
        [done] = await runtime.log.append_many([turn])
        await runtime.log.append_many([*OTHERS, *echoes, said("Your birthday is 4 May.", "t2", role="assistant")])
        source = MemorySource(thread="t1", seq=done.seq, event_id=turn.id, quote=birthday, said_at=SAID_AT)
        memory = Memory(
            id=uuid4(), kind="FACT", content="Birthday is 05-04", importance=0.8, confidence=0.9, origin="rule",
            valid_from=SAID_AT, sources=(source,),
        )  # fmt: skip
        await Memories(runtime.log, runtime.pool).remember_many("default", "ann", [memory])
        await ask(stage, question)
        await Memories(runtime.log, runtime.pool).forget("default", "ann", memory.id)
        await ask(stage, question, Place("default", "later", "ann"))
        [receipt] = await stage.all("answer_receipt", "new")
        then = await context_as_of(runtime, "default", "new", receipt.as_of_seq)
    before, after = model.bodies("chat")
    assert f"2026-05-01 user: {birthday}" in shown(before)
    assert "4 May" not in json.dumps(after)
    assert birthday not in json.dumps(then.context.messages)
    assert (then.matches, FORGOTTEN in json.dumps(then.context.messages)) == (False, True)


async def test_no_turns_are_used_if_none_answers_or_the_thread_is_long_or_memory_is_off(
    play: Play, model: OpenAIServer
) -> None:
    off = PreferencesSet(preferences=UserPreferences(enable_memory=False))
    async with play() as stage:
        await stage.runtime.log.append_many([*OTHERS, said(BOOKED), *(said(f"Line {n}", "long") for n in range(10))])
        await stage.runtime.log.append(said(BOOKED, "trip of eve", "eve"))
        await ask(stage, "Which instrument does the neighbour of Frieda play?")
        await ask(stage, "Hello!", Place("default", "greeting", "ann"))
        await ask(stage, QUESTION, Place("default", "long", "ann"))
        await ask(stage, QUESTION, Place("default", "nobody", None))
        await stage.runtime.log.append(Event(tenant="default", thread=memory_thread("ann"), user="ann", data=off))
        await ask(stage, QUESTION, Place("default", "off", "ann"))
        stage.runtime.settings = stage.runtime.settings.model_copy(update={"long_term": False})
        await ask(stage, QUESTION, Place("default", "without", "eve"))
    assert [shown(body) for body in model.bodies("chat")] == [[]] * 6


async def test_a_receipt_of_a_question_stored_with_its_answer_has_no_words_of_other_threads(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many([*OTHERS, said(BOOKED)])
        await stage.runtime.wait_until_projected()
        made = await context_of(stage.runtime, "default", "new", query=QUESTION, user="ann")
        answer = [NewTurn(role="assistant", content="It is the Casa Azul.")]
        await add_turns(stage.runtime, "default", "new", answer, user="ann", receipt=made.receipt)
        await stage.runtime.wait_until_projected()
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
