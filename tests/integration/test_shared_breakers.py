"""Circuit breakers of two processes on one log open together, and one reset closes both."""

from helpers.servers import eventually
from helpers.stage import MemoryServer, Stage, player

from turnlog.agent.models.calls import Breaker
from turnlog.agent.operations.breakers import list_breakers, reset_breaker
from turnlog.agent.team.configured import server_team


def breakers(stage: Stage) -> dict[str, Breaker]:
    """Returns the breakers of the model and of a tool."""
    server = server_team(stage.runtime)
    assert server is not None
    return {"llm": stage.runtime.models.chat.breaker, "search": server.tools.breakers["search"]}  # type: ignore[attr-defined]


def fail(breaker: Breaker, times: int = 5, asker: str | None = None) -> None:
    for _ in range(times):
        breaker.admit(asker)
        breaker.failed(asker)


async def test_other_processes_follow_a_breaker_also_those_that_begin_later(
    nats_url: str, database_url: str, model: MemoryServer
) -> None:
    play = player(nats_url, database_url, ("agent",), api_base_url=model.url, team="advising")
    async with play() as here, play() as there:
        for service, breaker in breakers(here).items():
            fail(breaker)
            await eventually(lambda of=service: _is(there, of, "open"))
        async with play() as later:
            for service in ("llm", "search"):
                await eventually(lambda of=service: _is(later, of, "open"))
        circuits = {circuit.service: circuit for circuit in await list_breakers(here.runtime)}
        assert "closed" not in (circuits["llm"].state, circuits["search"].state)  # may be half-open on a slow machine
        await reset_breaker(here.runtime, "search")
        assert {listed.service: listed.state for listed in await list_breakers(there.runtime)}["search"] == "closed"
        assert breakers(there)["llm"].state != "closed"


async def test_a_breaker_that_closes_after_its_trials_closes_elsewhere(
    nats_url: str, database_url: str, model: MemoryServer
) -> None:
    play = player(nats_url, database_url, ("agent",), api_base_url=model.url, team="advising")
    async with play() as here, play() as there:
        ours, theirs = breakers(here)["llm"], breakers(there)["llm"]
        fail(ours)
        await eventually(lambda: _is(there, "llm", "open"))
        ours.follow(None)
        ours.follow(31.0)  # after the breaker's 30 s
        for _ in range(2):
            ours.admit()
            ours.succeeded()
        await eventually(lambda: _is(there, "llm", "closed"))
        theirs.admit()
        theirs.released()


async def test_consecutive_failures_count_across_processes(
    nats_url: str, database_url: str, model: MemoryServer
) -> None:
    play = player(nats_url, database_url, ("agent",), api_base_url=model.url, team="advising")
    async with play() as here, play() as there:
        ours, theirs = breakers(here)["search"], breakers(there)["search"]

        async def counts(breaker: Breaker, failures: int) -> bool:
            return breaker.failures == failures

        for breaker, other in ((ours, theirs), (theirs, ours)) * 2:
            fail(breaker, 1)
            await eventually(lambda failed=breaker, other=other: counts(other, failed.failures))
        assert ours.failures == theirs.failures == 4
        theirs.admit()
        theirs.succeeded()
        await eventually(lambda: counts(ours, 0))
        for breaker, other in ((ours, theirs), (theirs, ours)) * 3:  # failures of one person, who may be their cause
            fail(breaker, 1, "default/ann")
            await eventually(lambda failed=breaker, other=other: counts(other, failed.failures))
            if breaker.failures == 2:
                break
        fail(theirs, 2, "default/ann")
        assert (ours.failures, theirs.failures) == (2, 2), "no more than two of hers count for all"
        fail(ours, 3)
        await eventually(lambda: _is(there, "search", "open"))


async def _is(stage: Stage, service: str, state: str) -> bool:
    return breakers(stage)[service].state == state
