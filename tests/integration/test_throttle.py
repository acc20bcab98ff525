"""The throttle on real Postgres: concurrent requests, sliding windows, quotas, leases, and limits changed by events."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from helpers.sample_events import event
from helpers.servers import rows
from prometheus_client import REGISTRY

from turnlog.agent.access.identity import Role
from turnlog.agent.access.limits import InvalidLimit, change_limits, limits_of, reset_rate, usage_left
from turnlog.agent.access.throttle.admission import NotCounted, admitted, throttle_of
from turnlog.agent.access.throttle.guards import HELD_S, QuotaExceeded, RateLimited, Refused, TooManyAtOnce
from turnlog.agent.operations.jobs.caches import clean_caches
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import CONNECTIONS, THROTTLE_CONNECTIONS, opened, projecting, throttle_connections
from turnlog.events.contracts import LimitsChanged, UsageMetered
from turnlog.events.progress import no_progress
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.operations.limits import LIMITS_MODEL, LIMITS_THREAD
from turnlog.projectors.rebuild.verify import verify

NOON = datetime(2026, 3, 31, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def runtime(nats_url: str, database_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    settings = Settings(nats_url=nats_url, database_url=database_url, home=tmp_path)
    async with opened(settings) as made, projecting(made):
        yield made


async def ask(runtime: Runtime, clock: Clock, times: int, user: str = "ann", role: Role = "user", **more: Any) -> None:
    for _ in range(times):
        async with admitted(runtime, "default", user, role, clock=clock, **more):
            pass


async def refused(runtime: Runtime, clock: Clock, **more: Any) -> Refused:
    with pytest.raises(Refused) as raised:
        await ask(runtime, clock, 1, **more)
    return raised.value


async def test_a_window_slides_and_each_refusal_says_when_there_is_room(runtime: Runtime, clock: Clock) -> None:
    await ask(runtime, clock, 10)
    clock.forward(20)
    await ask(runtime, clock, 20)
    error = await refused(runtime, clock)
    assert isinstance(error, RateLimited)
    assert (error.code, error.name, error.limit, error.used, error.retry_after_s) == (
        *("rate-limited", "user_per_minute", 30, 30, 40),
    )
    await ask(runtime, clock, 1, user="bob")
    await ask(runtime, clock, 1, role="vip")
    clock.forward(40)
    await ask(runtime, clock, 9)
    assert (await refused(runtime, clock)).retry_after_s == 20
    await reset_rate(runtime, "default", "ann")
    await ask(runtime, clock, 30)


async def test_conversation_agent_and_hour_have_separate_windows(runtime: Runtime, clock: Clock) -> None:
    limits = {"user_per_minute": 9, "conversation_per_minute": 3, "agent_per_minute": 2, "user_per_hour": 5}
    await change_limits(runtime, "default", "user", limits)
    await ask(runtime, clock, 2, thread="t")
    await ask(runtime, clock, 1, thread="t", user="bob")
    assert (await refused(runtime, clock, thread="t", user="cy")).name == "conversation_per_minute"
    await ask(runtime, clock, 2, agent="essay")
    assert (await refused(runtime, clock, agent="essay")).name == "agent_per_minute"
    await ask(runtime, clock, 1, agent="school")
    clock.forward(61)
    assert (await refused(runtime, clock)).retry_after_s == 3600 - 61


async def test_of_concurrent_requests_two_are_admitted_across_all_processes(
    runtime: Runtime, nats_url: str, database_url: str, clock: Clock
) -> None:
    leave, outcomes = asyncio.Event(), asyncio.Queue[str]()

    async def admit(where: Runtime) -> None:
        try:
            async with admitted(where, "default", "ann", "user", "t", clock=clock):
                outcomes.put_nowait("admitted")
                await leave.wait()
        except TooManyAtOnce as error:
            outcomes.put_nowait(f"{error.code} {error.used:g}/{error.limit:g} {error.retry_after_s}")

    async with opened(Settings(nats_url=nats_url, database_url=database_url)) as other:
        tasks = [asyncio.create_task(admit(where)) for where in (runtime, other) * 6]
        results = [await outcomes.get() for _ in tasks]
        assert sorted(results) == ["admitted"] * 2 + ["too-many-at-once 2/2 1.0"] * 10
        leave.set()
        await asyncio.gather(*tasks)
    await ask(runtime, clock, 1)


async def test_a_killed_process_holds_its_slots_until_their_lease_ends(
    runtime: Runtime, clock: Clock, db: Connection
) -> None:
    """A killed process neither renews nor releases its lease; the table shows nothing else of it."""
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(admitted(runtime, "default", "ann", "user", clock=clock))
        held = await rows(db, "SELECT held_until, id FROM admissions")
    async with db.cursor() as cursor:
        await cursor.executemany("UPDATE admissions SET held_until = %s WHERE id = %s", held)
    clock.forward(HELD_S - 1)
    assert isinstance(await refused(runtime, clock), TooManyAtOnce)
    clock.forward(1)
    await ask(runtime, clock, 1)


async def test_a_held_slot_is_renewed(runtime: Runtime, clock: Clock, db: Connection) -> None:
    runtime.cached(throttle_of).renew_s = 0.01
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(admitted(runtime, "default", "ann", "user", clock=clock))
        clock.forward(HELD_S)
        async with asyncio.timeout(180):
            while await rows(db, "SELECT 1 FROM admissions WHERE held_until <= %s", clock.now):
                await asyncio.sleep(0.01)
        assert isinstance(await refused(runtime, clock), TooManyAtOnce)


async def test_quotas_of_the_day_and_the_month_are_enforced(runtime: Runtime, db: Connection) -> None:
    used = UsageMetered(purpose="answer", provider="p", model="m", tokens_in=150_000, tokens_out=50_000, cost_usd=1)
    await runtime.log.append(event(used, user="ann"))
    for _ in range(2):  # without a language model no quota is used
        await runtime.log.append(event(used.model_copy(update={"provider": "offline", "cost_usd": 0}), user="bob"))
    assert {guard.name: guard.used for guard in await usage_left(runtime, "default", "bob")}["tokens_per_day"] == 0
    left = {guard.name: guard for guard in await usage_left(runtime, "default", "ann")}
    assert (left["tokens_per_day"].left, left["usd_per_month"].left) == (0, 19)
    assert left["user_per_minute"].resets_at is None
    clock = Clock()
    clock.now = (await rows(db, "SELECT max(day) + time '12:00' AT TIME ZONE 'UTC' FROM usage"))[0][0]
    error = await refused(runtime, clock)
    assert isinstance(error, QuotaExceeded)
    assert (error.code, error.name, error.used, error.retry_after_s) == (
        *("quota-exceeded", "tokens_per_day", 200_000, 12 * 3600),
    )
    await ask(runtime, clock, 1, role="admin")
    await change_limits(runtime, "default", "vip", {"usd_per_month": 1})
    assert (await refused(runtime, clock, role="admin")).name == "usd_per_month"


async def test_changed_limits_apply_also_after_a_redelivery_and_a_rebuild(runtime: Runtime, database_url: str) -> None:
    changed = await change_limits(runtime, "default", "user", {"user_per_minute": 7, "usd_per_month": 0.5})
    assert (changed["user"]["user_per_minute"], changed["vip"]["user_per_minute"]) == (7, 120)
    again = event(LimitsChanged(plan="user", limits={"user_per_minute": 8}), LIMITS_THREAD)
    await runtime.log.append_many([again, again])
    assert (await limits_of(runtime, "default"))["user"] == {**changed["user"], "user_per_minute": 8}
    assert await limits_of(runtime, "other") != await limits_of(runtime, "default")
    assert (await verify(runtime.log, database_url, LIMITS_MODEL)).clean
    for plan, limits, message in (
        ("user", {"colour": 3}, "limits.colour: input should be 'concurrent'"),
        ("user", {"concurrent": -1}, "limits.concurrent: input should be greater than or equal to 0"),
        ("king", {"concurrent": 1}, "plan: input should be 'user' or 'vip'"),
    ):
        with pytest.raises(InvalidLimit, match=message):
            await change_limits(runtime, "default", plan, limits)


async def test_requests_are_refused_if_postgres_is_too_slow_to_count_them_or_the_pool_is_exhausted(
    runtime: Runtime, clock: Clock, db: Connection
) -> None:
    throttle = runtime.cached(throttle_of)
    throttle.patience_s = throttle.ping_s = 0.1
    async with db.transaction():
        await db.execute("LOCK TABLE admissions IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(NotCounted) as refused:
            await ask(runtime, clock, 1)
        assert (refused.value.code, refused.value.retry_after_s) == ("not-counted-in-time", 2)
    async with throttle_connections(runtime), AsyncExitStack() as taken:
        assert runtime.admissions is not None
        for _ in range(THROTTLE_CONNECTIONS):
            await taken.enter_async_context(runtime.admissions.connection())
        with pytest.raises(NotCounted):
            await ask(runtime, clock, 1)
    with silent_server() as address, using(runtime, address), pytest.raises(NotCounted):
        await ask(runtime, clock, 1)
    throttle.patience_s = 30.0
    await ask(runtime, clock, 1)


async def test_while_postgres_is_away_the_process_itself_counts_with_the_same_limits(
    runtime: Runtime, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    throttle = runtime.cached(throttle_of)
    throttle.away_s = 0.0
    caplog.set_level(logging.WARNING, "turnlog.throttle")
    await change_limits(runtime, "default", "user", {"user_per_minute": 8, "agent_per_minute": 3})
    await ask(runtime, clock, 5)  # Postgres counts these requests
    throttle.patience_s = 0.1
    counted = REGISTRY.get_sample_value("turnlog_throttle_local_admissions_total") or 0
    with using(runtime, "postgresql://turnlog@127.0.0.1:1/turnlog"):
        async with AsyncExitStack() as running:
            for _ in range(2):
                await running.enter_async_context(admitted(runtime, "default", "ann", "user", clock=clock))
            assert isinstance(await refused(runtime, clock), TooManyAtOnce)
        assert REGISTRY.get_sample_value("turnlog_throttle_local") == 1
        clock.forward(20)
        await ask(runtime, clock, 1)
        error = await refused(runtime, clock)
        assert (error.code, error.name, error.limit, error.used, error.retry_after_s) == (
            *("rate-limited", "user_per_minute", 8, 8, 40),
        )
        await ask(runtime, clock, 3, user="bob", agent="essay", thread="t")
        assert (await refused(runtime, clock, user="bob", agent="essay")).name == "agent_per_minute"
        clock.forward(60)
        await ask(runtime, clock, 1)
    throttle.patience_s = 30.0
    await ask(runtime, clock, 1)
    assert REGISTRY.get_sample_value("turnlog_throttle_local") == 0
    assert (REGISTRY.get_sample_value("turnlog_throttle_local_admissions_total") or 0) - counted == 7
    said = [record.message.partition(",")[0] for record in caplog.records if record.name == "turnlog.throttle"]
    assert said == ["Postgres is away", "Postgres is back"]


@contextmanager
def using(runtime: Runtime, database_url: str) -> Iterator[None]:
    """Gives the throttle of this runtime a Postgres address where it never gets a connection."""
    known, runtime.database_url, runtime.admissions = runtime.database_url, database_url, NoConnection()
    try:
        yield
    finally:
        runtime.database_url, runtime.admissions = known, None


class NoConnection:
    """A pool whose connections are all in use or cannot be opened; psycopg_pool raises the same error for both."""

    @asynccontextmanager
    async def connection(self, timeout: float | None = None) -> AsyncIterator[Connection]:
        await asyncio.Event().wait()
        yield cast(Connection, None)


@contextmanager
def silent_server() -> Iterator[str]:
    """Yields the address of a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"postgresql://turnlog@127.0.0.1:{listening.getsockname()[1]}/turnlog"


async def test_requests_are_counted_while_reads_take_every_other_connection(runtime: Runtime, clock: Clock) -> None:
    async with throttle_connections(runtime), AsyncExitStack() as reads:
        for _ in range(CONNECTIONS):
            await reads.enter_async_context(runtime.pool.connection())
        await ask(runtime, clock, 30)
        assert isinstance(await refused(runtime, clock), RateLimited)


async def test_the_hourly_job_deletes_requests_that_are_in_no_window(
    runtime: Runtime, clock: Clock, db: Connection
) -> None:
    await ask(runtime, clock, 1)
    clock.forward(3601)
    await ask(runtime, clock, 1)
    await clean_caches(runtime, clock.now, no_progress)
    assert await rows(db, "SELECT admitted_at FROM admissions") == [(clock.now,)]
