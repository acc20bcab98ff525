"""The read model `usage` has sums by tenant, day, user, agent, purpose, provider and model."""

from datetime import date
from typing import Any

from helpers.projection_spec import Spec
from helpers.sample_events import event

from turnlog.agent.operations.usage import usage_by
from turnlog.events.contracts import Event, ThreadDeleted, UsageMetered
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.operations.usage import USAGE


def used(user: str | None = "ann", thread: str = "t", tenant: str = "default", minutes: int = 0, **data: Any) -> Event:
    metered = UsageMetered.model_validate({"purpose": "answer", "provider": "openai", "model": "gpt-4o", **data})
    return event(metered, thread, minutes, user=user, tenant=tenant)


async def test_tokens_cost_latency_and_errors_add_up_over_threads(db: Connection) -> None:
    await (
        Spec(db, USAGE)
        .given(used(tokens_in=10, tokens_out=5, cost_usd=0.1, latency_ms=100.4))
        .when(used(thread="u", calls=2, tokens_in=1, cost_usd=0.2, latency_ms=300), used(error="timeout"))
        .then(
            "SELECT day, user_id, calls, tokens_in, tokens_out, cost_micro_usd, errors, latency_ms_sum, latency_ms_max "
            "FROM usage",
            [(date(2023, 5, 8), "ann", 4, 11, 5, 300_000, 1, 400, 300)],
        )
    )
    (row,) = await usage_by(db, "default", "ann", "user")
    assert (row.cost_usd, row.latency_ms_mean) == (0.3, 100)


async def test_every_key_has_its_own_row(db: Connection) -> None:
    day = 24 * 60
    await (
        Spec(db, USAGE)
        .given(used(), used(user=None), used(agent="ESSAY"), used(purpose="summary"), used(model="gpt-5"))
        .when(used(provider="offline"), used(minutes=day), used(tenant="acme"))
        .then("SELECT count(*), sum(calls)::int FROM usage", [(8, 8)])
    )


async def test_usage_is_added_up_by_each_key(db: Connection) -> None:
    day, month = 24 * 60, 31 * 24 * 60
    spec = Spec(db, USAGE).given(used(cost_usd=2), used(None, agent="ESSAY"), used(model="gpt-5", minutes=day))
    await spec.when(used("bob", minutes=month), used(tenant="acme")).then("SELECT count(*) FROM usage", [(5,)])

    async def counted(by: str, user: str | None = None) -> list[tuple[str, int]]:
        return [(row.key, row.calls) for row in await usage_by(db, "default", user, by)]

    assert await counted("user") == [("ann", 2), ("", 1), ("bob", 1)]
    assert await counted("model") == [("gpt-4o", 3), ("gpt-5", 1)]
    assert await counted("agent", "ann") == [("", 2)]
    assert await counted("day") == [("2023-06-08", 1), ("2023-05-09", 1), ("2023-05-08", 2)]
    assert await counted("month") == [("2023-06", 1), ("2023-05", 3)]


async def test_tokens_without_a_known_price_at_their_time_are_unpriced(db: Connection) -> None:
    """Today's prices do not matter; they are used only for events of an older version."""
    known, unknown, unsaid = (
        {"tokens_in": count, "price_known": said} for count, said in ((1, True), (2, False), (4, None))
    )
    models = {"gpt-4o": (known, unknown, unsaid), "ours": (known, unknown, unsaid), "free": ({"tokens_in": 8},)}
    events = [used(model=model, **data) for model, each in models.items() for data in each]
    await Spec(db, USAGE).given(*events).then("SELECT count(*) FROM usage", [(3,)])
    rows = await usage_by(db, "default", "ann", "model")
    assert {row.key: row.unpriced_tokens for row in rows} == {"gpt-4o": 2, "ours": 6, "free": 8}


async def test_deleting_a_thread_does_not_undo_what_it_cost(db: Connection) -> None:
    await Spec(db, USAGE).given(used(tokens_in=9), event(ThreadDeleted())).then("SELECT tokens_in FROM usage", [(9,)])


async def test_sums_grow_beyond_thirty_two_bits(db: Connection) -> None:
    spec = Spec(db, USAGE).given(*(used(tokens_in=2_000_000_000, cost_usd=5_000) for _ in range(3)))
    await spec.then("SELECT tokens_in, cost_micro_usd FROM usage", [(6_000_000_000, 15_000_000_000)])
