"""Runs an agent of pydantic-ai. Arguments: the API (`chat` or `responses`), then `talk` or `recall`."""

import asyncio
import json
import os
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

called: list[str] = []


async def main(wire: str, part: str) -> dict[str, Any]:
    provider = OpenAIProvider(base_url=os.environ["TURNLOG_URL"], api_key=os.environ["TURNLOG_KEY"])
    model = (OpenAIResponsesModel if wire == "responses" else OpenAIChatModel)("m", provider=provider)
    agent, with_tools = Agent(model, instructions="Be brief."), Agent(model)

    @with_tools.tool_plain
    def weather(city: str) -> str:
        """The weather in a city."""
        called.append(city)
        return "rain"

    if part == "recall":
        return {"recalled": (await agent.run("What is my dog called?")).output}
    first = await agent.run("My dog is called Sesame.")
    async with agent.run_stream("And my cat is called Poppy.", message_history=first.all_messages()) as second:
        pieces = [piece async for piece in second.stream_text(delta=True, debounce_by=None)]
    answer = await with_tools.run("What is the weather in Ulm?")
    return {
        "heard": first.output,
        "pieces": pieces,
        "called": called,
        "after_tool": answer.output,
        "tokens": first.usage.output_tokens,
    }


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
