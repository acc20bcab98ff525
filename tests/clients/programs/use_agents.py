"""Runs openai-agents. Arguments: the API (`chat` or `responses`), then `talk` or `recall`."""

import asyncio
import json
import os
import sys
from typing import Any

from agents import (
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

called: list[str] = []


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    called.append(city)
    return "rain"


async def main(wire: str, part: str) -> dict[str, Any]:
    set_tracing_disabled(True)
    set_default_openai_api("responses" if wire == "responses" else "chat_completions")
    set_default_openai_client(AsyncOpenAI(base_url=os.environ["TURNLOG_URL"], api_key=os.environ["TURNLOG_KEY"]))
    agent = Agent(name="Helper", instructions="Be brief.", model="m")
    if part == "recall":
        return {"recalled": (await Runner.run(agent, "What is my dog called?")).final_output}
    first = await Runner.run(agent, "My dog is called Sesame.")
    cat = "And my cat is called Poppy."
    if wire == "responses":
        second = Runner.run_streamed(agent, cat, previous_response_id=first.last_response_id)
    else:
        second = Runner.run_streamed(agent, [*first.to_input_list(), {"role": "user", "content": cat}])
    pieces = [
        event.data.delta
        async for event in second.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    with_tools = Agent(name="Weather", model="m", tools=[weather])
    answer = await Runner.run(with_tools, "What is the weather in Ulm?")
    return {
        "heard": first.final_output,
        "pieces": pieces,
        "called": called,
        "after_tool": answer.final_output,
        "tokens": first.context_wrapper.usage.output_tokens,
    }


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
