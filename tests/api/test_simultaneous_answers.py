"""Concurrent questions in one conversation are answered in order on every interface."""

import asyncio
import json
import threading
from typing import Any

import psycopg
import pytest
from helpers.api import Api
from helpers.callers import socket
from helpers.faces import answer, completion, controller, response, turns
from helpers.openai_bodies import Step
from helpers.servers import eventually
from helpers.stage import MemoryServer

from turnlog.agent.answering import asking, thread_turns
from turnlog.agent.context.titles import OTHER_CONVERSATIONS
from turnlog.projectors.engine.locks import LockFor

pytestmark = pytest.mark.slow

ROUNDS = ((2, 1), (3, 1))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("ask", [completion, response, answer, controller])
async def test_each_question_is_answered_after_the_one_before(api: Api, model: MemoryServer, ask: Any) -> None:
    async with api.client("ann", role="vip") as ann:
        for at_once, rounds in ROUNDS:
            for number in range(rounds):
                thread = f"{ask.__name__}-{at_once}-{number}"
                seen = len(model.asked("answer"))
                questions = [f"Question {number}.{position}?" for position in range(at_once)]
                asked = await asyncio.gather(*(ask(ann, thread, question) for question in questions))
                assert [answered.status_code // 100 for answered in asked] == [2] * at_once, [
                    answered.text for answered in asked
                ]
                said = await turns(ann, thread)
                assert sorted(said[::2]) == questions
                assert said[1::2] == [f"echo: {question}" for question in said[::2]]
                sent = [
                    [
                        wire["content"]
                        for wire in body["messages"]
                        if wire["role"] != "system" and not wire["content"].startswith(OTHER_CONVERSATIONS)
                    ]
                    for body in model.asked("answer")[seen:]
                ]
                assert sent == [said[: 2 * at + 1] for at in range(at_once)]


async def test_two_sockets_of_one_topic_take_turns(api: Api, model: MemoryServer) -> None:
    async def ask(text: str) -> list[str]:
        async with socket(api, "t", f"?token={api.token(role='vip')}") as ws:
            await ws.send(json.dumps({"message": text}))
            came = [json.loads(await ws.recv())]
            while came[-1]["type"] not in ("streaming_end", "error"):
                came.append(json.loads(await ws.recv()))
        return [message["type"] for message in came]

    for types in await asyncio.gather(ask("One?"), ask("Two?")):
        assert (types[0], types[-1]) == ("message_saved", "streaming_end")
    async with api.client("ann") as ann:
        said = await turns(ann, "t")
    assert sorted(said[::2]) == ["One?", "Two?"]
    assert said[1::2] == [f"echo: {question}" for question in said[::2]]


async def test_two_answers_to_the_same_turn_are_made_at_once_and_the_second_is_a_fork(
    api: Api, model: MemoryServer
) -> None:
    async with api.client("ann", role="vip") as ann:
        await completion(ann, "t", "Hello.")
        history = [user("Hello."), {"role": "assistant", "content": "echo: Hello."}, user("Which is better?")]
        before, go_on = len(model.requests), threading.Event()
        model.first["answer"] = [Step(text=f"answer {number}", until=go_on) for number in (1, 2)]
        both = [asyncio.create_task(completion(ann, "t", "", messages=history)) for _ in range(2)]
        await asyncio.to_thread(model.wait_for_requests, before + 2)
        go_on.set()
        done = await asyncio.gather(*both)
        threads = [reply.headers["X-Turnlog-Thread"] for reply in done]
        assert len(set(threads)) == 2 and "t" in threads
        for reply in done:
            said = reply.json()["choices"][0]["message"]["content"]
            assert await turns(ann, reply.headers["X-Turnlog-Thread"]) == [*(m["content"] for m in history), said]


async def test_a_failed_answer_lets_the_next_question_through(api: Api, model: MemoryServer) -> None:
    async with api.client("ann", role="vip") as ann:
        model.fail(400, message="no")
        asked = await asyncio.gather(*(completion(ann, "t", question) for question in ("One?", "Two?")))
        assert sorted(reply.status_code == 200 for reply in asked) == [False, True]


async def test_the_waiting_questions_of_a_conversation_are_limited(api: Api, model: MemoryServer) -> None:
    async def wait_in_line() -> None:
        async with thread_turns.in_turn(api.runtime, "default", "t", 180.0):
            pass

    async with api.client("ann", role="vip") as ann:
        go_on, before = threading.Event(), len(model.requests)
        model.first["answer"] = [Step(text="first", until=go_on)]
        first = asyncio.create_task(completion(ann, "t", "One?"))
        await asyncio.to_thread(model.wait_for_requests, before + 1)
        others = [asyncio.create_task(wait_in_line()) for _ in range(thread_turns.WAITING - 1)]
        second = asyncio.create_task(completion(ann, "t", "Two?"))
        queues = api.runtime.cached(thread_turns._Queues)
        await eventually(lambda: asyncio.sleep(0, len(queues["default/t"]) == 1 + thread_turns.WAITING))
        refused = await completion(ann, "t", "Three?")
        assert (refused.status_code, "in this conversation" in refused.text) == (429, True)
        assert int(refused.headers["Retry-After"]) >= 1
        go_on.set()
        await asyncio.gather(first, second, *others)
        assert len(await turns(ann, "t")) == 4


async def test_a_question_waits_for_the_answer_of_another_process_until_that_process_is_killed(
    api: Api, model: MemoryServer, database_url: str
) -> None:
    async with api.client("ann", role="vip") as ann:
        other = await psycopg.AsyncConnection.connect(database_url, autocommit=True)
        key = ("turn/default/t", int(LockFor.THREAD_TURN))
        await other.execute("SELECT pg_advisory_lock(hashtextextended(%s, %s))", key)
        waiting = asyncio.create_task(completion(ann, "t", "One?"))
        queues = api.runtime.cached(thread_turns._Queues)
        await eventually(lambda: asyncio.sleep(0, bool(queues)))
        assert not (await asyncio.wait([waiting], timeout=0))[0] and not model.asked("answer")
        async with api.runtime.pool.connection() as conn:
            await conn.execute("SELECT pg_terminate_backend(%s)", (other.info.backend_pid,))
        assert (await waiting).status_code == 200
        await eventually(lambda: asyncio.sleep(0, not queues))
        await other.close()


@pytest.mark.parametrize("ask", [completion, answer])
async def test_a_question_waits_for_an_answer_whose_client_has_left(api: Api, model: MemoryServer, ask: Any) -> None:
    async with api.client("ann", role="vip") as ann:
        go_on, before = threading.Event(), len(model.requests)
        model.first["answer"] = [Step(text="first", until=go_on)]
        left = asking.ask(api.runtime, "default", "t", "One?", user="ann")
        assert isinstance(await anext(left), asking.QuestionStored)
        await asyncio.to_thread(model.wait_for_requests, before + 1)
        await left.aclose()
        waiting = asyncio.create_task(ask(ann, "t", "Two?"))
        queues = api.runtime.cached(thread_turns._Queues)
        await eventually(lambda: asyncio.sleep(0, bool(queues.locks._held)))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        go_on.set()
        assert (await waiting).status_code // 100 == 2 and not done
        assert await turns(ann, "t") == ["One?", "first", "Two?", "echo: Two?"]
