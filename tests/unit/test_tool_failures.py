"""Tests tools whose service fails: the kinds of failures, and a breaker for each service."""

import asyncio
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from helpers.servers import eventually

from turnlog.agent import metrics
from turnlog.agent.models.errors import ModelQuotaExceeded
from turnlog.agent.team.local_pages import LocalPages
from turnlog.agent.team.plans import Result
from turnlog.agent.team.teams import Agent
from turnlog.agent.team.tool_failures import Unavailable, category_of_failure
from turnlog.agent.team.tool_registry import MAY_BE_DONE, Registry, registry_of
from turnlog.agent.team.tools import Mistake, Use, tool

calls: list[str] = []


def use(asker: str | None = None) -> Use:
    return Use("bob", datetime.now(UTC), uuid.uuid4(), None, LocalPages("none", []), asker=asker)  # type: ignore[arg-type]


@tool(retries=0, service="orders")
async def find_order(number: str) -> str:
    """Finds an order."""
    calls.append(number)
    if number == "unknown":
        raise Mistake("there is no such order")
    if number == "slow":
        await asyncio.sleep(60)
    raise ConnectionError("orders are away")


@tool(retries=0, service="orders")
async def list_orders() -> list[str]:
    """Lists orders."""
    calls.append("list")
    return []


@tool
async def write_letter() -> str:
    """Writes a letter with the model."""
    calls.append("letter")
    raise ModelQuotaExceeded("no credit")


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


def registry() -> Registry:
    return registry_of([find_order, list_orders, write_letter])


AGENT = Agent(type="desk", name="Desk", prompt="p", tools=("find_order", "list_orders", "write_letter"))


async def called(tools: Registry, name: str, asker: str | None = None, **arguments: Any) -> Any:
    return (await tools.call(AGENT, name, arguments, use(asker))).value


async def test_after_five_failures_no_tool_of_the_service_is_called() -> None:
    tools = registry()
    for asker in "abcde":
        failed = await called(tools, "find_order", asker, number="A1")
        assert failed["category"] == "network"
    held_back = await called(tools, "list_orders", "f")
    assert held_back["category"] == "circuit_open" and "was not called" in held_back["error"]
    assert calls == ["A1"] * 5 and metrics.breakers()["orders"] == "open"
    assert tools.breakers["tool:write_letter"].state == "closed"
    tools.breakers["orders"].reset()
    assert await called(tools, "list_orders", "f") == []


async def test_one_person_alone_does_not_close_a_service_to_others() -> None:
    tools = registry()
    for _ in range(5):
        await called(tools, "find_order", "ann", number="A1")
    assert (await called(tools, "list_orders", "ann"))["category"] == "circuit_open"
    assert await called(tools, "list_orders", "bob") == []


async def test_a_mistake_does_not_count_as_a_failure_of_the_service() -> None:
    tools = registry()
    for asker in "abcdefg":
        assert await called(tools, "find_order", asker, number="unknown") == {"error": "there is no such order"}
    assert tools.breakers["orders"].state == "closed"


async def test_a_cancelled_call_does_not_count_as_a_failure_of_the_service() -> None:
    tools = registry()
    for asker in "abcdefg":
        task = asyncio.create_task(called(tools, "find_order", asker, number="slow"))
        while not calls:
            await asyncio.sleep(0)
        calls.clear()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert tools.breakers["orders"].state == "closed"


async def test_a_failure_of_the_model_is_not_retried_by_the_tool() -> None:
    tools = registry()
    for asker in "abcdef":
        assert (await called(tools, "write_letter", asker))["category"] == "quota"
    assert len(calls) == 6 and tools.breakers["tool:write_letter"].state == "closed"


REQUEST = httpx2.Request("GET", "http://example.test")


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (TimeoutError(), "timeout"),
        (httpx2.ReadTimeout("x"), "timeout"),
        (httpx2.ConnectError("x"), "network"),
        (ConnectionRefusedError(), "network"),
        (httpx2.HTTPStatusError("x", request=REQUEST, response=httpx2.Response(429)), "rate_limit"),
        (httpx2.HTTPStatusError("x", request=REQUEST, response=httpx2.Response(402)), "quota"),
        (httpx2.HTTPStatusError("x", request=REQUEST, response=httpx2.Response(500)), "network"),
        (ModelQuotaExceeded("x"), "quota"),
        (ZeroDivisionError(), "unknown"),
    ],
)
def test_failures_have_the_categories_of_answers(error: Exception, category: str) -> None:
    assert category_of_failure(error) == category


def alone(function: Callable[..., Any]) -> tuple[Registry, Agent]:
    """Returns a registry with one tool, and an agent that may use it."""
    return registry_of([function]), Agent(type="a", name="A", prompt="p", tools=(function.__name__,))


def error_of(result: Result) -> str:
    assert result.is_error
    return str(result.value["error"])


async def test_a_writing_tool_that_times_out_is_reported_as_possibly_done() -> None:
    @tool(timeout_s=0.01, writes=True)
    async def pay() -> None:
        """Never ends."""
        await asyncio.Event().wait()

    @tool(writes=True)
    async def post() -> None:
        """Hears nothing from its server."""
        raise httpx2.ReadTimeout("silence")

    @tool(writes=True)
    async def order() -> None:
        """Loses the connection."""
        raise httpx2.RemoteProtocolError("the peer closed the connection")

    @tool(writes=True)
    async def save() -> None:
        """Fails in the middle."""
        raise RuntimeError("anything")

    for function, why in (
        (pay, "pay did not answer within 0.01 s"),
        (post, "post failed (ReadTimeout)"),
        (order, "order failed (RemoteProtocolError)"),
        (save, "save failed (RuntimeError)"),
    ):
        registry, agent = alone(function)
        assert error_of(await registry.call(agent, function.__name__, "{}", use())) == f"{why}, {MAY_BE_DONE}"


async def test_a_failure_before_any_write_is_not_reported_as_possibly_done() -> None:
    @tool(writes=True)
    async def polish() -> None:
        """Asks the model first."""
        raise ModelQuotaExceeded("no credit")

    @tool(writes=True)
    async def book() -> None:
        """Finds no server."""
        raise Unavailable("no route", may_be_done=False)

    for function in (polish, book):
        registry, agent = alone(function)
        assert MAY_BE_DONE not in error_of(await registry.call(agent, function.__name__, "{}", use()))


async def test_a_call_does_not_begin_while_an_abandoned_one_may_still_write() -> None:
    begun, may_end, done = list[int](), threading.Event(), list[int]()

    @tool(writes=True, timeout_s=0.05)
    def pay(usd: int) -> int:
        """Pays slowly."""
        begun.append(usd)
        may_end.wait()
        done.append(usd)
        return usd

    @tool(writes=True)
    async def tell() -> None:
        """Tells the bank."""

    registry = registry_of([pay, tell])
    agent = Agent(type="a", name="A", prompt="p", tools=("pay", "tell"))
    try:
        assert error_of(await registry.call(agent, "pay", {"usd": 1}, use())).endswith(MAY_BE_DONE)
        refused = error_of(await registry.call(agent, "pay", {"usd": 1}, use()))
        assert refused == f"pay was not called: an earlier call of pay has not ended yet, {MAY_BE_DONE}"
        assert "pay has not ended yet" in error_of(await registry.call(agent, "tell", {}, use()))
        of_another = replace(use(), user="another")
        assert not (await registry.call(agent, "tell", {}, of_another)).is_error
        assert error_of(await registry.call(agent, "pay", {"usd": 2}, of_another)).endswith(MAY_BE_DONE)
    finally:
        may_end.set()

    async def both_ended() -> bool:
        return sorted(done) == [1, 2]

    await eventually(both_ended)
    assert sorted(begun) == [1, 2]

    async def begins_again() -> bool:
        await registry.call(agent, "pay", {"usd": 3}, use())
        return 3 in begun

    await eventually(begins_again)
