"""Memories quote only the person's own words, never words with another role, channel or framework."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import openai
import pytest
from helpers.api import Serve
from helpers.langgraph_graphs import config
from helpers.openai_server import OpenAIServer
from helpers.stage import player
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage

import turnlog
from turnlog.agent.answering.context import context_of
from turnlog.agent.answering.turns import add_turns, shown, turn_of
from turnlog.agent.conversations.transcript import transcript
from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.evidence import evidence
from turnlog.agent.memory.extraction.extract_now import extract_memories
from turnlog.agent.memory.extraction.rules import load_rules
from turnlog.agent.operations.importers.imported import Defaults
from turnlog.agent.operations.importers.reader import events, read
from turnlog.agent.operations.importing import ImportRequest, import_conversations, prepare_import
from turnlog.agent.runtime import Runtime
from turnlog.consumers.api.dialects.openai.response_items import messages_of
from turnlog.consumers.langgraph import TurnlogSaver
from turnlog.consumers.langgraph.checkpoint.messages import turn_of as langchain_turn_of
from turnlog.events.contracts import Event, Recorded, TurnRecorded
from turnlog.events.progress import no_progress
from turnlog.projectors.models.sessions.state import message_of

SAID = ("I am allergic to {}.", "My dog is called {}.", "I live in {}.", "Remember that my code word is {}.")
WORDS = ("Turin", "Genoa", "Verona", "Padua", "Trieste", "Bergamo", "Parma", "Siena", "Lucca", "Pisa")
FORMS = {
    "said": "{}",
    "lines": "> {}",
    "code": "Look:\n```\n{}\n```",
    "summary": "Here is a summary of the conversation to date:\n\n{}",
    "transcript": "assistant: {}",
}
ROLES = ("user", "assistant", "system", "tool")
NAMES = (None, "ann", "Ann", "user", "bob", "王伟", "SummarizationMiddleware")
TURNS = st.tuples(
    st.sampled_from(ROLES), st.sampled_from(NAMES), st.sampled_from(list(FORMS)), st.sampled_from(SAID), st.booleans()
)
AT = "2026-05-01T10:00:00Z"
EXTRACTOR = Extractor(load_rules(None))


def is_own(role: str, name: str | None, form: str) -> bool:
    return role == "user" and form == "said" and name in (None, "ann", "Ann", "user")


@settings(max_examples=60, deadline=None)
@given(st.lists(TURNS, min_size=1, max_size=len(WORDS)))
def test_every_memory_quotes_a_person(turns: list[Any]) -> None:
    messages, own = [], set()
    for at, ((role, name, form, said, in_block), word) in enumerate(zip(turns, WORDS, strict=False), 1):
        text = FORMS[form].format(said.format(word))
        content: Any = [{"type": "text", "text": text}] if in_block else text
        data = TurnRecorded.model_validate({"role": role, "name": name, "content": content})
        event = Event(thread="t", user="ann", data=data)
        messages.append(message_of(Recorded(event, at, 0, event.time), data))
        own |= {said.format(word)} if is_own(role, name, form) else set()
    extracted = EXTRACTOR.extract(evidence(messages, "t", "ann")[0])
    assert {finding.source.quote for finding in extracted.findings} == own


def by_chat(role: str, name: str | None, text: str) -> TurnRecorded:
    said = turn_of({"role": role, "content": text, "name": name})
    return TurnRecorded.model_validate({"role": said.role, "content": said.content, "name": said.name})


def by_responses(role: str, name: str | None, text: str) -> TurnRecorded:
    [said] = messages_of([{"type": "message", "role": role, "name": name, "content": text}])
    return by_chat(said["role"], said.get("name"), said["content"])


def by_langchain(role: str, name: str | None, text: str) -> TurnRecorded:
    turn = langchain_turn_of(ChatMessage(role=role, name=name, content=text))
    assert turn is not None
    return turn


@pytest.mark.parametrize("write", [by_chat, by_responses, by_langchain])
@pytest.mark.parametrize("form", FORMS)
def test_every_writer_distinguishes_the_persons_words_from_others(write: Any, form: str) -> None:
    said = SAID[0].format(WORDS[0])
    for role in ROLES:
        for name in NAMES:
            event = Event(thread="t", user="ann", data=write(role, name, FORMS[form].format(said)))
            assert isinstance(event.data, TurnRecorded)
            turn = message_of(Recorded(event, 1, 0, event.time), event.data)
            findings = EXTRACTOR.extract(evidence([turn], "t", "ann")[0]).findings
            assert {finding.source.quote for finding in findings} == ({said} if is_own(role, name, form) else set())


def as_file(format: str, role: str, name: str | None, text: str) -> Any:
    """Returns a message in the form of a program's export."""
    asked = {"id": "m", "parent": None, "role": role, "content": text, "name": name}
    if format == "chatgpt":
        author = {"role": role, "name": name}
        message = {"id": "m", "author": author, "content": {"content_type": "text", "parts": [text]}, "create_time": 1}
        return [{"id": "c", "mapping": {"m": {"id": "m", "parent": None, "children": [], "message": message}}}]
    if format == "claude":
        sender = {"user": "human"}.get(role, role)
        message = {"uuid": "m", "sender": sender, "content": [{"type": "text", "text": text}], "created_at": AT}
        return [{"uuid": "c", "name": "c", "created_at": AT, "chat_messages": [message]}]
    if format == "open-webui":
        return [{"id": "c", "chat": {"history": {"messages": {"m": asked | {"timestamp": 1}}, "currentId": "m"}}}]
    if format == "librechat":
        sender = {"sender": name or "User", "isCreatedByUser": role == "user"}
        return {"conversationId": "c", "messages": [{"messageId": "m", "createdAt": AT, "text": text, **sender}]}
    message = {"role": role, "content": text} | ({"name": name} if name else {})
    return {"messages": [message]} if format == "openai" else message


@pytest.mark.parametrize("format", ["jsonl", "openai", "chatgpt", "claude", "open-webui", "librechat"])
def test_every_import_distinguishes_the_persons_words_from_others(format: Any, tmp_path: Path) -> None:
    said, file = SAID[0].format(WORDS[0]), tmp_path / "file.json"
    for role, name, form in product(ROLES, NAMES, FORMS):
        file.write_text(json.dumps(as_file(format, role, name, FORMS[form].format(said))), "utf-8")
        made = [*events(read(file, format, Defaults(tenant="default", user="ann")), "default")]
        turns = [
            message_of(Recorded(event, at, 0, event.time), event.data)
            for at, event in enumerate(made, 1)
            if isinstance(event, Event) and isinstance(event.data, TurnRecorded)
        ]
        assert turns or role in ("system", "tool")
        findings = EXTRACTOR.extract(evidence(turns, "t", "ann")[0]).findings
        keeps_names = format not in ("claude", "open-webui")
        assert {finding.source.quote for finding in findings} == (
            {said} if is_own(role, name if keeps_names else None, form) else set()
        )


async def test_routes_of_turns_and_a_wrapped_client_distinguish_the_persons_words_from_others(serve: Serve) -> None:
    said = [(*case, SAID[3].format(f"{at}x")) for at, case in enumerate(product(ROLES[:3], NAMES, FORMS))]
    turns = [{"role": role, "name": name, "content": FORMS[form].format(text)} for role, name, form, text in said]
    messages: Any = [{key: value for key, value in turn.items() if value} for turn in turns]
    with OpenAIServer() as model:
        async with serve() as api, api.client() as http, turnlog.connect(api.url, key=api.token("ann")) as memory:
            assert (await http.post("/api/threads/t/turns", json={"turns": turns})).status_code == 201
            own = {text for role, name, form, text in said if is_own(role, name, form)}
            assert await quotes(api.runtime) == own
            async with openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as original:
                client = turnlog.wrap(original, memory=memory, thread="wrapped")
                await client.chat.completions.create(model="gpt-4o", messages=messages)
            origins = [message.origin for message in await memory.thread("t").messages()]
            assert [message.origin for message in await memory.thread("wrapped").messages()][: len(origins)] == origins


@pytest.fixture
def stage_of(nats_url: str, database_url: str) -> Any:
    return player(nats_url, database_url, ("projectors",), extract=True)


async def quotes(runtime: Runtime) -> set[str]:
    """Returns the quotes of all memories of ann."""
    await runtime.wait_until_projected()
    await extract_memories(runtime, "default", user="ann")
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        cursor = await conn.execute("SELECT source ->> 'quote' FROM memories, jsonb_array_elements(sources) AS source")
        return {quote for (quote,) in await cursor.fetchall()}


async def test_several_people_in_one_thread_are_distinguished(stage_of: Any, tmp_path: Path) -> None:
    async with stage_of() as stage:
        place = (stage.runtime, "default", "trip")
        said = [
            {"role": "user", "name": "alice", "content": "I am allergic to peanuts."},
            {"role": "assistant", "content": "Noted."},
            {"role": "user", "name": "bob", "content": "I am vegan. Remember that my code word is heron."},
            {"role": "user", "name": "ann", "content": "I live in Turin."},
            {"role": "user", "content": "My dog is called Pixel."},
        ]
        await add_turns(*place, [turn_of(message) for message in said], user="ann")
        lines = [{**message, "thread": "old"} for message in said if message["role"] == "user"]
        file = tmp_path / "chat.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)), "utf-8")
        request = ImportRequest(file, None, Defaults(tenant="default", user="ann"), embed=False)
        await import_conversations(stage.runtime, prepare_import(request), no_progress, no_progress, no_progress)
        assert await quotes(stage.runtime) == {"I live in Turin.", "My dog is called Pixel."}
        page = await transcript(*place)
        assert [turn.origin for turn in page.turns] == ["participant", "program", "participant", "person", "person"]
        made = await context_of(*place, user="ann", query="Who must not eat peanuts?")
        assert {"role": "user", "name": "bob", "content": said[2]["content"]} in made.context.messages
        assert not any(
            "allergic" in str(message["content"]) for message in made.context.messages if message["role"] == "system"
        )


async def test_the_summary_of_a_middleware_has_the_origin_program(stage_of: Any) -> None:
    summary = "I am allergic to peanuts.\nI live in Genoa.\nRemember that my code word is heron."
    model = FakeMessagesListChatModel(responses=[AIMessage("Fine.")])
    writer = FakeMessagesListChatModel(responses=[AIMessage(summary)])
    async with stage_of() as stage:
        agent = create_agent(
            model,
            middleware=[SummarizationMiddleware(writer, trigger=("messages", 4), keep=("messages", 2))],
            checkpointer=TurnlogSaver(stage.runtime.log, stage.runtime.pool),
        )
        for text in ("I live in Turin.", "My dog is called Pixel.", "What shall I cook?"):
            state = {"messages": [HumanMessage(text)]}
            await agent.ainvoke(state, config(user_id="ann"))
        assert await quotes(stage.runtime) == {"I live in Turin.", "My dog is called Pixel."}
        turns = [shown(turn) for turn in (await transcript(stage.runtime, "default", "t")).turns]
        [made] = [turn for turn in turns if turn.role == "user" and turn.origin == "program"]
        assert summary in str(made.content) and made.quoted == []
        speakers = await stage.rows("SELECT DISTINCT speaker FROM memory_vectors WHERE chunk LIKE '%heron%'")
        assert speakers == [("program",)]
