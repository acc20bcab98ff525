"""A reactor that repeatedly fails on an event parks it as a dead letter and continues with others."""

import asyncio
from functools import partial
from pathlib import Path

import psycopg
import pytest
from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from helpers.extraction import append_texts, stored_memories
from helpers.servers import eventually
from helpers.stage import Play, Stage, player

from turnlog.agent.memory.extraction.extraction_run import NAME as EXTRACTION
from turnlog.agent.models.errors import ModelUnavailable
from turnlog.agent.operations.dead_letters import (
    DeadLetter,
    drop_dead_letter,
    list_dead_letters,
    retry_dead_letters,
)
from turnlog.agent.operations.lag import REACTORS
from turnlog.consumers.roles import react
from turnlog.consumers.workers import durable_consumer
from turnlog.consumers.workers.app import make_broker, subscribe
from turnlog.consumers.workers.durable_consumer import Delivery, DurableConsumer
from turnlog.events.errors import LogUnavailable, NotFound
from turnlog.events.subjects import STREAM, type_filter

pytestmark = pytest.mark.slow

# The template is valid, but formatting a text as a number fails for every matching event.
BROKEN = """
[rule.lucky_number]
name = "Lucky number"
type = "FACT"
importance = 0.5
en = ['my lucky number is (\\d+)']
content = "Lucky number {value:d}"
"""


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(durable_consumer, "RETRY_S", 0.0)
    file = tmp_path / "rules.toml"
    file.write_text(BROKEN)
    return file


@pytest.fixture
async def play(nats_url: str, database_url: str, rules: Path) -> Play:
    return player(nats_url, database_url, ("projectors", "reactors"), rules_file=rules)


async def parked(stage: Stage, count: int = 1) -> list[DeadLetter]:
    async def are_there() -> bool:
        return len(await list_dead_letters(stage.runtime)) == count

    await eventually(are_there)
    return await list_dead_letters(stage.runtime)


async def test_an_event_on_which_a_reactor_always_fails_is_parked_and_others_go_on(play: Play) -> None:
    async with play() as stage:
        [bad] = await append_texts(stage, "My lucky number is 7.")
        [good] = await append_texts(stage, "I live in Berlin.", user="ben")
        [letter] = await parked(stage)
        await stage.rest(EXTRACTION)
        assert (letter.seq, letter.projection, letter.reason) == (bad, EXTRACTION, "poison")
        assert letter.error.startswith("ValueError: Unknown format code 'd'") and letter.event_type == "turn_recorded"
        assert bad < good and await stored_memories(stage) == [("Lives in Berlin", "valid")]


async def test_the_work_of_a_parked_event_is_repeated_after_the_cause_is_fixed(play: Play, rules: Path) -> None:
    async with play() as stage:
        [bad] = await append_texts(stage, "My lucky number is 7.")
        await parked(stage)
        again = await retry_dead_letters(stage.runtime, partial(react, stage.runtime))
        assert (again.applied, again.parked) == ((), (bad,))
        rules.write_text(BROKEN.replace("{value:d}", "{value}"))
        again = await retry_dead_letters(stage.runtime, partial(react, stage.runtime), bad)
        assert (again.applied, again.parked) == ((bad,), ())
        assert await list_dead_letters(stage.runtime) == []
        await stage.runtime.wait_until_projected()
        assert await stored_memories(stage) == [("Lucky number 7", "valid")]


async def test_a_parked_event_of_a_reactor_is_dropped_for_good(play: Play) -> None:
    async with play() as stage:
        [bad] = await append_texts(stage, "My lucky number is 7.")
        await parked(stage)
        await drop_dead_letter(stage.runtime, bad)
        [letter] = await list_dead_letters(stage.runtime, EXTRACTION)
        assert letter.status == "dropped"
        with pytest.raises(NotFound):
            await retry_dead_letters(stage.runtime, partial(react, stage.runtime), bad)


@pytest.mark.nightly
async def test_the_command_lists_and_retries_what_a_reactor_parked(play: Play, rules: Path, turnlog: Cli) -> None:
    async with play(kek=None) as stage:  # because the command has no KEK
        [bad] = await append_texts(stage, "My lucky number is 7.")
        await parked(stage)
    listed = await turnlog("dead-letters", "list", "--projection", EXTRACTION)
    assert f"{bad}  {EXTRACTION}" in listed.out and "Unknown format code" in listed.out
    shown = (await turnlog("dead-letters", "show", str(bad), "--json")).document
    assert [letter["projection"] for letter in shown["dead_letters"]] == [EXTRACTION]
    refused = await turnlog("dead-letters", "list", "--projection", "nothing", "--json")
    assert refused.error == "not-found"
    retried = await turnlog("dead-letters", "retry")
    assert (retried.code, retried.out) == (0, "1 applied, 0 still parked\n")  # without a rule file
    assert (await turnlog("dead-letters", "list")).out == "no dead letters\n"


async def test_an_unavailable_dependency_parks_nothing_even_after_repeated_failures(play: Play) -> None:
    away = (ModelUnavailable("the model is down"), LogUnavailable("NATS is down"), psycopg.OperationalError("gone"))
    errors, stop = iter(away * durable_consumer.TRIES), asyncio.Event()

    async def work(deliveries: list[Delivery]) -> None:
        if (error := next(errors, None)) is not None:
            raise error

    async with play("projectors") as stage:
        await append_texts(stage, "hello")
        waiting = DurableConsumer(stage.runtime.pool, "another", work)
        broker = make_broker(stage.runtime.nats_url, "test")
        subscribe(broker, type_filter("turn_recorded"), waiting)
        task = asyncio.create_task(waiting.run(stop))
        await broker.start()
        await stage.rest("another")
        stop.set()
        await task
        await broker.stop()
        assert next(errors, None) is None and await list_dead_letters(stage.runtime) == []


async def test_every_consumer_that_may_park_is_known_by_its_name(play: Play) -> None:
    async with play("projectors", "reactors", "agent", "analytics", api_key="k", model="m") as stage:
        consumers = await stage.runtime.log.nc.jetstream().consumers_info(STREAM)
        assert {consumer.config.durable_name for consumer in consumers} - {None} == set(REACTORS)
