"""Runs ChatOpenAI of langchain-openai. Arguments: the API (`chat` or `responses`), then `talk` or `recall`."""

import json
import os
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

called: list[str] = []


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    called.append(city)
    return "rain"


by_response = sys.argv[1] == "responses"
model = ChatOpenAI(
    model="m",
    base_url=os.environ["TURNLOG_URL"],
    api_key=os.environ["TURNLOG_KEY"],
    use_responses_api=by_response,
    use_previous_response_id=by_response,
    stream_usage=True,
)

if sys.argv[2] == "recall":
    report = {"recalled": model.invoke([HumanMessage("What is my dog called?")]).text}
else:
    dog = HumanMessage("My dog is called Sesame.")
    heard = model.invoke([dog])
    pieces = [
        piece.text for piece in model.stream([dog, heard, HumanMessage("And my cat is called Poppy.")]) if piece.text
    ]

    history: list[Any] = [HumanMessage("What is the weather in Ulm?")]
    with_tools = model.bind_tools([weather])
    answer = with_tools.invoke(history)
    while answer.tool_calls:
        results = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]
        history += [answer, *results]
        answer = with_tools.invoke(history)
    tokens = heard.usage_metadata["output_tokens"]
    report = {"heard": heard.text, "pieces": pieces, "called": called, "after_tool": answer.text, "tokens": tokens}
print(json.dumps(report))
