"""Tests the unmodified `openai` client with an agent of the team as its model."""

import openai
import pytest
from helpers.api import Serve, openai_client
from helpers.stage import MemoryServer

from turnlog.agent.team.agents import switch_agent

CALL = ("get_profile", {})


async def test_agents_are_models_and_answer_whole_and_streamed(serve: Serve, model: MemoryServer) -> None:
    async with (
        serve("agent", api_base_url=model.url, model="m", team="advising") as api,
        openai_client(api) as client,
        api.client() as ann,
    ):
        await switch_agent(api.runtime, "default", "timeline", False)
        names = [listed.id async for listed in client.models.list()]
        assert names == ["m", "turnlog/essay", "turnlog/orchestrator", "turnlog/profile", "turnlog/school"]
        assert (await client.models.retrieve("turnlog/essay")).id == "turnlog/essay"
        model.reply("I look.", tool_calls=[CALL])
        model.reply("You are Ann.")
        asked: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Who am I?"}]
        raw = await client.chat.completions.with_raw_response.create(model="turnlog/profile", messages=asked)
        answer, thread = raw.parse(), raw.headers["x-turnlog-thread"]
        assert (answer.model, answer.choices[0].message.content) == ("turnlog/profile", "You are Ann.")
        assert answer.choices[0].finish_reason == "stop" and answer.usage and answer.usage.prompt_tokens > 0
        asked += [{"role": "assistant", "content": "You are Ann."}, {"role": "user", "content": "And now?"}]
        model.reply("Still Ann.")
        stream = await client.chat.completions.create(model="turnlog/profile", messages=asked, stream=True)
        assert "".join([part.choices[0].delta.content or "" async for part in stream]) == "Still Ann."
        runs = (await ann.get("/api/runs", params={"thread": thread})).json()["items"]
        assert [run["agent"] for run in runs] == ["profile", "profile"]
        turns = (await ann.get(f"/api/threads/{thread}/turns")).json()["items"]
        said = [turn["content"] for turn in turns if turn["role"] == "user"]
        assert said == ["Who am I?", "And now?"]
        model.reply("By responses.")
        made = await client.responses.create(model="turnlog/profile", input="Hello again")
        assert made.output_text == "By responses."
        model.reply("It goes on.")
        again = await client.responses.create(model="turnlog/profile", input="And then?", previous_response_id=made.id)
        assert again.output_text == "It goes on."
        assert "By responses." in str(model.bodies("chat")[-1]["messages"])


async def test_steps_are_summaries_of_reasoning_in_responses_and_nothing_in_completions(
    serve: Serve, model: MemoryServer
) -> None:
    delegate = ("delegate_to_agent", {"agent_type": "profile", "task_description": "Look it up"})

    def script() -> None:
        model.reply("Profile knows.", tool_calls=[delegate])
        model.reply("I look.", tool_calls=[CALL])
        model.reply("You are Ann.")

    async with (
        serve("agent", api_base_url=model.url, model="m", team="advising") as api,
        openai_client(api, role="admin") as client,
    ):
        script()
        made = await client.responses.create(model="turnlog/orchestrator", input="Who am I?")
        assert made.output_text == "You are Ann." and [item.type for item in made.output] == ["reasoning", "message"]
        reasoning = made.output[0]
        assert reasoning.type == "reasoning"
        said = [part.text for part in reasoning.summary]
        assert said[:-1] == [
            "orchestrator: Profile knows.",
            "orchestrator hands over to profile: Look it up",
            "profile: I look.",
            "get_profile {}",
        ]
        assert said[-1].startswith("get_profile answered after ")
        script()
        events = [
            event
            async for event in await client.responses.create(model="turnlog/orchestrator", input="And?", stream=True)
        ]
        streamed = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
        assert streamed[:-1] == said[:-1] and events[-1].type == "response.completed"
        done = [event.item.type for event in events if event.type == "response.output_item.done"]
        assert done == ["reasoning", "message"]
        resent = [*made.output, {"role": "user", "content": "Thanks"}]
        model.reply("You are welcome.")
        again = await client.responses.create(model="turnlog/orchestrator", input=resent)  # type: ignore[arg-type]
        assert [item.type for item in again.output] == ["message"] and again.output_text == "You are welcome."
        script()
        asked: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Who am I?"}]
        whole = await client.chat.completions.create(model="turnlog/orchestrator", messages=asked)
        assert whole.choices[0].message.content == "You are Ann."
        script()
        stream = await client.chat.completions.create(model="turnlog/orchestrator", messages=asked, stream=True)
        assert "".join([part.choices[0].delta.content or "" async for part in stream]) == "You are Ann."


async def test_an_unknown_agent_and_tools_of_a_client_are_refused(serve: Serve, model: MemoryServer) -> None:
    async with (
        serve("agent", api_base_url=model.url, model="m", team="advising") as api,
        openai_client(api) as client,
        api.client() as ann,
    ):
        with pytest.raises(openai.NotFoundError, match="there is no agent 'pilot'"):
            await client.chat.completions.create(model="turnlog/pilot", messages=[{"role": "user", "content": "Hi"}])
        with pytest.raises(openai.BadRequestError, match="has tools of its own"):
            await client.chat.completions.create(
                model="turnlog/essay",
                messages=[{"role": "user", "content": "Hi"}],
                tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            )
        assert (await ann.get("/api/threads")).json()["items"] == [] and model.bodies("chat") == []
