"""The chat client against a real local server that speaks the OpenAI API. No test waits real seconds."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers.openai_server import OpenAIServer

from turnlog.agent.models import openai_chat
from turnlog.agent.models.calls import Breaker, Caller, shown_url
from turnlog.agent.models.errors import (
    BreakerOpen,
    ModelError,
    ModelMalformed,
    ModelModerated,
    ModelQuotaExceeded,
    ModelRateLimited,
    ModelRefused,
    ModelTimedOut,
    ModelUnavailable,
    NotAnAPI,
    redact,
)
from turnlog.agent.models.openai_chat import OpenAIChat, tls_context
from turnlog.agent.models.openai_embeddings import OpenAIEmbedder
from turnlog.agent.models.protocol import BROKE_OFF, TIME_UP, ChatRequest, Delta
from turnlog.agent.models.reranking import Reranker

ASK = ChatRequest([{"role": "user", "content": "hello there"}])
ASK_RESTART = ChatRequest(ASK.messages, restart=True)
TOOL = {"type": "function", "function": {"name": "recall_memory", "parameters": {"type": "object"}}}


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
async def client(server: OpenAIServer, clock: Clock) -> AsyncIterator[Callable[..., OpenAIChat]]:
    """Makes clients and closes them after the test."""
    opened: list[OpenAIChat] = []

    def new(key: str | None = None, timeout_s: float = 60.0, url: str | None = None, **options: Any) -> OpenAIChat:
        secret, url = key or server.key, url or server.url
        breaker = Breaker("the test server", clock=lambda: clock.now)
        caller = Caller(url, secret=secret, timeout_s=timeout_s, breaker=breaker, sleep=clock.sleep, jitter=lambda: 0.0)
        opened.append(OpenAIChat(url, secret, "test-model", count_tokens=words, caller=caller, **options))
        return opened[-1]

    yield new
    for chat in opened:
        await chat.close()


def ended(got: list[Delta]) -> tuple[str, str | None]:
    """The text of record and why the answer ended."""
    final = got[-1].final
    assert final is not None
    return final.text, final.finish_reason


async def deltas(chat: OpenAIChat, request: ChatRequest = ASK) -> list[Delta]:
    return [delta async for delta in chat.stream(request)]


async def cut_off(client: Any, server: OpenAIServer, request: ChatRequest, **reply: Any) -> list[Delta]:
    """Returns what came of an answer until its time was up: long enough for a busy machine to send the beginning.
    Looks that it was asked for once and did not count against the server."""
    for seconds in (0.3, 3.0, 30.0):
        server.reply(**reply)
        chat, before = client(), len(server.requests)
        try:
            got = await deltas(chat, replace(request, ends_at=asyncio.get_running_loop().time() + seconds))
        except ModelTimedOut as error:
            if "said nothing" not in str(error):
                raise
        else:
            assert (len(server.requests) - before, chat._caller.breaker._circuits) == (1, {})
            return got
    raise AssertionError("the server sent nothing")


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


async def test_429_waits_as_long_as_the_server_asks(client, server, clock):
    server.fail(429, headers={"Retry-After": "7"})
    assert (await client(timeout_s=30).complete(ASK)).text == "echo: hello there"
    assert clock.slept == [7.0]


async def test_a_retry_after_that_does_not_fit_in_the_time_left_is_given_back_at_once(client, server, clock):
    server.fail(429, headers={"Retry-After": "7"}, times=2)
    chat = client(timeout_s=30)
    with pytest.raises(ModelRateLimited) as caught:
        await deltas(chat, replace(ASK, ends_at=asyncio.get_running_loop().time() + 6))
    assert caught.value.retry_after_s == 7
    assert (clock.slept, len(server.requests)) == ([], 1)


async def test_500_three_times_then_an_answer_takes_1_2_and_4_seconds(client, server, clock):
    server.fail(500, times=3)
    assert (await deltas(client()))[-1].final is not None
    assert clock.slept == [1.0, 2.0, 4.0]


async def test_after_four_failures_the_error_names_address_and_cause(client, server, clock):
    server.fail(503, times=4, message="overloaded")
    with pytest.raises(ModelUnavailable, match="answered 503: overloaded"):
        await client().complete(ASK)
    assert len(server.requests) == 4


async def test_the_breaker_opens_after_five_failed_calls_and_closes_after_two_trials(client, server, clock):
    chat = client()
    server.fail(500, times=20)
    for _ in range(5):
        with pytest.raises(ModelUnavailable, match="answered 500"):  # also the call that opens it says why
            await chat.complete(ASK)
    with pytest.raises(BreakerOpen) as caught:
        await chat.complete(ASK)
    assert len(server.requests) == 20
    assert caught.value.retry_after_s == 30
    clock.now += 30
    assert (await chat.complete(ASK)).text
    assert chat._caller.breaker.state == "half-open"
    await deltas(chat)
    assert chat._caller.breaker.state == "closed"


async def test_one_asker_whose_requests_fail_does_not_close_the_server_to_others(client, server, clock):
    chat, ann, ben = client(), replace(ASK, asker="ann"), replace(ASK, asker="ben")
    server.fail(500, times=20, message="the template cannot take this message")
    for _ in range(5):
        with pytest.raises(ModelUnavailable):
            await chat.complete(ann)
    with pytest.raises(BreakerOpen):
        await chat.complete(ann)
    assert (await chat.complete(ben)).text == "echo: hello there"
    server.fail(500, times=4)
    with pytest.raises(ModelUnavailable):
        await chat.complete(ben)
    assert (await chat.complete(replace(ASK, asker="carl"))).text == "echo: hello there"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, None, ModelRefused),
        (401, None, ModelRefused),
        (429, "insufficient_quota", ModelQuotaExceeded),
        (400, "content_filter", ModelModerated),
        (429, None, ModelRateLimited),
    ],
)
async def test_refusals_and_rate_limits_never_open_the_breaker(client, server, clock, status, code, kind):
    server.fail(status, times=24, code=code)
    chat = client()
    for _ in range(6):
        with pytest.raises(kind):
            await chat.complete(ASK)
    assert chat._caller.breaker.state == "closed"


async def test_a_hanging_server_is_a_timeout_of_all_tries_together(client, server, clock):
    server.hang()
    with pytest.raises(ModelTimedOut, match=r"said nothing for 0\.05 s"):
        await client(timeout_s=0.05).complete(ASK)
    assert (clock.slept, len(server.requests)) == ([], 1)


async def test_a_budget_that_is_used_up_is_no_failure_of_the_server(client, server, clock):
    caller, asked = client(timeout_s=5.0)._caller, []

    async def attempt():
        asked.append(1)
        await asyncio.sleep(60)

    for within_s in (0.0, -1.0, 0.0, 0.01, 0.01, 0.01, 0.01, 0.01):
        with pytest.raises(ModelTimedOut):
            await caller.call(attempt, within_s=within_s)
    assert (caller.breaker.state, len(asked)) == ("closed", 5)


async def test_a_stream_that_stalls_ends_with_what_came_and_is_not_tried_again(client, server, clock):
    server.hang(after=3)
    got = await deltas(client(timeout_s=2.0), ASK_RESTART)
    assert ended(got) == ("one two ", TIME_UP)
    assert len(server.requests) == 1


async def test_an_answer_that_never_ends_is_ended_when_its_time_is_up(client, server, clock):
    got = await cut_off(client, server, ASK_RESTART, text="on " * 10_000, between=0.01)
    text, reason = ended(got)
    assert text.startswith("on ") and reason == TIME_UP


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_a_model_that_thinks_is_not_silent(client, server, clock, field):
    server.reply("Paris.", thinking="hm " * 20, thinks_in=field, between=0.15)  # longer than it may be silent
    assert ended(await deltas(client(timeout_s=2.0))) == ("Paris.", "stop")
    server.hang(after=5, thinking="hm " * 20)  # in mid-thought
    with pytest.raises(ModelTimedOut, match=r"said nothing for 2(\.0)? s"):
        await deltas(client(timeout_s=2.0))
    assert len(server.requests) == 2


async def test_thoughts_count_for_the_time_and_the_length_of_an_answer(client, server, clock):
    with pytest.raises(ModelTimedOut, match="not finished in time"):
        await cut_off(client, server, ASK, text="Paris.", thinking="hm " * 10_000, between=0.01)
    server.reply("Paris.", thinking=" ".join(map(str, range(100_000))))
    assert ended(await deltas(client(), replace(ASK, max_tokens=10))) == ("", "length")
    await asyncio.to_thread(server.wait_until_left, 2)


@pytest.mark.parametrize("request_", [ASK, ASK_RESTART])
async def test_an_answer_that_breaks_off_in_its_thoughts_is_tried_again_once(client, server, clock, request_):
    for _ in range(2):
        server.drop(after=5, thinking="hm " * 20)
    with pytest.raises(ModelUnavailable, match="broke off"):
        await deltas(client(), request_)
    assert len(server.requests) == 2
    server.drop(after=5, thinking="hm " * 20)
    got = await deltas(client(), request_)
    assert ended(got) == ("echo: hello there", "stop") and not any(d.restarted for d in got)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_web_page_is_said_at_once(client, server, clock, stream):
    server.page()
    with pytest.raises(NotAnAPI, match="web page"):
        await (deltas(client()) if stream else client().complete(ASK))
    assert (clock.slept, len(server.requests)) == ([], 1)


@pytest.mark.parametrize("what", ["stream", "reply", "embeddings", "rerank"])
async def test_a_reply_or_a_line_without_end_is_not_read_to_its_end(client, server, what):
    server.never_end({"stream": "chat", "reply": "chat"}.get(what, what))
    given = (server.url, server.key, "m")
    others = OpenAIEmbedder(*given, count_tokens=words), Reranker(*given, timeout_s=30.0)
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
    for one in others:
        await one.close()


async def test_a_long_stream_of_short_events_is_read_whole(client, server, monkeypatch):
    monkeypatch.setattr(openai_chat, "_MAX_EVENT", 1_000)
    text = " ".join(f"{n}" for n in range(1_000))
    server.reply(text)
    assert (await deltas(client()))[-1].final.text == text


async def test_a_connection_dropped_before_the_first_token_is_tried_again(client, server, clock):
    server.drop(after=1)
    assert (await deltas(client()))[-1].final is not None
    assert len(server.requests) == 2


@pytest.mark.parametrize("broken", ["drop", "malformed"])
async def test_a_stream_that_breaks_ends_with_what_came_where_it_must_not_start_again(client, server, clock, broken):
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


async def test_a_restart_that_breaks_too_ends_with_what_came(client, server, clock):
    server.drop(after=3)
    server.drop(after=4)
    got = await deltas(client(), ASK_RESTART)
    assert [d.restarted for d in got].count(True) == 1
    assert ended(got) == ("one two three ", BROKE_OFF)
    assert len(server.requests) == 2


async def test_a_restart_that_never_begins_leaves_what_came_before(client, server, clock):
    server.drop(after=3)
    server.fail(500, times=4)
    got = await deltas(client(), ASK_RESTART)
    assert not any(d.restarted for d in got)
    assert ended(got) == ("one two ", BROKE_OFF)


async def test_malformed_json_is_tried_again_and_then_an_error(client, server, clock):
    server.malformed()
    chat = client()
    assert (await chat.complete(ASK)).text == "echo: hello there"
    for _ in range(4):
        server.malformed()
    with pytest.raises(ModelMalformed, match="not in the OpenAI format"):
        await chat.complete(ASK)


async def test_a_server_that_is_down_is_named_and_works_again_when_it_is_back(client, server, clock):
    chat = client()
    server.stop()
    with pytest.raises(ModelUnavailable, match="connection to the model at http://127"):
        await chat.complete(ASK)
    server.start()
    clock.now += 60
    assert (await chat.complete(ASK)).text == "echo: hello there"


async def test_an_unknown_model_is_refused_at_once_with_the_fix(client, server, clock):
    server.fail(404, message="The model does not exist")
    with pytest.raises(ModelRefused, match="check the model's name"):
        await client().complete(ASK)
    assert clock.slept == []


async def test_an_empty_quota_is_no_rate_limit(client, server, clock):
    server.fail(429, code="insufficient_quota")
    with pytest.raises(ModelQuotaExceeded, match="no credit left"):
        await client().complete(ASK)


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
    assert (chat._caller.breaker._running, chat._caller.breaker._circuits) == (0, {})


async def test_no_error_and_no_log_line_holds_the_key(client, caplog):
    secret = "s3cret0123456789abcdef"
    caplog.set_level(logging.DEBUG)
    with OpenAIServer(accept_key="another") as strict:
        with pytest.raises(ModelRefused, match="set API_KEY") as caught:
            await client(key=secret, url=strict.url).complete(ASK)
        with pytest.raises(ModelRefused):
            await deltas(client(key=secret, url=strict.url))
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert secret not in shown
    assert "Incorrect API key provided: ***" in str(caught.value)


def test_redaction_also_takes_what_only_looks_like_a_key():
    assert redact("bad key sk-proj-abc123 and Bearer xyz", None) == "bad key *** and ***"


def test_an_address_is_shown_without_its_password():
    assert shown_url("https://me:pw@host:8080/v1?key=1") == "https://host:8080/v1"


async def test_newer_models_get_the_newer_token_limit_field(client, server, clock):
    chat = client()
    await chat.complete(ChatRequest(ASK.messages, model="gpt-5-mini", max_tokens=9, temperature=0.5))
    await chat.complete(ChatRequest(ASK.messages, max_tokens=9))
    newer, older = server.bodies()
    assert (newer["max_completion_tokens"], newer["model"]) == (9, "gpt-5-mini")
    assert "temperature" not in newer  # these models refuse any
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
    await deltas(chat)  # it is remembered
    server.fail(400, message="Unsupported parameter: 'max_tokens'")
    await chat.complete(ASK)
    await chat.complete(ASK)
    server.fail(400, message=said)
    with pytest.raises(ModelRefused):
        await chat.complete(replace(ASK, max_tokens=9_000))  # of the caller, who is told
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
    assert (final.finish_reason, chat._caller.breaker._circuits) == ("repetition", {})
    assert final.text == "".join(one.text for one in came) and len(final.text) < 2_000
    await asyncio.to_thread(server.wait_until_left)


async def test_an_answer_ends_at_its_bound_though_the_server_goes_on(client, server, clock):
    server.reply(" ".join(map(str, range(100_000))))
    came = await deltas(client(), replace(ASK, max_tokens=10))
    assert (came[-1].final.finish_reason, len(came[-1].final.text) < 200) == ("length", True)
    await asyncio.to_thread(server.wait_until_left)


async def test_every_error_is_a_model_error_with_a_code(client, server, clock):
    server.fail(422)
    with pytest.raises(ModelError) as caught:
        await client().complete(ASK)
    assert caught.value.code == "model-refused"


async def test_all_clients_load_the_certificate_authorities_once() -> None:
    tls_context.cache_clear()
    for _ in range(3):
        await OpenAIChat("https://example.org/v1", "key", "m", count_tokens=words).close()
    assert tls_context.cache_info().misses == 1
