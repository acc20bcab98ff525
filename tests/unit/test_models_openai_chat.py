"""Tests the chat client's requests and the ends of answers with a real local server of the OpenAI API."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from threading import Event

import httpx2
import pytest
from helpers.chat_clients import ASK, ASK_RESTART, Clock, chat_clients, cut_off, deltas, ended, words
from helpers.openai_server import OpenAIServer

from turnlog.agent.models import openai_chat
from turnlog.agent.models.errors import (
    ModelRefused,
    ModelTimedOut,
    NotAnAPI,
)
from turnlog.agent.models.openai_chat import OpenAIChat
from turnlog.agent.models.openai_embeddings import OpenAIEmbedder
from turnlog.agent.models.openai_http import MAX_EVENT, BoundedResponse
from turnlog.agent.models.protocol import BROKE_OFF, ChatRequest
from turnlog.agent.models.reranking import Reranker

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "function": {"name": "recall_memory", "parameters": {"type": "object"}}}


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(server: OpenAIServer, clock: Clock) -> AsyncIterator[Callable[..., OpenAIChat]]:
    async with chat_clients(server, clock) as new:
        yield new


async def test_a_stream_gives_the_words_and_ends_with_the_whole_answer_and_its_usage(client, server, clock):
    server.reply("Paris is the capital.")
    got = await deltas(client())
    assert [d.text for d in got[:-1]] == ["Paris ", "is ", "the ", "capital."]
    final = got[-1].final
    assert final is not None
    assert (final.text, final.tokens_out, final.finish_reason) == ("Paris is the capital.", 4, "stop")
    assert final.tokens_in > 0 and final.latency_ms > 0
    assert server.bodies()[0]["stream_options"] == {"include_usage": True}


async def test_tool_calls_in_pieces_are_assembled(client, server, clock):
    server.reply(tool_calls=[("recall_memory", {"query": "奖学金"}), ("recall_memory", {"query": "b"})])
    final = (await deltas(client(), ChatRequest(ASK.messages, tools=[TOOL])))[-1].final
    assert final is not None
    assert [c.arguments for c in final.tool_calls] == ['{"query": "\\u5956\\u5b66\\u91d1"}', '{"query": "b"}']
    assert [c.id for c in final.tool_calls] == ["call_0", "call_1"]
    assert final.finish_reason == "tool_calls"
    assert server.bodies()[0]["tools"] == [TOOL]


async def test_complete_gives_text_or_tool_calls_with_usage_and_cost(client, server, clock):
    chat, request = client(), replace(ASK, model="gpt-4o")
    server.reply("fine")
    server.reply(tool_calls=[("recall_memory", {"query": "x"})])
    first, second = await chat.complete(request), await chat.complete(request)
    cost = first.tokens_in * 2.5e-6 + first.tokens_out * 10e-6
    assert (first.text, first.price_known, first.cost_usd) == ("fine", True, pytest.approx(cost))
    assert second.tool_calls[0].name == "recall_memory"
    assert first.provider == "127.0.0.1"


async def test_a_server_without_usage_is_counted_with_the_tokenizer(client, server, clock):
    server.reply("one two three", usage=False)
    server.reply("one two three", usage=False)
    chat = client()
    streamed, whole = (await deltas(chat))[-1].final, await chat.complete(ASK)
    assert streamed is not None
    assert streamed.tokens_out == whole.tokens_out == 3
    assert streamed.tokens_in == whole.tokens_in > 0
    assert not whole.price_known


async def test_a_server_that_refuses_stream_options_is_asked_without(client, server, clock):
    server.fail(400, message="unknown field: stream_options")
    chat = client()
    await deltas(chat)
    await deltas(chat)
    assert ["stream_options" in body for body in server.bodies()] == [True, False, False]


async def test_thoughts_count_for_the_time_and_the_length_of_an_answer(client, server, clock):
    with pytest.raises(ModelTimedOut, match="not finished in time"):
        await cut_off(client, server, ASK, text="Paris.", thinking="hm " * 10_000, between=0.01)
    server.reply("Paris.", thinking=" ".join(map(str, range(100_000))))
    assert ended(await deltas(client(), replace(ASK, max_tokens=10))) == ("", "length")
    await asyncio.to_thread(server.wait_until_left, 2)


@pytest.mark.parametrize("what", ["stream", "reply", "embeddings", "rerank"])
async def test_an_endless_reply_or_line_is_not_read_to_its_end(client, server, what):
    server.never_end({"stream": "chat", "reply": "chat"}.get(what, what))
    server_and_model = (server.url, server.key, "m")
    others = OpenAIEmbedder(*server_and_model, count_tokens=words), Reranker(*server_and_model, timeout_s=30.0)
    with pytest.raises(NotAnAPI, match=r"(An event|The reply) of http://127.0.0.1:\d+/v1/\S+ has over \d+ MB"):
        match what:
            case "stream":
                await deltas(client(timeout_s=30.0))
            case "reply":
                await client(timeout_s=30.0).complete(ASK)
            case "embeddings":
                await others[0].embed_passages(["a"])
            case _:
                await others[1].scores("a", ["b"])
    await asyncio.to_thread(server.wait_until_left)
    assert len(server.requests) == 1
    for other in others:
        await other.close()


async def test_a_long_stream_of_short_events_is_read_whole():
    events = [b"%03d" % n * (MAX_EVENT // 300) for n in range(110)]

    async def sent() -> AsyncIterator[bytes]:
        for event in events:
            yield b"data: %s\n\n" % event

    response = BoundedResponse(200, content=sent(), request=httpx2.Request("POST", "http://127.0.0.1"))
    assert [event async for event in response.events()] == events


@pytest.mark.parametrize("broken", ["drop", "malformed"])
async def test_a_broken_stream_that_must_not_restart_ends_with_the_received_text(client, server, clock, broken):
    server.drop(after=3) if broken == "drop" else server.malformed()
    text, reason = ended(await deltas(client()))
    assert text.startswith("one ") and reason == BROKE_OFF
    assert len(server.requests) == 1


async def test_a_caller_who_asks_gets_a_restart_after_a_broken_stream(client, server, clock):
    server.drop(after=3)
    got = await deltas(client(), ASK_RESTART)
    restart = [d.restarted for d in got].index(True)
    assert "".join(d.text for d in got[:restart]) == "one two "
    assert "".join(d.text for d in got[restart:]) == "echo: hello there"


async def test_a_restart_that_breaks_too_ends_with_the_received_text(client, server, clock):
    server.drop(after=3)
    server.drop(after=4)
    got = await deltas(client(), ASK_RESTART)
    assert [d.restarted for d in got].count(True) == 1
    assert ended(got) == ("one two three ", BROKE_OFF)
    assert len(server.requests) == 2


async def test_a_restart_that_never_begins_keeps_the_earlier_text(client, server, clock):
    server.drop(after=3)
    server.fail(500, times=4)
    got = await deltas(client(), ASK_RESTART)
    assert not any(d.restarted for d in got)
    assert ended(got) == ("one two ", BROKE_OFF)


async def test_a_cancelled_answer_counts_neither_for_nor_against_the_server(client, server, clock):
    server.reply("a b c d e f", between=0.05)
    chat = client()
    stream = chat.stream(ASK)
    await anext(stream)
    await stream.aclose()
    server.hang()
    task = asyncio.create_task(chat.complete(ASK))
    await asyncio.to_thread(server.wait_for_requests, 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (chat._resilient.breaker._running, chat._resilient.breaker._circuits) == (0, {})


async def test_newer_models_get_the_newer_token_limit_field(client, server, clock):
    chat = client()
    await chat.complete(ChatRequest(ASK.messages, model="gpt-5-mini", max_tokens=9, temperature=0.5))
    await chat.complete(ChatRequest(ASK.messages, max_tokens=9))
    newer, older = server.bodies()
    assert (newer["max_completion_tokens"], newer["model"]) == (9, "gpt-5-mini")
    assert "temperature" not in newer  # these models refuse any temperature
    assert older["max_tokens"] == 9


async def test_every_call_has_a_bound(client, server, clock):
    await client().complete(ASK)
    await deltas(client())
    await client(window=8_192).complete(ASK)
    await client(window=8_192).complete(replace(ASK, model="o3"))
    await client(window=8_192).complete(replace(ASK, max_tokens=5_000))
    sent = [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in server.bodies()]
    assert sent == [(16_000, None), (16_000, None), (2_048, None), (None, 2_048), (5_000, None)]


async def test_a_server_that_refuses_the_default_bound_gets_a_smaller_one_or_none(client, server, clock):
    said = "max_tokens is too large: 16000. This model supports at most 4096 completion tokens"
    chat = client()
    server.fail(400, message=said)
    await chat.complete(ASK)
    await deltas(chat)  # the refusal is remembered
    server.fail(400, message="Unsupported parameter: 'max_tokens'")
    await chat.complete(ASK)
    await chat.complete(ASK)
    server.fail(400, message=said)
    with pytest.raises(ModelRefused):
        await chat.complete(replace(ASK, max_tokens=9_000))  # raised by the resilient client
    server.fail(400, message="another mistake")
    with pytest.raises(ModelRefused):
        await client().complete(ASK)
    bounds = [body.get("max_tokens") for body in server.bodies()]
    assert bounds == [16_000, 4_096, 4_096, 4_096, None, None, 9_000, 16_000]


async def test_an_answer_that_repeats_itself_ends_marked_and_is_cancelled_at_the_server(client, server, clock):
    server.reply("I do not know what you mean. " * 20_000)
    chat = client()
    came = await deltas(chat)
    final = came[-1].final
    assert (final.finish_reason, chat._resilient.breaker._circuits) == ("repetition", {})
    assert final.text == "".join(delta.text for delta in came) and len(final.text) < 2_000
    await asyncio.to_thread(server.wait_until_left)


async def test_text_that_began_in_time_continues_after_the_limit(client, server, clock, monkeypatch):
    rest, now = Event(), openai_chat._now
    server.reply("one two three", until=rest, after=2)
    stream = client().stream(replace(ASK, text_by=now() + 60, ends_at=now() + 10_000))
    first = await anext(stream)
    monkeypatch.setattr(openai_chat, "_now", lambda: now() + 100)
    rest.set()
    last = [delta async for delta in stream][-1].final
    assert (first.text, last.text, last.finish_reason) == ("one ", "one two three", "stop")


async def test_an_answer_ends_at_its_bound_though_the_server_goes_on(client, server, clock):
    server.reply(" ".join(map(str, range(100_000))))
    came = await deltas(client(), replace(ASK, max_tokens=10))
    assert (came[-1].final.finish_reason, len(came[-1].final.text) < 200) == ("length", True)
    await asyncio.to_thread(server.wait_until_left)
