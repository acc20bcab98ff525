"""TurnlogSaver returns every kind of message and value with the same type as LangGraph's own saver."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from helpers.langgraph_graphs import chat, config, history
from helpers.mirrored_saver import MirroredSaver
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.types import Send

from turnlog.agent.runtime import Pool
from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.runtime import connection_pool
from turnlog.events.log import Log
from turnlog.projectors.engine.engine import Runner

pytestmark = pytest.mark.slow


@pytest.fixture
async def pool(database_url: str, running_projectors: Runner) -> AsyncIterator[Pool]:
    async with connection_pool(database_url) as opened:
        yield opened


@pytest.fixture
async def mirror(log: Log, pool: Pool) -> AsyncIterator[MirroredSaver]:
    mirrored = MirroredSaver(TurnlogSaver(log, pool, allowed=OWN))
    yield mirrored
    assert mirrored.reads > 0


CALL = {"name": "look", "args": {"b": 1.0, "a": [1, True, None], "text": "ü\x00"}, "id": "call-1", "type": "tool_call"}
USAGE = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
TOLD = {"model_name": "gpt-4o-mini", "finish_reason": "stop", "logprobs": None, "score": 1e22}


class Own(HumanMessage):
    """A message class of an application."""

    mood: str = "fine"


MESSAGES: list[BaseMessage] = [
    HumanMessage("plain"),
    HumanMessage("named", name="ann", id="h2", additional_kwargs={"z": 1, "a": {"deep": [1.5, 2]}}),
    HumanMessage(""),
    HumanMessage("nul \x00"),
    HumanMessage(
        [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    ),
    HumanMessage(["just", {"type": "text", "text": "strings"}]),
    HumanMessage([{"type": "image", "source_type": "base64", "data": "AAAA", "mime_type": "image/png"}]),
    SystemMessage("be kind"),
    AIMessage("", tool_calls=[CALL]),
    AIMessage("hi", usage_metadata=USAGE, response_metadata=TOLD),
    AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}]),
    AIMessage([{"type": "tool_use", "id": "u1", "name": "look", "input": {"z": 1, "a": 2.50}}], tool_calls=[CALL]),
    AIMessage(
        "bad call",
        invalid_tool_calls=[{"name": "x", "args": "{", "id": "i", "error": "e", "type": "invalid_tool_call"}],
    ),
    AIMessage(
        "float", additional_kwargs={"nan": float("nan"), "tuple": (1, 2), "when": datetime(2024, 5, 8, tzinfo=UTC)}
    ),
    AIMessage("extra", parsed={"a": 1}),
    ToolMessage("found", tool_call_id="call-1", name="look", status="error", artifact={"rows": [1, 2]}),
    ToolMessage([{"type": "text", "text": "found"}], tool_call_id="call-2"),
    ChatMessage("as a role", role="critic"),
    FunctionMessage("result", name="f"),
    Own("own", mood="sunny"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: f"{m.type}: {str(m.content)[:20]!a}")
async def test_every_kind_of_message_comes_back_exactly(
    log: Log, pool: Pool, mirror: MirroredSaver, message: BaseMessage
) -> None:
    asked = message.model_copy()
    graph = chat(mirror, [message])
    await graph.ainvoke({"messages": [asked]}, config())
    await graph.ainvoke({"messages": [HumanMessage("and")]}, config())
    warm = await history(graph)
    fresh = MirroredSaver(TurnlogSaver(log, pool, allowed=OWN), mirror.reference)
    assert len(await history(chat(fresh))) == len(warm)
    await chat(fresh).ainvoke({"messages": [HumanMessage("and on")]}, config())
    await history(chat(fresh))


class Mood(StrEnum):
    GOOD = "good"


@dataclass
class Plan:
    steps: list[str]


OWN = (Own, Mood, Plan)
VALUES: list[Any] = [
    None,
    True,
    0,
    2**60,
    1.0,
    1e22,
    -0.0,
    float("inf"),
    "text",
    "nul \x00",
    "half \ud800"[:5],
    b"bytes",
    [],
    {},
    [1, "a", None],
    {"a": {"b": (1, 2)}},
    Mood.GOOD,
    Plan(["one"]),
    {1, 2},
    datetime(2024, 5, 8, tzinfo=UTC),
    UUID(int=7),
    HumanMessage("alone", id="m"),
    {"said": [HumanMessage("in a dict", id="m"), "and text"], "__turnlog_item__": 0},
    ([HumanMessage("in a tuple", id="m")], 1),
    [Send("agent", {"messages": [HumanMessage("sent", id="m")]})],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{type(v).__name__} {str(v)[:16]!a}")
async def test_every_kind_of_value_comes_back_exactly(log: Log, pool: Pool, mirror: MirroredSaver, value: Any) -> None:
    checkpoint = {**empty_checkpoint(), "v": 4}
    version = mirror.get_next_version(None, None)
    checkpoint |= {"channel_values": {"one": value, "two": "x"}, "channel_versions": {"one": version, "two": version}}
    put: Any = checkpoint
    stored = await mirror.aput(
        config(checkpoint_ns=""), put, {"source": "loop", "step": 1}, {"one": version, "two": version}
    )
    await mirror.aput_writes(stored, [("one", value), ("two", [value])], "task", "~path")
    await mirror.aget_tuple(config(checkpoint_ns=""))
    await MirroredSaver(TurnlogSaver(log, pool, allowed=OWN), mirror.reference).aget_tuple(config(checkpoint_ns=""))
    assert [saved async for saved in mirror.alist(config())]
