"""Defines the LangGraph application that both savers are measured with: one node that answers at once."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from langgraph.graph import END, START, MessagesState, StateGraph

from tests.benchmarks.measuring import seconds
from turnlog.agent.runtime import Pool
from turnlog.events.log import Log
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.models.registry import BY_NAME

TURNS, COMPARED = 200, 10
MakeSaver = Callable[[], Any]
Settle = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Side:
    """One saver with the common graph. took: the seconds of each turn of a thread. seen: the seconds until the turn is
    visible."""

    make_saver: MakeSaver
    answers: Iterator[str]
    graph: Any = None
    took: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = self.fresh()

    def fresh(self) -> Any:
        """Returns the graph on a new saver without cached data."""
        return chat(self.make_saver(), self.answers)

    async def say(self, thread: str, text: str, settle: Settle) -> None:
        self.took.append(await seconds(self.graph.ainvoke({"messages": [("user", text)]}, config(thread))))
        self.seen.append(self.took[-1] + await seconds(settle()))

    @property
    def at_the_end(self) -> float:
        """Returns the milliseconds per turn at 400 messages."""
        return 1000 * median(self.took[-COMPARED:])

    @property
    def seen_at_the_end(self) -> float:
        return 1000 * median(self.seen[-COMPARED:])


@dataclass(frozen=True, slots=True)
class Round:
    """The results for one thread of 400 messages, for turnlog and AsyncPostgresSaver; times in milliseconds."""

    turn: tuple[float, float]
    seen: tuple[float, float]


def chat(saver: Any, answers: Iterator[str]) -> Any:
    """Returns a graph of one node that answers at once with the next text."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("assistant", next(answers))]}

    graph = StateGraph(MessagesState).add_node("agent", answer).add_edge(START, "agent").add_edge("agent", END)
    return graph.compile(checkpointer=saver)


async def talk(thread: str, sides: Sequence[Side], texts: Iterator[str], log: Log, pool: Pool) -> Round:
    """Runs TURNS turns on both sides alternately. Turnlog's turn is projected before the next turn begins."""
    for side in sides:
        side.took, side.seen = [], []
    settles = (settling(log, pool), nothing)
    for number in range(TURNS):
        for at in (0, 1) if number % 2 else (1, 0):
            await sides[at].say(thread, next(texts), settles[at])
    ours, theirs = sides
    return Round((ours.at_the_end, theirs.at_the_end), (ours.seen_at_the_end, theirs.seen_at_the_end))


def settling(log: Log, pool: Pool) -> Settle:
    """Returns a function that waits until every read model has applied the entire log."""

    async def settle() -> None:
        async with pool.connection() as conn:
            await wait_for(conn, tuple(BY_NAME), 0, await log.partition_head(0))

    return settle


async def nothing() -> None:
    """Does nothing, because a row that Postgres has committed is visible at once."""


def config(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}
