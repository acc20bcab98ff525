"""Entities, sessions, forks, usage, projections, dead letters and jobs, on the real log and database."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial

import pytest
from helpers.sample_events import event, turn
from helpers.servers import eventually
from helpers.stage import player

from turnlog.agent.answering.context import list_receipts
from turnlog.agent.conversations.forks import fork_thread
from turnlog.agent.conversations.sessions.session_calls import (
    create_session,
    list_checkpoints,
    reset_session,
    session_context,
    show_session,
    write_checkpoint,
)
from turnlog.agent.memory.entities import (
    EntityExists,
    EntityInput,
    InvalidEntity,
    add_entity,
    list_entities,
    update_entity,
)
from turnlog.agent.memory.memories import list_memories
from turnlog.agent.operations.checkup import checkup
from turnlog.agent.operations.dead_letters import (
    drop_dead_letter,
    list_dead_letters,
    retry_dead_letters,
    show_dead_letter,
)
from turnlog.agent.operations.jobs.job_states import list_jobs, run_job
from turnlog.agent.operations.lag import all_derived, projection_lag
from turnlog.agent.operations.read_models import rebuild, rebuild_rows, verify
from turnlog.agent.operations.tailing import tail
from turnlog.agent.operations.usage import InvalidGrouping, usage
from turnlog.agent.privacy.personal_data import export_thread
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.roles import react
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import UsageMetered
from turnlog.events.errors import InvalidToken, NotFound
from turnlog.events.progress import no_progress
from turnlog.events.subjects import publish_subject

ANN = ("default", "ann")


@pytest.fixture
def settings(nats_url: str, database_url: str) -> Settings:
    return Settings(nats_url=nats_url, database_url=database_url)


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[Runtime]:
    async with opened(settings) as made, projecting(made):
        yield made


async def park_an_event(runtime: Runtime) -> int:
    """Publishes an undecodable turn and a valid turn after it; returns the sequence of the first."""
    subject = publish_subject("default", "broken", "turn_recorded")
    stored = await runtime.log.nc.jetstream().publish(subject, b"{")
    await runtime.log.append(turn("hello", thread="broken"))
    await runtime.wait_until_projected()
    return stored.seq


async def test_an_entity_is_added_once_and_then_updated(runtime: Runtime) -> None:
    mia = EntityInput("person", "Mia", "A friend.", {"age": 17, "city": "Oslo"}, [("friend_of", "ann")])
    made = await add_entity(runtime, *ANN, mia)
    assert (made.type, made.description, made.attributes) == ("PERSON", "A friend.", {"age": 17, "city": "Oslo"})
    assert made.relations == [{"type": "friend_of", "target": "ann"}]
    with pytest.raises(EntityExists):
        await add_entity(runtime, *ANN, EntityInput("PERSON", "mia"))
    now = await update_entity(runtime, *ANN, EntityInput("PERSON", "mia", attributes={"age": 18}))
    assert (now.name, now.description, now.attributes) == ("Mia", "A friend.", {"age": 18, "city": "Oslo"})
    assert await list_entities(runtime, *ANN, "person") == [now]
    assert await list_entities(runtime, "default", "bob") == []


async def test_an_invalid_entity_is_refused(runtime: Runtime) -> None:
    with pytest.raises(NotFound):
        await update_entity(runtime, *ANN, EntityInput("PERSON", "Mia"))
    for entity in (EntityInput(" ", "Mia"), EntityInput("PERSON", ""), EntityInput("x" * 1_000, "Mia")):
        with pytest.raises(InvalidEntity):
            await add_entity(runtime, *ANN, entity)
    with pytest.raises(InvalidToken):
        await add_entity(runtime, "default", "", EntityInput("PERSON", "Mia"))


async def test_a_session_begins_gets_a_checkpoint_and_begins_again(runtime: Runtime) -> None:
    await runtime.log.append_many([turn(f"message {n}", "assistant" if n % 2 else "user", "t") for n in range(6)])
    made = await create_session(runtime, "default", "t", "ann", recent_turns=2)
    assert (made.meta.user_id, made.flow_context.turn_count) == ("ann", 3)
    await write_checkpoint(runtime, "default", "t", "They said hello.")
    assert [checkpoint.summary for checkpoint in await list_checkpoints(runtime, "default", "t")] == [
        "They said hello."
    ]
    context = await session_context(runtime, "default", "t", "and now?")
    assert (
        "They said hello." in context.history and "message 5" in context.history and "message 0" not in context.history
    )
    await reset_session(runtime, "default", "t")
    assert (await show_session(runtime, "default", "t")).message_context.summary == ""
    with pytest.raises(NotFound):
        await show_session(runtime, "default", "nowhere")


async def test_a_fork_shares_the_past_of_its_thread(runtime: Runtime) -> None:
    done = await runtime.log.append_many([turn("one", thread="t"), turn("two", "assistant", thread="t")])
    made = await fork_thread(runtime, "default", "t", done[0].seq)
    assert (made.parent, made.message_count) == ("t", 1) and made.thread.startswith("t-fork-")
    assert [turn.content for turn in (await export_thread(runtime, "default", made.thread, None)).turns] == ["one"]
    assert await list_receipts(runtime, "default", made.thread) == []
    with pytest.raises(NotFound):
        await list_receipts(runtime, "default", "nowhere")


async def test_usage_is_added_up_for_a_user_by_day_and_month(runtime: Runtime) -> None:
    metered = UsageMetered(
        purpose="answer", provider="openai", model="m", tokens_in=5, tokens_out=2, cost_usd=0.5, latency_ms=8
    )
    await runtime.log.append_many([event(metered, "t", user=user) for user in ("ann", "ann", "bob")])
    today = datetime.now(UTC)
    [day] = await usage(runtime, *ANN)
    assert (day.key, day.calls, day.tokens_in, day.cost_usd) == (f"{today:%Y-%m-%d}", 2, 10, 1.0)
    assert [row.key for row in await usage(runtime, *ANN, "month")] == [f"{today:%Y-%m}"]
    assert [(row.key, row.calls) for row in await usage(runtime, "default", by="user")] == [("ann", 2), ("bob", 1)]
    with pytest.raises(InvalidGrouping):
        await usage(runtime, *ANN, "year")  # type: ignore[arg-type]


@pytest.mark.nightly
async def test_all_derived_is_true_after_the_last_turn_was_extracted(nats_url: str, database_url: str) -> None:
    play = player(nats_url, database_url, ("projectors", "reactors", "agent", "analytics"))
    async with play("projectors") as stage:
        await stage.runtime.log.append(turn("My corgi is called Sesame.", user="ann"))
        await stage.runtime.wait_until_projected()
        assert not await all_derived(stage.runtime), "no reactor has read the turn"
    async with play() as stage:
        await eventually(partial(all_derived, stage.runtime))
        (memory,) = await list_memories(stage.runtime, *ANN)
        assert "Sesame" in memory.content


async def test_projections_are_rebuilt_and_verified(runtime: Runtime) -> None:
    await runtime.log.append_many([turn("one", thread="t"), turn("two", thread="u")])
    await runtime.wait_until_projected()
    assert {progress.behind for progress in await projection_lag(runtime)} == {0}
    [rebuilt] = await rebuild_rows(runtime, "messages", "default", "t")
    assert rebuilt.events == 1
    seen: list[float] = []
    [whole] = await rebuild(runtime, "messages", lambda done, total: seen.append(done))
    assert whole.events == 2
    [result] = await verify(runtime, "messages", no_progress)
    assert (result.clean, result.rows) == (True, 2)
    with pytest.raises(NotFound):
        await rebuild(runtime, "nothing", no_progress)


async def test_dead_letters_are_shown_retried_and_dropped(runtime: Runtime) -> None:
    seq = await park_an_event(runtime)
    letters = await list_dead_letters(runtime, "messages")
    assert [(letter.seq, letter.status) for letter in letters] == [(seq, "parked"), (seq + 1, "parked")]
    shown = await show_dead_letter(runtime, seq)
    assert "messages" in {letter.projection for letter in shown.letters} and shown.line.body is None
    assert (await retry_dead_letters(runtime, partial(react, runtime), projection="messages")).parked == (seq, seq + 1)
    dropped = await drop_dead_letter(runtime, seq)
    assert (dropped.applied, dropped.parked) == ((seq + 1,), ())
    with pytest.raises(NotFound):
        await drop_dead_letter(runtime, seq)


async def test_jobs_are_listed_and_run(runtime: Runtime) -> None:
    names = ("retention", "decay", "compaction", "archive", "caches")
    assert {job.job: job.last for job in await list_jobs(runtime)} == dict.fromkeys(names)
    ran = await run_job(runtime, "decay", datetime.now(UTC), lambda done, total: None)
    assert (ran.job, ran.errors) == ("decay", 0)
    assert {job.job for job in await list_jobs(runtime) if job.last} == {"decay"}
    with pytest.raises(NotFound):
        await run_job(runtime, "nothing", datetime.now(UTC), lambda done, total: None)


async def test_the_log_is_shown_from_a_sequence_to_its_end(runtime: Runtime) -> None:
    await runtime.log.append_many([turn("one", thread="t"), turn("two", thread="u"), turn("three", thread="t")])
    assert [line.stored.seq async for line in tail(runtime, 2, follow=False)] == [2, 3]
    assert [line.stored.seq async for line in tail(runtime, 1, follow=False, thread="t")] == [1, 3]


async def test_a_checkup_names_what_is_wrong_and_what_to_do(
    settings: Settings, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNLOG_MODLE", "x")
    findings = {finding.check: finding for finding in await checkup(settings, lambda: opened(settings))}
    assert findings["servers"].ok and findings["log"].ok and findings["projections"].ok
    assert findings["settings"].warning and "TURNLOG_MODLE is no setting" in findings["settings"].detail
    assert findings["processes"].warning and "nothing is served" in findings["processes"].detail
    seq = await park_an_event(runtime)
    findings = {finding.check: finding for finding in await checkup(settings, lambda: opened(settings))}
    assert seq and not findings["dead letters"].ok
    assert "turnlog dead-letters list" in findings["dead letters"].fix
