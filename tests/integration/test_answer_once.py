"""A request is answered exactly once by real agent processes, even if they are killed or frozen while answering."""

import asyncio
import json
import os
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from helpers.hostile_messages import forge
from helpers.openai_server import OpenAIServer
from helpers.preloaded_cli import begin_command
from helpers.servers import eventually
from helpers.stage import wait_until_idle

from turnlog.agent.answering.request import AGENT, Question, QuestionEvents, answer_id, ask, question_events
from turnlog.agent.settings import Settings
from turnlog.consumers.roles import AGENT_ACK_WAIT_S, playing
from turnlog.consumers.runtime import opened
from turnlog.events.codec import encode
from turnlog.events.contracts import AnswerReceipt, TurnRecorded
from turnlog.events.log import Log
from turnlog.events.subjects import STREAM, progress_subject, publish_subject
from turnlog.projectors.engine.engine import Runner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("running_projectors")]
Start = Callable[[], Awaitable[BaseProcess]]


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def settings(model: OpenAIServer, nats_url: str, database_url: str, tmp_path: Path) -> dict[str, str]:
    """Returns the environment of an agent process."""
    servers = {
        "NATS_URL": nats_url,
        "DATABASE_URL": database_url,
        "TURNLOG_HOME": str(tmp_path),
        "TURNLOG_PLAINTEXT": "yes",
    }
    return servers | {"API_BASE_URL": model.url, "API_KEY": model.key, "TURNLOG_MODEL_TIMEOUT": "100"}


@asynccontextmanager
async def agent_here(settings: dict[str, str]) -> AsyncIterator[None]:
    """Runs the agent in this process, for tests that do not kill it."""
    async with opened(Settings.model_validate(settings)) as runtime, playing(runtime, ["agent"]):
        yield


@pytest.fixture
async def start_agent(settings: dict[str, str], running_projectors: Runner, tmp_path: Path) -> AsyncIterator[Start]:
    """Returns a function that starts a `turnlog worker agent` and waits until it accepts requests."""
    started: list[BaseProcess] = []

    async def start() -> BaseProcess:
        path = tmp_path / f"agent-{len(started)}.log"
        started.append(process := begin_command("worker", "agent", environment=os.environ | settings, output=path))

        async def runs() -> bool:
            return "worker agent runs" in path.read_text("utf-8")

        await eventually(runs)
        return process

    yield start
    for process in started:
        process.kill()
        await asyncio.to_thread(process.join)


def question(thread: str = "t", text: str = "When is the deadline?") -> QuestionEvents:
    return question_events(Question("default", thread, text, "ann"))


async def answers(log: Log, asked: QuestionEvents) -> list[str]:
    """Returns the texts of all events on the log that answer the request."""
    events = [r.event async for r in log.read_thread("default", asked.request.thread)]
    payloads = [e.data for e in events if e.id == answer_id(asked.request.id, "answer")]
    return [str(data.content) for data in payloads if isinstance(data, TurnRecorded)]


async def receipts(log: Log, asked: QuestionEvents) -> int:
    data = [r.event.data async for r in log.read_thread("default", asked.request.thread)]
    return sum(isinstance(d, AnswerReceipt) and d.request_id == asked.request.id for d in data)


async def answered(log: Log, asked: QuestionEvents) -> None:
    async def is_answered() -> bool:
        return bool(await answers(log, asked))

    await eventually(is_answered)


@asynccontextmanager
async def watched(log: Log, asked: QuestionEvents) -> AsyncIterator["asyncio.Queue[dict[str, Any]]"]:
    """Yields a queue with the progress that the asker sees."""
    steps: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        steps.put_nowait(json.loads(message.data))

    watching = await log.nc.subscribe(
        progress_subject("default", asked.request.thread, str(asked.request.id)), cb=on_message
    )
    await log.nc.flush()
    yield steps
    await watching.unsubscribe()


async def first_words(steps: "asyncio.Queue[dict[str, Any]]") -> None:
    async with asyncio.timeout(180):
        while (await steps.get())["kind"] != "text":
            pass


async def test_an_agent_killed_in_mid_answer_is_replaced_and_the_answer_is_one(
    log: Log, model: OpenAIServer, start_agent: Start
) -> None:
    model.hang(after=3)
    model.reply("It is on 8 May.")
    asked = question()
    first = await start_agent()
    async with watched(log, asked) as steps:
        await ask(log, asked)
        await first_words(steps)
        await start_agent()
        first.kill()
        await answered(log, asked)
    await wait_until_idle(log, AGENT)
    assert await answers(log, asked) == ["It is on 8 May."]
    assert await receipts(log, asked) == 1
    assert len(model.bodies()) == 2


async def test_a_frozen_agent_keeps_its_request_and_no_other_asks_the_model_too(
    log: Log, model: OpenAIServer, start_agent: Start
) -> None:
    model.reply("one two three four five", until=(go := threading.Event()), after=3)
    asked = question()
    first = await start_agent()
    async with watched(log, asked) as steps:
        await ask(log, asked)
        await first_words(steps)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGSTOP)
        await start_agent()

        async def came_again() -> bool:
            info = await log.nc.jetstream().consumer_info(STREAM, AGENT)
            return bool(info.num_redelivered)

        await eventually(came_again)
        go.set()
        os.kill(first.pid, signal.SIGCONT)
        await answered(log, asked)
    await wait_until_idle(log, AGENT)
    assert await answers(log, asked) == ["one two three four five"]
    assert (await receipts(log, asked), len(model.bodies())) == (1, 1)


async def test_two_agents_share_the_requests_and_answer_each_once(
    log: Log, model: OpenAIServer, settings: dict[str, str]
) -> None:
    questions = [question(f"t{n}", f"question {n}") for n in range(12)]
    async with agent_here(settings), agent_here(settings):
        await asyncio.gather(*(ask(log, asked) for asked in questions))
        for asked in questions:
            await answered(log, asked)
        await wait_until_idle(log, AGENT)
    assert [await answers(log, q) for q in questions] == [[f"echo: question {n}"] for n in range(12)]
    assert [await receipts(log, q) for q in questions] == [1] * 12
    assert len(model.bodies()) == 12


async def test_all_questions_wait_for_the_model_at_once_and_each_is_answered_once(
    log: Log, model: OpenAIServer, settings: dict[str, str]
) -> None:
    go = threading.Event()
    questions = [question(f"t{n}") for n in range(40)]
    for n in range(len(questions)):
        model.reply(f"answer {n}", until=go)
    async with agent_here(settings):
        await asyncio.gather(*(ask(log, asked) for asked in questions))
        await asyncio.to_thread(model.wait_for_requests, len(questions))
        go.set()
        await wait_until_idle(log, AGENT)
        answer_texts = [await answers(log, asked) for asked in questions]
    assert sorted(text for texts in answer_texts for text in texts) == sorted(f"answer {n}" for n in range(40))
    assert {len(texts) for texts in answer_texts} == {await receipts(log, questions[0])} == {1}
    assert len(model.bodies()) == len(questions)


async def test_a_request_that_comes_again_after_its_answer_changes_nothing(
    log: Log, model: OpenAIServer, settings: dict[str, str]
) -> None:
    asked = question()
    async with agent_here(settings):
        await ask(log, asked)
        await answered(log, asked)
        await wait_until_idle(log, AGENT)
    before = await log.head()
    await log.nc.jetstream().delete_consumer(STREAM, AGENT)  # the acknowledged position is lost with the consumer
    async with agent_here(settings):
        await wait_until_idle(log, AGENT)
    assert (await log.head(), len(model.bodies())) == (before, 1)


async def test_a_request_repeated_after_the_deduplication_window_is_answered_once(
    log: Log, model: OpenAIServer, settings: dict[str, str]
) -> None:
    asked = question()
    async with agent_here(settings):
        await ask(log, asked)
        await answered(log, asked)
        subject = publish_subject(asked.request.tenant, asked.request.thread, asked.request.type)
        late = {"Nats-Msg-Id": "another, as JetStream has forgotten the first"}
        await log.nc.jetstream().publish(subject, encode(asked.request), headers=late)
        head = await log.head()
        await wait_until_idle(log, AGENT)
    assert (await log.head(), len(model.bodies())) == (head, 1)


async def test_an_answer_that_waited_for_the_log_is_dropped_if_another_attempt_recorded_one(
    log: Log, model: OpenAIServer, settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The other attempt's events have other message ids, as if JetStream had forgotten theirs after a long wait."""
    model.reply(secrets.token_hex(20_000), until=(go := threading.Event()))
    asked, js = question(), log.nc.jetstream()

    async def waits() -> bool:
        return "an answer waits for the log" in caplog.text

    async with agent_here(settings):
        await ask(log, asked)
        await asyncio.to_thread(model.wait_for_requests, 1)
        stream = await js.stream_info(STREAM)
        await js.update_stream(stream.config.evolve(max_bytes=stream.state.bytes + 10_000))
        go.set()
        await eventually(waits)
        for part, data in (("answer", TurnRecorded(role="assistant", content="8 May")), ("receipt", receipt_of(asked))):
            other = asked.turn.model_copy(update={"id": answer_id(asked.request.id, part), "data": data})
            subject = publish_subject(other.tenant, other.thread, other.type)
            await js.publish(subject, encode(other), headers={"Nats-Msg-Id": f"{other.id} of the other attempt"})
        head = await log.head()
        await js.update_stream(stream.config)
        await wait_until_idle(log, AGENT)
    assert (await answers(log, asked), await log.head()) == (["8 May"], head)


def receipt_of(asked: QuestionEvents) -> AnswerReceipt:
    about: dict[str, Any] = {"request_id": asked.request.id, "turn_id": asked.turn.id, "answer_ids": (), "as_of_seq": 1}
    return AnswerReceipt(**about, model="m", window=1, budget=1, tiers=(), context_hash="0")


async def test_ids_copied_to_another_thread_do_not_prevent_an_answer(log: Log, settings: dict[str, str]) -> None:
    asked = question()
    for part in ("answer", "receipt", "usage-0"):
        await forge(log, asked.turn.model_copy(update={"id": answer_id(asked.request.id, part), "thread": "forged"}))
    async with agent_here(settings):
        await ask(log, asked)
        await answered(log, asked)
    assert (len(await answers(log, asked)), await receipts(log, asked)) == (1, 1)


async def test_a_durable_of_an_older_turnlog_gets_the_short_wait_and_keeps_its_position(
    log: Log, model: OpenAIServer, settings: dict[str, str]
) -> None:
    asked = question()
    async with agent_here(settings):
        await ask(log, asked)
        await answered(log, asked)
        await wait_until_idle(log, AGENT)
    js = log.nc.jetstream()
    config = (await js.consumer_info(STREAM, AGENT)).config
    await js.add_consumer(STREAM, config.evolve(ack_wait=30.0))
    async with agent_here(settings):
        info = await js.consumer_info(STREAM, AGENT)
    assert (info.config.ack_wait, info.num_pending, len(model.bodies())) == (AGENT_ACK_WAIT_S, 0, 1)
