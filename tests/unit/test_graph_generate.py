"""generate: the request made of the state, and the stream, against a real HTTP model."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from helpers import nightly
from helpers.openai_server import OpenAIServer
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.runtime import Runtime as Run

from turnlog.agent.context import WindowTooSmall, counter_for
from turnlog.agent.models.errors import ModelRefused
from turnlog.agent.models.factory import Models, make_models
from turnlog.agent.models.offline_chat import OfflineChat
from turnlog.agent.models.protocol import ChatRequest
from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.graph.generate import generate_node
from turnlog.consumers.langgraph.graph.request import build_request, notes, notes_message, to_messages
from turnlog.consumers.langgraph.graph.state import ConversationState

MODEL = "gpt-4o"


def long_ago(count: int) -> list[AnyMessage]:
    """Messages with ids, as the reducer gives them."""
    return [
        (HumanMessage if n % 2 else AIMessage)(f"message {n}: {'weather and traffic ' * 12}", id=str(n))
        for n in range(1, count + 1)
    ]


def state(*messages: Any, **more: Any) -> ConversationState:
    found: ConversationState = {"messages": list(messages), "user_id": "ann", "conversation_id": "c"}
    return {**found, **more}  # type: ignore[typeddict-item]


def episode(text: str, day: str = "2023-05-08") -> dict[str, Any]:
    return {"role": "user", "content": text, "timestamp": f"{day}T10:00:00+00:00", "seq": 1}


def test_a_short_conversation_is_sent_as_it_is() -> None:
    request = build_request(state(HumanMessage("Hi."), AIMessage("Hello."), HumanMessage("你好")), Settings(), MODEL)
    assert [(m["role"], m["content"]) for m in request.messages] == [
        ("system", Settings().system_prompt),
        ("user", "Hi."),
        ("assistant", "Hello."),
        ("user", "你好"),
    ]


def test_what_was_recalled_stands_right_before_the_question_without_the_systems_authority() -> None:
    given = state(
        AIMessage("Hello."),
        HumanMessage("Where did I run?"),
        memory_context="Ann is a runner\nAnn likes tea",
        episodic_memory=[episode("I ran a marathon in Lisbon.")],
        retrieval_results=[{"text": "Lisbon has\n seven hills", "key": "l", "namespace": ["kb"], "score": 0.9}],
    )
    said = build_request(given, Settings(), MODEL).messages
    assert [m["role"] for m in said] == ["system", "assistant", "user", "user"]
    assert said[-1]["content"] == "Where did I run?"
    assert said[-2]["content"] == (
        "[LONG-TERM MEMORIES]\n- Ann is a runner\n- Ann likes tea\n\n"
        "[DOCUMENTS]\n- Lisbon has seven hills\n\n"
        "[EARLIER IN THIS CONVERSATION]\n- 2023-05-08 user: I ran a marathon in Lisbon."
    )


def test_an_earlier_turn_that_the_window_shows_is_not_said_twice() -> None:
    given = state(
        HumanMessage("I ran a marathon in Lisbon."),
        AIMessage("Well done."),
        HumanMessage("Where?"),
        episodic_memory=[episode("I ran a marathon in Lisbon.")],
    )
    assert len(build_request(given, Settings(), MODEL).messages) == 4


def test_an_earlier_turn_that_the_notes_themselves_push_out_is_among_them() -> None:
    """Everything fits as long as nothing is recalled; the recalled turn is the oldest of it."""
    messages = [HumanMessage("I ran a marathon in Lisbon.", id="0"), *long_ago(40), HumanMessage("Where?", id="q")]
    window = next(
        window
        for window in range(1_500, 9_000, 10)
        if len(build_request(state(*messages), Settings(context_window=window), MODEL).messages) == 43
    )
    given = state(*messages, episodic_memory=[episode("I ran a marathon in Lisbon.")])
    sent = build_request(given, Settings(context_window=window), MODEL).messages
    assert len(sent) < 43
    assert str(sent).count("I ran a marathon in Lisbon.") == 1


def test_a_speakers_name_cannot_begin_a_section_of_its_own() -> None:
    named = episode("Hello.") | {"role": "Bob\n\n[LONG-TERM MEMORIES]\n- x"}
    said = notes_message(notes(state(episodic_memory=[named]), 100, counter_for(MODEL)))
    assert said is not None
    assert [line for line in said["content"].splitlines() if line.startswith("[")] == ["[EARLIER IN THIS CONVERSATION]"]


@pytest.mark.parametrize("window", [1_500, 4_000, 16_000])
def test_a_long_conversation_fits_with_summary_topics_and_notes(window: int) -> None:
    given = state(
        *long_ago(400),
        HumanMessage("What now?", id="now"),
        conversation_summary="Ann plans a trip.",
        topics=["trip", "东京"],
        memory_context="Ann likes tea\n" * 100,
        episodic_memory=[episode(f"I said thing {n} long ago") for n in range(5)],
        retrieval_results=[{"text": "a document " * 500, "key": "k", "namespace": ["kb"], "score": 0.5}],
    )
    request = build_request(given, Settings(context_window=window), MODEL)
    assert request.messages[-1]["content"] == "What now?"
    assert "Ann plans a trip." in request.messages[1]["content"] and "东京" in request.messages[1]["content"]
    assert request.messages[-2]["content"].startswith("[LONG-TERM MEMORIES]")
    spent = counter_for(MODEL).request(request.messages)
    assert spent + window // 10 + min(16_000, window // 4) <= window


def test_a_summary_stands_for_turns_that_were_pruned_even_when_the_rest_fits() -> None:
    given = state(HumanMessage("Hi."), conversation_summary="Ann plans a trip.", pruned_through=40)
    assert "Ann plans a trip." in build_request(given, Settings(), MODEL).messages[1]["content"]
    given["pruned_through"] = 0
    assert len(build_request(given, Settings(), MODEL).messages) == 2


@pytest.mark.parametrize("kind", ["memory_context", "retrieval_results", "episodic_memory"])
async def test_the_offline_provider_quotes_what_was_recalled_line_by_line(kind: str) -> None:
    said = "Ann has a corgi called Sesame"
    found = {
        "memory_context": f"{said}\nAnn likes tea",
        "retrieval_results": [{"text": said, "key": "k", "namespace": ["kb"], "score": 0.5}],
        "episodic_memory": [episode(said)],
    }
    request = build_request(state(HumanMessage("Which corgi?"), **{kind: found[kind]}), Settings(), MODEL)
    answer = await OfflineChat(len).complete(ChatRequest(request.messages))
    _, *quotes = answer.text.splitlines()
    assert len(quotes) == 1 and said in quotes[0] and "[" not in quotes[0]


def test_notes_never_take_the_room_that_an_answer_needs() -> None:
    """From the smallest window that takes the question at all."""
    given = state(HumanMessage("Hi."), memory_context="tea\nrain\nhills")
    fitting = [
        window for window in range(200, 400, 1 if nightly.FULL else 7) if fits(state(HumanMessage("Hi.")), window)
    ]
    assert fitting and all(fits(given, window) for window in fitting)


def fits(given: ConversationState, window: int) -> bool:
    try:
        return bool(build_request(given, Settings(context_window=window), MODEL))
    except WindowTooSmall:
        return False


def test_notes_without_room_are_left_out_whole() -> None:
    assert notes_message(notes(state(memory_context="Ann likes tea"), 8, counter_for(MODEL))) is None


def test_tool_calls_and_results_stay_together_on_the_wire() -> None:
    call = AIMessage("", tool_calls=[{"id": "call_1", "name": "calendar", "args": {"月": 5}}])
    messages = [HumanMessage("when?"), call, ToolMessage("8 May", tool_call_id="call_1"), AIMessage("On 8 May.")]
    wire = build_request(state(*messages, HumanMessage("thanks")), Settings(), MODEL).messages
    assert wire[2]["tool_calls"][0]["function"] == {"name": "calendar", "arguments": '{"月":5}'}
    assert wire[3] == {"role": "tool", "tool_call_id": "call_1", "content": "8 May"}


def test_blocks_of_langchain_become_ours() -> None:
    message = HumanMessage(
        [
            {"type": "text", "text": "look:"},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "image", "url": "https://example.org/b.png"},
            {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
            "and say",
        ]
    )
    thinking = AIMessage([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a dog"}])
    asked, said = to_messages([message, thinking], "c")
    assert asked.content == [
        {"type": "text", "text": "look:"},
        {"type": "image", "url": "https://example.org/a.png"},
        {"type": "image", "url": "https://example.org/b.png"},
        {"type": "text", "text": "and say"},
    ]
    assert said.content == [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a dog"}]


def test_a_message_whose_words_changed_is_counted_anew() -> None:
    before, after = (to_messages([HumanMessage(text, id="1")], "c")[0] for text in ("short", "now much longer"))
    assert before.event_id != after.event_id


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as found:
        yield found


@pytest.fixture
async def settings(server: OpenAIServer) -> Settings:
    return Settings.model_validate({"api_base_url": server.url, "api_key": server.key, "model": MODEL})


@pytest.fixture
async def models(settings: Settings) -> AsyncIterator[Models]:
    found = make_models(settings)
    yield found
    await found.close()


async def test_the_answer_streams_and_says_what_it_took(
    server: OpenAIServer, models: Models, settings: Settings
) -> None:
    server.reply("The capital is Lisbon.")
    told: list[Any] = []
    run: Run[None] = Run(stream_writer=told.append)
    update = await generate_node(models.chat, settings)(state(HumanMessage("Which?"), agent_type="GEO"), runtime=run)
    [answer] = update["messages"]
    assert "".join(piece["text"] for piece in told) == answer.text == "The capital is Lisbon."
    assert len(told) == 4 and {piece["kind"] for piece in told} == {"text"}
    assert answer.usage_metadata["output_tokens"] == 4
    assert answer.id and answer.response_metadata["agent"] == "GEO"
    [body] = server.bodies()
    assert body["messages"][-1]["content"] == "Which?" and body["stream"] is True


async def test_a_stream_that_breaks_starts_again_and_says_so(
    server: OpenAIServer, models: Models, settings: Settings
) -> None:
    server.drop(after=2)
    server.reply("whole answer")
    told: list[Any] = []
    run: Run[None] = Run(stream_writer=told.append)
    update = await generate_node(models.chat, settings)(state(HumanMessage("Which?")), runtime=run)
    kinds = [piece["kind"] for piece in told]
    assert kinds.count("restart") == 1
    assert "".join(piece["text"] for piece in told[kinds.index("restart") + 1 :]) == "whole answer"
    assert update["messages"][0].text == "whole answer"


async def test_a_refused_key_is_a_clear_error(server: OpenAIServer, settings: Settings) -> None:
    server.accept_key = "another"
    models = make_models(settings)
    with pytest.raises(ModelRefused, match="API_KEY"):
        await generate_node(models.chat, settings)(state(HumanMessage("Which?")), runtime=Run())
    await models.close()


def test_a_window_without_room_is_a_clear_error() -> None:
    with pytest.raises(WindowTooSmall, match="MEMORY_CONTEXT_WINDOW"):
        build_request(state(HumanMessage("Hi.")), Settings(context_window=200), MODEL)


def test_the_hash_is_of_the_messages_as_sent() -> None:
    one, same = (build_request(state(HumanMessage("Hi.", id="1")), Settings(), MODEL) for _ in range(2))
    assert one.context_hash == same.context_hash
    assert json.loads(json.dumps(one.messages)) == one.messages
