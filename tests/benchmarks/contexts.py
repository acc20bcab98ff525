"""Measures building the context of 400 messages, compared with LangGraph's aget_state of the same messages."""

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from statistics import median

from tests.benchmarks.langgraph_floor import Conversation, conversation
from tests.benchmarks.measuring import Row, interleaved, milliseconds, ms, ratio
from tests.benchmarks.stand import Stand, fill, following
from turnlog.agent.answering.thread_context import Transcripts, thread_context
from turnlog.agent.context import ContextInput, build_context, counter_for
from turnlog.agent.runtime import Pool
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import connection_pool
from turnlog.events.contracts import Event, Role, TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.conversation.message import thread_messages
from turnlog.projectors.models.registry import BY_NAME

MESSAGES, CHARACTERS, THREAD = 400, 300, "long"
CALLS = 20
LANGGRAPH = "LangGraph with AsyncPostgresSaver on the same Postgres, through a pool of its own"


async def measure(stand: Stand) -> list[Row]:
    texts = turns(stand.conversations.texts(MESSAGES * 20))
    async with (
        stand.empty_log() as log,
        stand.fresh_database() as url,
        connection_pool(url) as pool,
        conversation(url) as theirs,
        following(log, url),
    ):
        await fill(log, events(texts[:MESSAGES]))
        for at in range(0, MESSAGES, 2):
            await theirs.record(*texts[at : at + 2])
        await _projected(log, pool)
        return [
            *await _reading(stand, pool, theirs),
            *await _in_memory(pool),
            await _writing(stand, log, pool, theirs, texts[MESSAGES:]),
        ]


def turns(said: Sequence[str]) -> list[str]:
    """Joins the texts and cuts them into texts of exactly CHARACTERS characters."""
    whole = " ".join(said)
    return [whole[at : at + CHARACTERS] for at in range(0, len(whole) - CHARACTERS, CHARACTERS)]


def events(texts: Sequence[str]) -> list[Event]:
    roles: Sequence[Role] = ("user", "assistant")
    return [
        Event(time=datetime.now(UTC), thread=THREAD, data=TurnRecorded(role=roles[at % 2], content=text))
        for at, text in enumerate(texts)
    ]


async def _reading(stand: Stand, pool: Pool, theirs: Conversation) -> list[Row]:
    settings, transcripts = Settings(_env_file=None), Transcripts()

    async def context(kept: Transcripts | None) -> None:
        async with pool.connection() as conn:
            built = await thread_context(conn, settings, "default", THREAD, transcripts=kept)
        assert len(built.messages) == MESSAGES + 1  # plus the system prompt

    async def state() -> None:
        assert await theirs.read() == MESSAGES

    def known() -> Awaitable[None]:
        return context(transcripts)

    def anew() -> Awaitable[None]:
        return context(None)

    first = [(await milliseconds(call, 1))[0] for call in (known, state)]
    mine, reread, floor = await interleaved(stand.rounds, *map(_median_of, (known, anew, state)))
    factor, spread = ratio(mine, floor)
    found_anew, spread_anew = ratio(reread, floor)
    method = (
        f"p50 of {CALLS} calls a round, {MESSAGES} messages of {CHARACTERS} characters, from the pool to the messages "
        "for the model, SQL included; the process has built a context of this thread before, as the agent has from the "
        f"second answer on. Floor: `aget_state` of the same messages, {LANGGRAPH}."
    )
    return [
        Row(
            f"context of {MESSAGES} messages",
            ms(median(mine)),
            ms(median(floor)),
            factor,
            spread,
            ("<=", 1 / 3),
            method,
        ),
        Row(
            "the same, every message read again",
            ms(median(reread)),
            ms(median(floor)),
            found_anew,
            spread_anew,
            None,
            "As above, with nothing kept of the thread but its token counts: what one command does.",
        ),
        Row(
            "the first in a process",
            ms(first[0]),
            ms(first[1]),
            first[0] / first[1],
            None,
            None,
            "One call, with loading the tokenizer and counting every message.",
        ),
    ]


async def _in_memory(pool: Pool) -> list[Row]:
    """Measures the part of building a context that is not SQL."""
    async with pool.connection() as conn:
        messages = await thread_messages(conn, "default", THREAD)
    counter, request = counter_for("gpt-4o"), ContextInput(messages, "gpt-4o", "You advise applicants.")
    counted = _best(lambda: sum(map(counter.message, messages)))
    built = _best(lambda: build_context(request))
    floor = _best(lambda: [counter.encoding.encode_ordinary(str(message.content)) for message in messages])
    return [
        Row(
            "counting 400 known messages",
            ms(counted),
            ms(floor),
            counted / floor,
            None,
            None,
            "Best of 20; no SQL. Floor: tiktoken encodes the same texts anew.",
        ),
        Row(
            "building their context",
            ms(built),
            ms(floor),
            built / floor,
            None,
            None,
            "Best of 20; no SQL, every message counted before. Floor: the same.",
        ),
    ]


async def _writing(stand: Stand, log: Log, pool: Pool, theirs: Conversation, texts: Sequence[str]) -> Row:
    pairs = itertools.cycle(zip(texts[::2], texts[1::2], strict=False))

    async def append_and_see() -> None:
        done = await log.append_many(events(next(pairs)))
        async with pool.connection() as conn:
            await wait_for(conn, ("messages",), 0, done[-1].seq)

    async def update() -> None:
        await theirs.record(*next(pairs))

    mine, floor = await interleaved(stand.rounds, _median_of(append_and_see), _median_of(update))
    factor, spread = ratio(mine, floor)
    method = (
        f"p50 of {CALLS} exchanges a round in a thread of {MESSAGES} messages and more: two turns appended (synced) "
        f"and seen in `messages`, all projections running. Floor: `aupdate_state` with two messages, {LANGGRAPH}."
    )
    return Row("an exchange written", ms(median(mine)), ms(median(floor)), factor, spread, None, method)


def _median_of(call: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[float]]:
    async def measured() -> float:
        return median(await milliseconds(call, CALLS))

    return measured


def _best(call: Callable[[], object]) -> float:
    """Returns the milliseconds of the fastest of 20 calls."""
    took = []
    for _ in range(20):
        started = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - started))
    return min(took)


async def _projected(log: Log, pool: Pool) -> None:
    async with pool.connection() as conn:
        await wait_for(conn, tuple(BY_NAME), 0, await log.partition_head(0))
