"""Tests responses and conversations by the unmodified `openai` client with turnlog's base URL and key."""

import json
from datetime import datetime
from typing import Any

import openai
import pytest
from helpers.api import Api, Serve, openai_client
from helpers.stage import MemoryServer

pytestmark = pytest.mark.slow

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


async def contents(api: Api, thread: str) -> list[Any]:
    async with api.client() as ann:
        return [turn["content"] for turn in (await ann.get(f"/api/threads/{thread}/turns")).json()["items"]]


async def test_a_response_continues_the_previous_one_or_forks(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        raw = await client.responses.with_raw_response.create(model="m", input="one", instructions="Be brief.")
        first, thread = raw.parse(), raw.headers["x-turnlog-thread"]
        assert (first.output_text, first.status, first.store) == ("echo: one", "completed", True)
        assert first.usage is not None and first.usage.output_tokens == 2
        await client.responses.create(model="m", input="two", previous_response_id=first.id)
        assert await contents(api, thread) == ["one", "echo: one", "two", "echo: two"]
        raw = await client.responses.with_raw_response.create(model="m", input="else", previous_response_id=first.id)
        fork = raw.headers["x-turnlog-thread"]
        assert fork != thread and await contents(api, fork) == ["one", "echo: one", "else", "echo: else"]

        unstored = await client.responses.create(model="m", input="three", previous_response_id=first.id, store=False)
        assert "echo: one" in str(model.bodies()[-1]["messages"]) and not unstored.store
        assert len(await contents(api, thread)) == 4
        for previous, user in ((unstored.id, "ann"), (first.id, "bob"), ("resp_x", "ann")):
            async with openai_client(api, user) as other:
                with pytest.raises(openai.NotFoundError):
                    await other.responses.create(model="m", input="x", previous_response_id=previous)
        reference: Any = [{"type": "item_reference", "id": raw.parse().output[0].id}, {"role": "user", "content": "on"}]
        await client.responses.create(model="m", input=reference)
        assert (await contents(api, fork))[-2:] == ["on", "echo: on"]


async def test_a_streamed_response_has_numbered_events(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        async with client.responses.stream(model="m", input="hello there") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[0].type == "response.created" and events[-1].type == "response.completed"
        assert final.output_text == "echo: hello there"

        model.reply("Let me see.", tool_calls=[("weather", {"city": "Ulm"}), ("weather", {"city": "Bonn"})])
        async with client.responses.stream(model="m", input="weather?", tools=[WEATHER]) as stream:
            final = await stream.get_final_response()
        calls: Any = [item for item in final.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"city": "Ulm"}, {"city": "Bonn"}]
        results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
        raw = await client.responses.with_raw_response.create(
            model="m", input=results, previous_response_id=final.id, tools=[WEATHER]
        )
        resent: Any = [
            {"role": "user", "content": "weather?"},
            *[item.model_dump(exclude_none=True) for item in final.output],
            *results,
            *[item.model_dump(exclude_none=True) for item in raw.parse().output],
            {"role": "user", "content": [{"type": "input_text", "text": "thanks"}]},
        ]
        again = await client.responses.with_raw_response.create(model="m", input=resent)
        assert again.headers["x-turnlog-thread"] == raw.headers["x-turnlog-thread"]

        weather = {"type": "namespace", "name": "met", "description": "Of the met office.", "tools": [WEATHER]}
        model.reply(tool_calls=[("met__weather", {"city": "Ulm"})])
        (called,) = (await client.responses.create(model="m", input="weather?", tools=[weather])).output
        assert (called.type, called.name, called.namespace) == ("function_call", "weather", "met")
        assert [tool["function"]["name"] for tool in model.bodies()[-1]["tools"]] == ["met__weather"]
        result = {"type": "function_call_output", "call_id": called.call_id, "output": "rain"}
        sent: Any = [{"role": "user", "content": "weather?"}, called.to_dict(), result]
        await client.responses.create(model="m", input=sent, tools=[weather], store=False)
        assert model.bodies()[-1]["messages"][-2]["tool_calls"][0]["function"]["name"] == "met__weather"

        model.drop(after=3)
        cut = await client.responses.create(model="m", input="count", stream=True)
        last = [event async for event in cut][-1]
        assert last.type == "response.incomplete" and last.response.output_text == "one two "
        model.fail(400, message="a bad request")
        failing = await client.responses.create(model="m", input="count", stream=True)
        last = [event async for event in failing][-1]
        assert last.type == "response.failed" and last.response.error is not None
        with pytest.raises(openai.BadRequestError, match="web_search"):
            await client.responses.create(model="m", input="x", tools=[{"type": "web_search"}])
        without_type: Any = {}
        with pytest.raises(openai.NotFoundError, match="has no team; set TURNLOG_TEAM"):
            await client.responses.create(model="turnlog/nobody", input="x")
        with pytest.raises(openai.BadRequestError, match="type None"):
            await client.responses.create(model="m", input="x", tools=[without_type])


async def test_a_conversation_has_the_items_of_its_responses(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        begins: Any = [{"type": "message", "role": "user", "content": "My dog is called Sesame."}]
        made = await client.conversations.create(items=begins, metadata={"topic": "pets"})
        form: Any = {"format": {"type": "json_schema", "name": "dog", "schema": {"type": "object"}}}
        await client.responses.create(model="m", input="And my cat?", conversation=made.id, text=form)
        sent = model.bodies()[-1]
        assert [message["content"] for message in sent["messages"]][-2:] == ["My dog is called Sesame.", "And my cat?"]
        assert sent["response_format"]["json_schema"]["name"] == "dog"
        async with api.client() as ann:
            opened = (await ann.get(f"/api/threads/{made.id}")).json()
        kept = await client.conversations.retrieve(made.id)
        assert (kept.id, kept.metadata, opened["metadata"]) == (made.id, {"topic": "pets"}, {"topic": "pets"})
        assert kept.created_at == made.created_at == int(datetime.fromisoformat(opened["created_at"]).timestamp())
        added: Any = [{"type": "message", "role": "user", "content": "Poppy."}]
        assert len((await client.conversations.items.create(made.id, items=added)).data) == 1
        thought: Any = [{"type": "reasoning", "id": "r", "summary": []}]
        assert (await client.conversations.items.create(made.id, items=thought)).data == []
        items: list[Any] = [item async for item in client.conversations.items.list(made.id, limit=2, order="asc")]
        texts = [item.content[0].text for item in items]
        assert texts == ["My dog is called Sesame.", "And my cat?", "echo: And my cat?", "Poppy."]
        async with openai_client(api, "bob") as bob:
            with pytest.raises(openai.NotFoundError):
                await bob.conversations.retrieve(made.id)


async def test_named_speakers_are_told_apart(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, openai_client(api) as client:
        said: Any = [{"role": "user", "name": name, "content": f"I am {name}."} for name in ("zoe", "zed", "ann")]
        made = await client.conversations.create(items=said[:1])
        await client.responses.create(model="m", input=said[1:], conversation=made.id)
        assert [message.get("name") for message in model.bodies()[-1]["messages"]][-3:] == ["zoe", "zed", "ann"]
        async with api.client() as ann:
            turns = (await ann.get(f"/api/threads/{made.id}/turns")).json()["items"]
        assert [turn["origin"] for turn in turns if turn["role"] == "user"] == ["participant"] * 2 + ["person"]
        listed: list[Any] = [item async for item in client.conversations.items.list(made.id, order="asc")]
        assert [item.to_dict().get("name") for item in listed] == ["zoe", "zed", "ann", None]
