"""The read models always equal a fresh rebuild of the log, row for row.

Random events over a few threads, some of them duplicated or malformed, are applied in random batches by a projector
that is killed at random. `messages` is also compared with a model of ten lines: every event once, in order.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from conftest import Settled
from helpers.nightly import examples
from helpers.projection_spec import stored
from helpers.random_events import MEMORIES, SHORT_TERM
from helpers.sample_events import DERIVED, derivation, event, turn
from helpers.servers import rows, unlike_a_rebuild
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nats.js.errors import NotFoundError

from turnlog.events.codec import encode
from turnlog.events.contracts import (
    ChunksEmbedded,
    Erased,
    Event,
    HistoryPruned,
    SummaryWritten,
    ThreadDeleted,
    ThreadOpened,
    ThreadRenamed,
    TopicsTagged,
    TurnRecorded,
    UsageMetered,
)
from turnlog.events.log import Log
from turnlog.events.stored import recorded
from turnlog.events.subjects import STREAM, publish_subject
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.chunking import chunks
from turnlog.projectors.models.registry import PROJECTIONS

WORDS = ("When is the essay due?", "On 8 May.", "申请学校", "ok", "")
KILLS = ("task", "connection", "consumer")
Make = Callable[[str], Event]


def made(data: object) -> Make:
    return lambda thread: event(data, thread)  # type: ignore[arg-type]


def chunk_ids(thread: str) -> tuple[str, ...]:
    turns = [turn(word, role, thread) for word in WORDS for role in ("user", "assistant")]
    return tuple(chunk.id for turn in turns for chunk in chunks(recorded(stored(turn, 1))))


TURNS: st.SearchStrategy[Make] = st.builds(
    lambda word, role, minutes: lambda thread: turn(word, role, thread, minutes),
    st.sampled_from(WORDS),
    st.sampled_from(["user", "assistant", "tool"]),
    st.integers(-3_000, 3_000),
)
DERIVED_EVENTS: st.SearchStrategy[Make] = st.one_of(
    st.builds(
        lambda first, last: made(TopicsTagged(topics={"essay": 1, "申请": 2}, derivation=derivation(first, last))),
        st.integers(0, 60),
        st.integers(0, 60),
    ),
    st.builds(lambda n: made(HistoryPruned(through_seq=n, removed=n, remaining=0)), st.integers(0, 60)),
    st.builds(
        lambda n: made(SummaryWritten(summary=str(n), message_count=n, covered_seq=n, derivation=DERIVED)),
        st.integers(0, 60),
    ),
    st.builds(lambda label: made(ThreadOpened(label=label)), st.none() | st.just("a")),
    st.builds(lambda label: made(ThreadRenamed(label=label)), st.sampled_from(["", "b", "c"])),
    st.just(lambda thread: event(ChunksEmbedded(model="m", dimensions=3, chunk_ids=chunk_ids(thread)), thread)),
    st.builds(
        lambda n: made(UsageMetered(purpose="answer", provider="p", model="m", tokens_in=n, cost_usd=n / 7)),
        st.integers(0, 99),
    ),
)
REMOVALS: st.SearchStrategy[Make] = st.sampled_from([made(ThreadDeleted()), made(Erased())])
THREADS = st.sampled_from(["a", "b", "线.c"])
STEPS = st.one_of(
    st.tuples(st.just("event"), THREADS, TURNS),
    st.tuples(st.just("event"), THREADS, TURNS | DERIVED_EVENTS),
    st.tuples(st.just("event"), THREADS, DERIVED_EVENTS | REMOVALS),
    st.tuples(st.just("event"), THREADS, SHORT_TERM),
    st.tuples(st.just("event"), THREADS, SHORT_TERM),
    st.tuples(st.just("event"), THREADS, MEMORIES),
    st.tuples(st.just("event"), THREADS, MEMORIES),
    st.tuples(st.just("again"), st.integers(0, 50)),
    st.tuples(st.just("bad"), THREADS),
    st.tuples(st.just("kill"), st.sampled_from(KILLS)),
    st.tuples(st.just("kill"), st.sampled_from(KILLS)),
)


@dataclass(slots=True)
class Model:
    """The expected texts of `messages` by thread. A thread with a malformed event waits from that event on."""

    texts: dict[str, list[object]] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)

    def add(self, added: Event) -> None:
        if added.thread in self.waiting:
            return
        if isinstance(added.data, TurnRecorded):
            self.texts.setdefault(added.thread, []).append(added.data.content)
        elif isinstance(added.data, ThreadDeleted | Erased):
            self.texts.pop(added.thread, None)


@dataclass(slots=True)
class Chaos:
    """A log and its projector, which is killed and restarted."""

    log: Log
    db: Connection
    database_url: str
    batch: int
    prefix: str
    model: Model = field(default_factory=Model)
    published: list[Event] = field(default_factory=list)
    runner: Runner | None = None
    task: "asyncio.Task[None] | None" = None

    async def event(self, thread: str, make: Make) -> None:
        added = make(self.prefix + thread)
        await self.log.append(added)
        self.published.append(added)
        self.model.add(added)

    async def again(self, which: int) -> None:
        """Stores the same event under another message id, like a retry after the deduplication window."""
        if self.published:
            published = self.published[which % len(self.published)]
            await self.log.nc.jetstream().publish(
                publish_subject("default", published.thread, published.type), encode(published)
            )

    async def bad(self, thread: str) -> None:
        subject = publish_subject("default", self.prefix + thread, "turn_recorded")
        await self.log.nc.jetstream().publish(subject, b"{")
        self.model.waiting.add(self.prefix + thread)

    async def kill(self, what: str) -> None:
        if what == "task":
            await self.end()
            self.start()
        elif what == "connection":
            await self.db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        else:
            for consumer in await self.log.nc.jetstream().consumers_info(STREAM):
                with contextlib.suppress(NotFoundError):  # the projector may have just deleted the consumer
                    await self.log.nc.jetstream().delete_consumer(STREAM, consumer.name)

    def start(self) -> None:
        self.runner = Runner(self.log, self.database_url, PROJECTIONS, 0, most=self.batch)
        self.task = asyncio.create_task(self.runner.run())

    async def end(self) -> None:
        assert self.task is not None
        assert self.runner is not None
        self.task.cancel()
        self.runner.stop()  # because a cancellation may be lost
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def chaos_on(log: Log, db: Connection, database_url: str, batch: int) -> AsyncIterator[Chaos]:
    chaos = Chaos(log, db, database_url, batch, prefix=f"{uuid.uuid4().hex[:8]}-")
    chaos.start()
    try:
        yield chaos
    finally:
        await chaos.end()


async def fill_the_cache(db: Connection) -> None:
    await db.execute(
        "INSERT INTO embedding_cache (model, text_hash, embedding) SELECT 'm', sha256(convert_to(format("
        "'[8 May 2023] %%s: %%s', role, word), 'UTF8')), '[1,2,3]' FROM unnest(%s::text[]) word, "
        "unnest('{user,assistant}'::text[]) role ON CONFLICT DO NOTHING",
        (list(WORDS[:3]),),
    )
    await db.execute(
        "INSERT INTO embedding_cache (model, text_hash, embedding) "
        "VALUES ('m', sha256(convert_to('I run', 'UTF8')), '[3,2,1]') ON CONFLICT DO NOTHING"
    )


@settings(
    max_examples=examples(24),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(STEPS, min_size=5, max_size=60), st.integers(1, 12))
async def test_after_any_mix_of_crashes_and_redeliveries_every_table_equals_a_fresh_rebuild(
    log: Log,
    db: Connection,
    database_url: str,
    settled: Settled,
    steps: list[tuple[str, ...]],
    batch: int,
) -> None:
    await fill_the_cache(db)
    async with chaos_on(log, db, database_url, batch) as chaos:
        for kind, *arguments in steps:
            await getattr(chaos, kind)(*arguments)
        await settled()
    assert await unlike_a_rebuild(log, database_url) == {}
    contents: dict[str, list[object]] = {}
    for thread, content in await rows(
        db, "SELECT thread_id, content FROM messages WHERE starts_with(thread_id, %s) ORDER BY seq", chaos.prefix
    ):
        contents.setdefault(thread, []).append(content)
    assert contents == {thread: texts for thread, texts in chaos.model.texts.items() if texts}
