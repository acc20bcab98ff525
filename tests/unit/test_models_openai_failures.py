"""Tests failures of a chat server with a real local server. No test waits for real seconds."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import pytest
from helpers.chat_clients import ASK, ASK_RESTART, Clock, chat_clients, cut_off, deltas, ended
from helpers.openai_server import OpenAIServer

from turnlog.agent.models.calls import shown_url
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
from turnlog.agent.models.openai_chat import OpenAIChat
from turnlog.agent.models.protocol import TIME_UP

pytestmark = pytest.mark.slow


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
        # the call that opens the breaker also tells the cause
        with pytest.raises(ModelUnavailable, match="answered 500"):
            await chat.complete(ASK)
    with pytest.raises(BreakerOpen) as caught:
        await chat.complete(ASK)
    assert len(server.requests) == 20
    assert caught.value.retry_after_s == 30
    clock.now += 30
    assert (await chat.complete(ASK)).text
    assert chat._resilient.breaker.state == "half-open"
    await deltas(chat)
    assert chat._resilient.breaker.state == "closed"


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
    assert chat._resilient.breaker.state == "closed"


async def test_a_hanging_server_is_a_timeout_of_all_tries_together(client, server, clock):
    server.hang()
    with pytest.raises(ModelTimedOut, match=r"said nothing for 0\.5 s"):
        await client(timeout_s=0.5).complete(ASK)
    assert (clock.slept, len(server.requests)) == ([], 1)


async def test_an_exhausted_budget_is_not_a_failure_of_the_server(client, server, clock):
    resilient, asked = client(timeout_s=5.0)._resilient, []

    async def attempt():
        asked.append(1)
        await asyncio.sleep(60)

    for within_s in (0.0, -1.0, 0.0, 0.01, 0.01, 0.01, 0.01, 0.01):
        with pytest.raises(ModelTimedOut):
            await resilient.call(attempt, within_s=within_s)
    assert (resilient.breaker.state, len(asked)) == ("closed", 5)


async def test_a_stalled_stream_ends_with_the_received_text_and_is_not_retried(client, server, clock):
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
    server.reply("Paris.", thinking="hm " * 20, thinks_in=field, between=0.15)  # longer than the allowed silence
    assert ended(await deltas(client(timeout_s=2.0))) == ("Paris.", "stop")
    server.hang(after=5, thinking="hm " * 20)  # in the middle of its reasoning
    with pytest.raises(ModelTimedOut, match=r"said nothing for 2(\.0)? s"):
        await deltas(client(timeout_s=2.0))
    assert len(server.requests) == 2


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
async def test_a_web_page_in_place_of_an_answer_is_reported_at_once(client, server, clock, stream):
    server.page()
    with pytest.raises(NotAnAPI, match="web page"):
        await (deltas(client()) if stream else client().complete(ASK))
    assert (clock.slept, len(server.requests)) == ([], 1)


async def test_a_connection_dropped_before_the_first_token_is_tried_again(client, server, clock):
    server.drop(after=1)
    assert (await deltas(client()))[-1].final is not None
    assert len(server.requests) == 2


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


async def test_an_empty_quota_is_not_a_rate_limit(client, server, clock):
    server.fail(429, code="insufficient_quota")
    with pytest.raises(ModelQuotaExceeded, match="no credit left"):
        await client().complete(ASK)


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


def test_redaction_also_masks_texts_that_look_like_a_key():
    assert redact("bad key sk-proj-abc123 and Bearer xyz", None) == "bad key *** and ***"


def test_an_address_is_shown_without_its_password():
    assert shown_url("https://me:pw@host:8080/v1?key=1") == "https://host:8080/v1"


async def test_every_error_is_a_model_error_with_a_code(client, server, clock):
    server.fail(422)
    with pytest.raises(ModelError) as caught:
        await client().complete(ASK)
    assert caught.value.code == "model-refused"
