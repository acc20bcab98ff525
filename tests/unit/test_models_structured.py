"""Calls for JSON send a response_format, and servers that refuse it get another one."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest
from helpers.dated_claims import DecidedMemories, claim
from helpers.extraction import extractor_turn
from helpers.openai_server import OpenAIServer
from pydantic import BaseModel, Field

from turnlog.agent.memory.extraction.by_model import ModelExtraction
from turnlog.agent.memory.extraction.rules import load_rules
from turnlog.agent.memory.upkeep.contradictions import request_verdicts
from turnlog.agent.memory.upkeep.merge_prompt import request_merged_text
from turnlog.agent.models.errors import ModelRefused
from turnlog.agent.models.llm_tasks import LLMTextTasks
from turnlog.agent.models.offline_tasks import OfflineTextTasks
from turnlog.agent.models.openai_chat import OpenAIChat
from turnlog.agent.models.protocol import ChatRequest
from turnlog.agent.models.structured import accepted_form

MESSAGES = [{"role": "user", "content": "Answer in JSON."}]


class _Person(BaseModel):
    name: str = Field(min_length=1, max_length=2000)
    age: int | None


ASK = ChatRequest(MESSAGES, json_model=_Person)


@pytest.fixture
def servers() -> Iterator[Callable[..., OpenAIServer]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(OpenAIServer(**options))


@pytest.fixture
async def client() -> AsyncIterator[Callable[[OpenAIServer], OpenAIChat]]:
    """Yields a function that makes clients for a model whose name no other test uses, because refusals are remembered
    in the process."""
    model, opened = f"model-{uuid4()}", list[OpenAIChat]()

    def new(server: OpenAIServer) -> OpenAIChat:
        opened.append(OpenAIChat(server.url, server.key, model, count_tokens=len))
        return opened[-1]

    yield new
    for chat in opened:
        await chat.close()


def formats(server: OpenAIServer) -> list[str | None]:
    return [body.get("response_format", {}).get("type") for body in server.bodies()]


async def test_a_call_that_wants_json_sends_the_schema_of_its_model(servers, client):
    server = servers()
    await client(server).complete(ASK)
    wanted = server.bodies()[0]["response_format"]["json_schema"]
    assert wanted["name"] == "Person"
    assert wanted["schema"]["required"] == ["name", "age"]
    # without bounds, see structured.py
    assert wanted["schema"]["properties"]["name"] == {"title": "Name", "type": "string"}


async def test_a_call_that_wants_text_sends_no_format(servers, client):
    server = servers()
    await client(server).complete(ChatRequest(MESSAGES))
    assert formats(server) == [None]


@pytest.mark.parametrize("refusal", [400, 422])
@pytest.mark.parametrize(
    ("refuses", "tried"),
    [
        (("json_schema",), ["json_schema", "json_object"]),
        (("json_schema", "json_object"), ["json_schema", "json_object", None]),
    ],
)
async def test_a_refused_format_is_tried_once_in_a_process(servers, client, caplog, refuses, tried, refusal):
    server = servers(refuses=refuses, refusal=refusal)
    caplog.set_level(logging.WARNING, "turnlog.agent")
    for text in ("one", "two", "three"):
        server.reply(text)
        assert (await client(server).complete(ASK)).text == text  # a new client for each call
    assert formats(server) == [*tried, tried[-1], tried[-1]]
    assert len(caplog.records) == 1


async def test_a_streamed_answer_falls_back_too(servers, client):
    server = servers(refuses=("json_schema",))
    server.reply('{"name": "Ann"}')
    final = [delta async for delta in client(server).stream(ASK)][-1].final
    assert final is not None and final.text == '{"name": "Ann"}'
    assert formats(server) == ["json_schema", "json_object"]


async def test_another_server_of_the_same_model_is_asked_for_the_schema(servers, client):
    old, new = servers(refuses=("json_schema",)), servers()
    await client(old).complete(ASK)
    await client(new).complete(ASK)
    assert formats(new) == ["json_schema"]


async def test_a_request_refused_in_every_format_does_not_change_the_remembered_format(servers, client):
    server = servers()
    server.fail(400, times=3, message="the context is too long")
    chat = client(server)
    with pytest.raises(ModelRefused, match="too long"):
        await chat.complete(ASK)
    await chat.complete(ASK)
    assert formats(server) == ["json_schema", "json_object", None, "json_schema"]
    assert accepted_form(server.url, chat.model) == "json_schema"


async def test_every_task_that_wants_json_sends_its_schema(servers, client):
    server = servers()
    chat = client(server)
    for text in ('{"tea": 2}', '{"memories": [], "entities": []}', '{"text": null}', '{"verdicts": []}'):
        server.reply(text)
    await LLMTextTasks(chat, OfflineTextTasks(len)).topics(["user: tea, please"], 3)
    await ModelExtraction(chat, load_rules()).extract([extractor_turn("I live in Bern.", 1)])
    await request_merged_text(chat, "merge", ["Lives in Bern", "Lives in the city of Bern"])
    old, new = DecidedMemories().say(claim("Likes tea", 1), claim("Drinks only coffee", 2)).rows
    await request_verdicts(chat, new, [old])
    schemas = [body["response_format"]["json_schema"]["schema"] for body in server.bodies()]
    topics, extraction, merged, verdicts = schemas
    assert topics["additionalProperties"] == {"type": "integer"}
    assert extraction["required"] == ["memories", "entities"]
    assert "Length" not in json.dumps(schemas) and '"pattern"' not in json.dumps(schemas)
    assert merged["required"] == ["text"] and verdicts["required"] == ["verdicts"]
