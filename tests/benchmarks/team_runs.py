"""Measures an agent's run with three tools, compared with the same workflow in LangGraph with AsyncPostgresSaver."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from langgraph.graph import END, START, StateGraph
from pydantic import SecretStr
from typing_extensions import TypedDict

from tests.benchmarks.langgraph_chat import config
from tests.benchmarks.langgraph_floor import postgres_savers
from tests.benchmarks.measuring import Row, interleaved, milliseconds, ms, quantile, ratio
from tests.benchmarks.served import free_port, started
from tests.benchmarks.stand import Stand
from turnlog.agent.answering.asking import Answered, Solved, ask
from turnlog.agent.privacy.keys.kek import new_kek
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.agent.team.tools import tool
from turnlog.consumers.roles import playing
from turnlog.consumers.runtime import opened
from turnlog.events.contracts import Event, TurnRecorded
from turnlog.events.local_time import now_there

RUNS, P95_MS = 40, 60.0
QUESTION, ANSWER = "Where is my order A101?", "It is on its way."
TEAM = f'name = "shop"\nentry = "desk"\ntools_from = ["{__name__}"]\n'
AGENT = 'name = "Desk"\nprompt = "You look orders up."\ntools = ["find_order", "find_parcel", "find_invoice"]\n'


@tool
def find_order(number: str) -> dict[str, str]:
    """Returns an order."""
    return {"number": number, "item": "blue bicycle"}


@tool
def find_parcel(number: str) -> dict[str, str]:
    """Returns the parcel of an order."""
    return {"number": number, "state": "on its way"}


@tool
def find_invoice(number: str) -> dict[str, str]:
    """Returns the invoice of an order."""
    return {"number": number, "usd": "640"}


FUNCTIONS: dict[str, Callable[..., dict[str, str]]] = {
    "find_order": find_order,
    "find_parcel": find_parcel,
    "find_invoice": find_invoice,
}
CALLS = [
    {"index": at, "id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": '{"number": "A101"}'}}
    for at, name in enumerate(FUNCTIONS)
]


def reply(body: dict[str, Any]) -> tuple[str, bytes]:
    """Returns the model's response: three tool calls, or the answer if the request contains their results. The response
    is a stream if the request asks for one."""
    solved = body["messages"][-1]["role"] == "tool"
    message = {"role": "assistant", "content": ANSWER} if solved else {"role": "assistant", "tool_calls": CALLS}
    finish, usage = "stop" if solved else "tool_calls", {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
    head = {"id": "a", "created": 0, "model": "m"}
    if not body.get("stream"):
        choice = {"index": 0, "message": {"content": None, **message}, "finish_reason": finish}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return "application/json", json.dumps(whole).encode()
    chunk = {**head, "object": "chat.completion.chunk"}
    parts = (
        json.dumps({**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": finish}]}),
        json.dumps({**chunk, "choices": [], "usage": usage}),
        "[DONE]",
    )
    return "text/event-stream", "".join(f"data: {part}\n\n" for part in parts).encode()


async def measure(stand: Stand) -> list[Row]:
    port = free_port()
    code = (
        "import asyncio; from tests.benchmarks.served import answer_at_once; "
        f"from tests.benchmarks.team_runs import reply; asyncio.run(answer_at_once({port}, reply))"
    )
    async with stand.empty_log(), stand.fresh_database() as url, started(code, port=port, token=str):
        model_url = f"http://127.0.0.1:{port}/v1"
        with TemporaryDirectory() as folder:
            (Path(folder) / "team.toml").write_text(TEAM, "utf-8")
            (Path(folder) / "desk.toml").write_text(AGENT, "utf-8")
            settings = Settings(
                _env_file=None,
                kek=SecretStr(new_kek()),
                nats_url=stand.nats_url,
                database_url=url,
                api_base_url=model_url,
                api_key=SecretStr("k"),
                model="m",
                team=folder,
            )
            async with (
                opened(settings, "turnlog-bench") as runtime,
                playing(runtime, ["projectors", "agent"]),
                postgres_savers(url) as savers,
                httpx2.AsyncClient(base_url=model_url, timeout=60) as client,
            ):
                return await _compared(stand, runtime, workflow(client, savers()))


class State(TypedDict, total=False):
    messages: list[dict[str, Any]]


def workflow(client: httpx2.AsyncClient, saver: Any) -> Any:
    """Returns the graph, which saves a checkpoint after each node."""

    async def plan(state: State) -> State:
        asked = {"model": "m", "messages": state["messages"]}
        message = (await client.post("chat/completions", json=asked)).json()["choices"][0]["message"]
        return {"messages": [*state["messages"], message]}

    async def use_tools(state: State) -> State:
        async def result(call: dict[str, Any]) -> dict[str, Any]:
            value = FUNCTIONS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
            return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(value)}

        results = await asyncio.gather(*map(result, state["messages"][-1]["tool_calls"]))
        return {"messages": [*state["messages"], *results]}

    async def solve(state: State) -> State:
        asked, text = {"model": "m", "messages": state["messages"], "stream": True}, ""
        async with client.stream("POST", "chat/completions", json=asked) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        text += choice["delta"]["content"]
        return {"messages": [*state["messages"], {"role": "assistant", "content": text}]}

    graph = StateGraph(State).add_node("plan", plan).add_node("use_tools", use_tools).add_node("solve", solve)
    graph.add_edge(START, "plan").add_edge("plan", "use_tools").add_edge("use_tools", "solve").add_edge("solve", END)
    return graph.compile(checkpointer=saver)


def greeting(user: str) -> Event:
    said = TurnRecorded(role="user", content="Hello.")
    return Event(source="bench", time=now_there(), tenant="default", thread=f"hello-{user}", user=user, data=said)


async def _compared(stand: Stand, runtime: Runtime, graph: Any) -> list[Row]:
    """Measures turnlog and LangGraph alternately. Each run begins a new conversation of a known user. The first round
    is dropped."""
    runs = stand.sized(RUNS, RUNS // 2)
    numbers = itertools.count()
    took: dict[str, list[float]] = {"ours": [], "floor": []}
    await runtime.log.append_many([greeting(f"user-{number}") for number in range(runs * (stand.rounds + 1))])
    await runtime.wait_until_projected()

    async def ours() -> None:
        number = next(numbers)
        pieces = [piece async for piece in ask(runtime, "default", f"run-{number}", QUESTION, user=f"user-{number}")]
        [solved] = [piece for piece in pieces if isinstance(piece, Solved)]
        assert isinstance(pieces[-1], Answered) and pieces[-1].answer == ANSWER and set(solved.tools) == set(FUNCTIONS)

    async def theirs() -> None:
        asked = {"messages": [{"role": "user", "content": QUESTION}]}
        state = await graph.ainvoke(asked, config(f"run-{next(numbers)}"))
        assert state["messages"][-1]["content"] == ANSWER

    async def p50(side: str, run: Callable[[], Awaitable[None]]) -> float:
        times = await milliseconds(run, runs)
        took[side] += times
        return median(times)

    mine, floor = await interleaved(stand.rounds, partial(p50, "ours", ours), partial(p50, "floor", theirs))
    share, spread = ratio(mine, floor)
    p50s, p95s = ([quantile(times[runs:], at) for times in took.values()] for at in (0.5, 0.95))
    mine_shown, floor_shown = (f"{ms(half)} / {ms(most)}" for half, most in zip(p50s, p95s, strict=True))
    aim = f"{ms(P95_MS)} (LangGraph {ms(p95s[1])})"
    return [
        Row("a run with three tools, p50 / p95", mine_shown, floor_shown, share, spread, None, "The ratio is of p50."),
        Row("its p95", ms(p95s[0]), aim, p95s[0] / P95_MS, None, ("<=", 1.0), "The ratio is that to the aim."),
    ]
