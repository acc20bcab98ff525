"""The unchanged `openai` client with an agent of the team as its model."""

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
