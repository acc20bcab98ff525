"""Tests chat completions with memory by the unmodified `openai` client with turnlog's base URL and key."""

import asyncio
import threading
from typing import Any

import openai
import pytest
from helpers.api import Api, Serve, openai_client
from helpers.openai_validation import validate_openai_messages
from helpers.servers import eventually
from helpers.stage import MemoryServer

from turnlog.agent.access.limits import change_limits
from turnlog.agent.access.throttle.pace import Paces
from turnlog.agent.conversations.threads import get_thread

pytestmark = pytest.mark.slow

WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def said(role: str, content: Any) -> Any:
    return {"role": role, "content": content}


async def turns(api: Api, thread: str, user: str = "ann") -> list[tuple[str, Any]]:
    async with api.client(user) as ann:
        items = (await ann.get(f"/api/threads/{thread}/turns")).json()["items"]
    return [(turn["role"], turn["content"]) for turn in items]


async def chat(client: openai.AsyncOpenAI, *messages: Any, **options: Any) -> tuple[str, Any]:
    """Returns the thread and the completion."""
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=list(messages), **options)
    return raw.headers.get("x-turnlog-thread", ""), raw.parse()


async def test_the_window_keeps_room_for_as_long_an_answer_as_the_client_allows(
    serve: Serve, model: MemoryServer
) -> None:
    settings = {"api_base_url": model.url, "model": "m", "context_window": 2_000}
    async with serve(**settings) as api, openai_client(api) as client:
        long = said("user", "I row on Sundays. " * 120)
        thread, _ = await chat(client, long)
        for allowed, is_shown in ((None, True), (1_400, False)):
            more = {} if allowed is None else {"max_tokens": allowed}
            await chat(client, said("user", "Well?"), extra_headers={"X-Turnlog-Thread": thread}, **more)
            assert (long["content"] in str(model.bodies()[-1]["messages"])) == is_shown


async def test_a_resent_history_is_recognised_and_an_edited_one_is_a_fork(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        prompt, first = said("system", "Be brief."), said("user", "My dog is called Sesame.")
        thread, answer = await chat(client, prompt, first)
        assert answer.choices[0].message.content == "echo: My dog is called Sesame."
        assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens == 6
        heard = said("assistant", answer.choices[0].message.content)

        history = [prompt, first, heard, said("user", "And my cat Poppy.")]
        again, _ = await chat(client, *history)
        assert again == thread
        assert await turns(api, thread) == [
            ("user", "My dog is called Sesame."),
            ("assistant", "echo: My dog is called Sesame."),
            ("user", "And my cat Poppy."),
            ("assistant", "echo: And my cat Poppy."),
        ]
        sent = model.bodies()[-1]["messages"]
        assert sent[0] == prompt and not validate_openai_messages(sent)
        assert [message["content"] for message in sent[1:]] == [message["content"] for message in history[1:]]

        fork, edited = await chat(client, first, heard, said("user", "And my horse Nut."))
        assert fork != thread
        assert len(await turns(api, thread)) == 4
        last = said("assistant", edited.choices[0].message.content)
        assert (await chat(client, first, heard, said("user", "And my horse Nut."), last, said("user", "ok")))[
            0
        ] == fork
        assert [content for _, content in await turns(api, fork)][2:] == [
            "And my horse Nut.",
            "echo: And my horse Nut.",
            "ok",
            "echo: ok",
        ]
        async with openai_client(api, "bob") as bob:
            assert (await chat(bob, first, heard, said("user", "mine too")))[0] not in (thread, fork)


async def test_a_client_names_its_thread(serve: Serve, model: MemoryServer) -> None:
    named: dict[str, Any] = {
        "t1": {"extra_headers": {"X-Turnlog-Thread": "t1", "X-Conversation-Id": "other"}},
        "t2": {"metadata": {"thread_id": "t2"}},
        "t3": {"extra_headers": {"X-OpenWebUI-Chat-Id": "t3"}},
        "t4": {"extra_headers": {"x-sm-conversation-id": "t4"}, "user": "bob"},
    }
    async with (
        serve(api_base_url=model.url, model="m") as api,
        openai_client(api) as client,
        openai_client(api, "bob") as bob,
    ):
        for thread, options in named.items():
            named_thread, answer = await chat(client, said("user", "one"), **options)
            heard = said("assistant", answer.choices[0].message.content)
            assert (
                (await chat(client, said("user", "one"), heard, said("user", "two"), **options))[0]
                == named_thread
                == thread
            )
            assert [content for _, content in await turns(api, thread)] == ["one", "echo: one", "two", "echo: two"]
            assert (await chat(bob, said("user", "one"), **options))[0] != thread
            assert len(await turns(api, thread)) == 4
            assert (await get_thread(api.runtime, "default", thread)).label == "one"
        assert (await chat(client, said("user", "three"), **named["t1"]))[0] == "t1"
        assert len(await turns(api, "t1")) == 6
        assert (await chat(client, said("user", "edited"), **named["t3"]))[0] != "t3"


async def test_a_stream_has_the_chunks_of_openai_and_survives_its_client(serve: Serve, model: MemoryServer) -> None:
    goes_on = threading.Event()
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        raw = await client.chat.completions.with_raw_response.create(
            model="m", messages=[said("developer", "Echo."), said("user", "hello there")], **options
        )
        chunks = [chunk async for chunk in raw.parse()]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "echo: hello there"
        assert chunks[-2].choices[0].finish_reason == "stop" and chunks[-1].choices == []
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 3
        assert raw.headers["x-turnlog-receipt"] and raw.headers["x-request-id"]
        assert model.bodies()[-1]["messages"][0] == said("system", "Echo.")

        model.reply("one two three four", until=goes_on, after=2)
        left: Any = {"X-Turnlog-Thread": "left"}
        leaves = await client.chat.completions.create(
            model="m", messages=[said("user", "count")], stream=True, extra_headers=left
        )
        async for chunk in leaves:
            assert chunk.usage is None
            if chunk.choices[0].delta.content:
                break
        await leaves.close()
        goes_on.set()

        async def is_recorded() -> bool:
            return ("assistant", "one two three four") in await turns(api, "left")

        await eventually(is_recorded)


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_of_the_client_are_its_own(serve: Serve, model: MemoryServer, streamed: bool) -> None:
    model.reply(tool_calls=[("weather", {"city": "Ulm"}), ("weather", {"city": "Bonn"})])
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        asked = said("user", "What is the weather?")
        options: Any = {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}
        if streamed:
            async with client.chat.completions.stream(model="m", messages=[asked], tools=[WEATHER]) as stream:
                answer: Any = await stream.get_final_completion()
        else:
            _, answer = await chat(client, asked, **options)
            assert {name: model.bodies()[-1][name] for name in options} == options
        calls = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls"
        assert [call.function.arguments for call in calls] == ['{"city": "Ulm"}', '{"city": "Bonn"}']
        results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in calls]
        history = [asked, answer.choices[0].message.model_dump(exclude_none=True), *results]
        thread, _ = await chat(client, *history, tools=[WEATHER])
        assert [role for role, _ in await turns(api, thread)] == ["user", "assistant", "tool", "tool", "assistant"]
        assert not validate_openai_messages(model.bodies()[-1]["messages"])


async def test_requests_that_ask_not_to_be_stored_are_not_stored(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client, api.client() as ann:
        await ann.post("/api/memories", json={"content": "Ann is allergic to nuts."})
        question = said("user", "What am I allergic to?")
        modes: list[Any] = [
            {"store": False},
            {"extra_headers": {"X-Turnlog-Memory": "read", "X-Turnlog-Thread": "t"}},
            {"extra_headers": {"X-Turnlog-Memory": "off"}},
        ]
        for mode in modes:
            thread, answer = await chat(client, said("system", "Brief."), question, **mode)
            assert thread == "" and answer.choices[0].message.content == "echo: What am I allergic to?"
        knew = ["Ann is allergic to nuts." in str(body["messages"]) for body in model.asked("answer")]
        assert knew == [True, True, False]
        assert model.asked("answer")[-1]["messages"] == [said("system", "Brief."), question]
        assert (await ann.get("/api/threads")).json()["items"] == []


async def test_errors_have_openais_form(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await chat(client, said("user", "hi"), n=2)
        assert refused.value.param == "n" and refused.value.type == "invalid_request_error"
        with pytest.raises(openai.BadRequestError):
            await chat(client, said("user", [{"type": "text"}]))
        async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="no", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError) as unknown:
                await stranger.models.list()
            assert unknown.value.code == "invalid_api_key"
        model.fail(404, message="no model x")
        with pytest.raises(openai.NotFoundError) as missing:
            await chat(client, said("user", "hi"))
        assert missing.value.code == "model_not_found"
        model.drop(after=3)
        stream = await client.chat.completions.create(model="m", messages=[said("user", "count")], stream=True)
        choices = [chunk.choices[0] async for chunk in stream if chunk.choices]
        # ended with the received text, and marked
        assert "".join(choice.delta.content or "" for choice in choices) == "one two "
        assert choices[-1].finish_reason == "length"


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_answer_that_is_not_stored_ends_when_its_client_leaves(
    serve: Serve, model: MemoryServer, streamed: bool
) -> None:
    """The connection to the model is closed, and the next question need not wait."""
    go = threading.Event()
    model.reply("word " * 50_000, until=go, after=2)

    async def is_asked() -> bool:
        return bool(model.bodies())

    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        asking = client.chat.completions.create(
            model="m", messages=[said("user", "hi")], store=False, stream=streamed, timeout=120.0 if streamed else 2.0
        )
        if streamed:
            async with await asking as chunks:
                await anext(chunks)
                await eventually(is_asked)
        else:
            with pytest.raises(openai.APITimeoutError):
                await asking
        running = api.runtime.models.clients[0]._resilient.breaker

        async def is_over() -> bool:
            return running._running == 0

        await eventually(is_over)
        go.set()
        await asyncio.to_thread(model.wait_until_left)


async def test_the_throttle_refuses_as_openai_does(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        await change_limits(api.runtime, "default", "user", {"user_per_minute": 1})
        await chat(client, said("user", "hi"))
        with pytest.raises(openai.RateLimitError) as refused:
            await chat(client, said("user", "hi"))
        assert int(refused.value.response.headers["retry-after"]) > 0
        await change_limits(api.runtime, "default", "user", {"user_per_minute": 9, "tokens_per_day": 0})
        with pytest.raises(openai.APIStatusError) as spent:
            await chat(client, said("user", "hi"))
        assert spent.value.status_code == 402 and spent.value.type == "insufficient_quota"


async def test_without_a_language_model_it_quotes_and_embeds(serve: Serve) -> None:
    async with serve() as api, openai_client(api) as client:
        models = [model.id async for model in client.models.list()]
        assert (await client.models.retrieve(models[0])).owned_by == "turnlog"
        _, first = await chat(client, said("user", "My dog is called Sesame."))
        heard = said("assistant", first.choices[0].message.content)
        question = said("user", "What is my dog called?")
        _, answer = await chat(client, said("user", "My dog is called Sesame."), heard, question)
        assert "Sesame" in answer.choices[0].message.content
        embeddings = await client.embeddings.create(model="any", input=["dog", "hound"])
        assert len(embeddings.data) == 2 and len(embeddings.data[0].embedding) == 384
        with pytest.raises(openai.BadRequestError, match="4,000 characters") as refused:
            await client.embeddings.create(model="any", input="a long document " * 300)
        assert refused.value.param == "input"


async def test_an_unknown_path_or_method_is_an_error_in_the_form_of_openai(serve: Serve) -> None:
    async with serve() as api, api.client() as ann:
        for method, path, status in (("GET", "/v1/nothing", 404), ("DELETE", "/v1/models", 405)):
            answer = await ann.request(method, path)
            assert answer.status_code == status
            assert answer.json()["error"]["type"] == "invalid_request_error", answer.text
        assert (await ann.get("/nothing")).json()["code"] == "not-found"


async def test_empty_texts_are_turns_and_a_resent_history_goes_on(serve: Serve, model: MemoryServer) -> None:
    def call(at: int) -> Any:
        return {"id": f"c{at}", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

    history = [
        said("user", ""),
        said("assistant", ""),
        said("user", [{"type": "text", "text": ""}]),
        {"role": "assistant", "content": "", "tool_calls": [call(1), call(2)]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "tool", "tool_call_id": "c2", "content": []},
    ]
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        thread, answer = await chat(client, *history, tools=[WEATHER])
        assert api.runtime.cached(Paces)["default", "ann", ""].events >= len(history)  # counted in the user's pace
        sent = model.bodies()[-1]["messages"]
        assert not validate_openai_messages(sent)
        assert [message["role"] for message in sent[1:]] == [message["role"] for message in history]
        heard = said("assistant", answer.choices[0].message.content)
        again, _ = await chat(client, *history, heard, said("user", "Thanks!"), tools=[WEATHER])
        assert again == thread
        texts = [content or "" for _, content in await turns(api, thread)]
        assert texts[:6] == ["", "", [{"type": "text", "text": ""}], "", "", ""]
        assert len(await turns(api, thread)) == 9
        _, unstored = await chat(client, said("user", ""), store=False)
        assert unstored.choices[0].message.content is not None


async def test_histories_of_the_older_api_are_kept(serve: Serve, model: MemoryServer) -> None:
    history: list[Any] = [
        said("user", "Rain?"),
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
        {"role": "function", "name": "weather", "content": "dry"},
        {"role": "assistant", "content": None},
        said("user", "Thanks!"),
    ]
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        thread, answer = await chat(client, *history)
        sent = model.bodies()[-1]["messages"]
        assert not validate_openai_messages(sent)
        assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"]
        heard = said("assistant", answer.choices[0].message.content)
        again, _ = await chat(client, *history, heard, said("user", "Bye."))
        assert again == thread
        roles = ["user", "assistant", "tool", "assistant", "user"]
        assert [role for role, _ in (await turns(api, thread))[:5]] == roles


async def test_calls_of_custom_tools_are_kept_and_sent_back(serve: Serve, model: MemoryServer) -> None:
    patch: Any = {"type": "custom", "custom": {"name": "patch", "description": "Changes a file."}}
    call: Any = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** not {JSON"}}
    asked = [said("user", "Fix it."), {"role": "assistant", "content": None, "tool_calls": [call]}]
    asked += [{"role": "tool", "tool_call_id": "c1", "content": ""}]
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        thread, answer = await chat(client, *asked, tools=[patch])
        assert model.bodies()[-1]["messages"][2]["tool_calls"] == [call]
        heard = said("assistant", answer.choices[0].message.content)
        assert (await chat(client, *asked, heard, said("user", "And?"), tools=[patch]))[0] == thread
        await chat(client, said("user", "Well?"), extra_headers={"X-Turnlog-Thread": thread})
        assert model.bodies()[-1]["messages"][2]["tool_calls"][0]["function"]["name"] == "patch"

        model.reply(tool_calls=[("patch", {"any": "text"})])
        _, called = await chat(client, said("user", "Fix the other."), tools=[patch])
        assert called.choices[0].message.tool_calls[0].custom.input == '{"any": "text"}'
        model.reply(tool_calls=[("patch", {"any": "text"})])
        tool: Any = {"type": "custom", "name": "patch"}
        response = await client.responses.create(model="m", input="Fix a third.", tools=[tool])
        assert (response.output[0].type, response.output[0].input) == ("custom_tool_call", '{"any": "text"}')
        output: Any = {"type": "custom_tool_call_output", "call_id": response.output[0].call_id, "output": ""}
        after = await client.responses.create(model="m", input=[output], previous_response_id=response.id, tools=[tool])
        assert after.output_text and model.bodies()[-1]["messages"][-2]["tool_calls"][0]["type"] == "custom"


async def test_a_conversation_goes_on_without_the_documents_that_a_client_added(
    serve: Serve, model: MemoryServer
) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        rag = "### Task:\nRespond to the user query using the provided context.\n\n<context>\n{}\n</context>\n\n{}"
        for named in ({}, {"extra_headers": {"X-OpenWebUI-Chat-Id": "rag"}}):
            history = list[Any]()
            threads = list[str]()
            for asked, document in (("What does it say?", "I live in Kiel."), ("Who wrote it?", "Bob."), ("ok", "")):
                last = said("user", rag.format(document, asked) if document else asked)
                thread, answer = await chat(client, *history, last, **named)
                threads.append(thread)
                history += [said("user", asked), said("assistant", answer.choices[0].message.content)]
            assert len(set(threads)) == 1
            assert len(await turns(api, threads[0])) == 6
            if named:
                continue
            again, _ = await chat(client, *history[:2], said("user", rag.format("Carla.", "Who wrote it?")))
            assert again != threads[0] and "Carla." in str(model.bodies()[-1]["messages"])
