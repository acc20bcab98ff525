"""Compares TurnlogSaver and AsyncPostgresSaver on a LangGraph chat of 200 turns: time, reads and bytes, in one run."""

import itertools
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

from tests.benchmarks.contexts import CHARACTERS, turns
from tests.benchmarks.langgraph_chat import COMPARED, TURNS, Round, Side, config, nothing, settling, talk
from tests.benchmarks.langgraph_floor import postgres_savers
from tests.benchmarks.langgraph_growth import growth, growth_row
from tests.benchmarks.langgraph_sizes import Sizes, sizes
from tests.benchmarks.measuring import Row, interleaved, ms, ratio, seconds
from tests.benchmarks.stand import QUICK_ROUNDS, Stand, following, worker
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.consumers.runtime import connection_pool

CALLS = 20


async def measure(stand: Stand) -> list[Row]:
    texts = itertools.cycle(turns(stand.conversations.texts(20_000)))
    async with (
        stand.empty_log() as log,
        stand.fresh_database() as url,
        connection_pool(url) as pool,
        postgres_savers(url) as theirs,
    ):
        sides = Side(lambda: TurnlogSaver(log, pool), texts), Side(theirs, texts)

        async def rounds(name: str, count: int) -> list[Round]:
            return [await talk(f"{name}-{n}", sides, texts, log, pool) for n in range(count)]

        empty = await sizes(pool, log)
        async with worker(stand, url):
            apart = await rounds("thread", stand.rounds)
            grown = await sizes(pool, log) - empty
            reads = await _reading(stand, sides)
            ours = [await growth(f"ours-{n}", sides[0], texts, settling(log, pool)) for n in range(stand.rounds)]
            floor = [await growth(f"floor-{n}", sides[1], texts, nothing) for n in range(stand.rounds)]
        async with following(log, url):
            within = await rounds("within", QUICK_ROUNDS)
        rows = [*_turn_rows(apart), growth_row(ours, floor), _within_row(within)]
        return [*rows, *reads, *_size_rows(grown, stand.rounds)]


async def _reading(stand: Stand, sides: Sequence[Side]) -> list[Row]:
    def warm(side: Side) -> Callable[[], Awaitable[float]]:
        return lambda: _median_read([side.graph] * CALLS)

    def cold(side: Side) -> Callable[[], Awaitable[float]]:
        return lambda: _median_read([side.fresh() for _ in range(CALLS)])

    kinds = (
        (warm, "the state of 400 messages", "the process has written the thread"),
        (cold, "the same by a fresh saver", "a new saver with nothing in memory for each call"),
    )
    rows = []
    for kind, what, how in kinds:
        mine, floor = await interleaved(stand.rounds, *map(kind, sides))
        factor, spread = ratio(mine, floor)
        method = f"p50 of {CALLS} `aget_state` a round; {how}. Floor: the same graph on AsyncPostgresSaver."
        rows.append(Row(what, ms(median(mine)), ms(median(floor)), factor, spread, ("<=", 0.5), method))
    return rows


async def _median_read(graphs: Sequence[Any]) -> float:
    took = []
    for graph in graphs:
        state: list[Any] = []
        took.append(1000 * await seconds(_read(graph, state)))
        assert len(state) == 2 * TURNS
    return median(took)


async def _read(graph: Any, into: list[Any]) -> None:
    into.extend((await graph.aget_state(config("thread-0"))).values["messages"])


def _turn_rows(rounds: Sequence[Round]) -> list[Row]:
    return [
        _compared(
            "a LangGraph turn at 400 messages",
            [timed.turn for timed in rounds],
            ("<=", 0.6),
            f"`ainvoke` of a graph whose one node answers at once, median of the last {COMPARED} of {TURNS} turns of "
            f"two messages of {CHARACTERS} characters, a new thread for each round, default durability; the sides take "
            "turns, turn by turn; `turnlog worker projectors` runs beside. Floor: the same on AsyncPostgresSaver.",
        ),
        _compared(
            "a turn and every projection of it",
            [(timed.seen[0], timed.turn[1]) for timed in rounds],
            None,
            "As above, until every read model has it, for which no turn of a graph waits.",
        ),
    ]


def _within_row(rounds: Sequence[Round]) -> Row:
    how = "As above, with the projectors in the graph's own process, as `TurnlogSaver.open` runs them."
    return _compared("a turn, projectors in its process", [timed.turn for timed in rounds], None, how)


def _compared(what: str, pairs: Sequence[tuple[float, float]], target: tuple[str, float] | None, how: str) -> Row:
    mine, floor = _sides(pairs)
    factor, spread = ratio(mine, floor)
    return Row(what, ms(median(mine)), ms(median(floor)), factor, spread, target, how)


def _size_rows(grown: Sizes, threads: int) -> list[Row]:
    how = (
        "Growth of `pg_total_relation_size` (indexes and TOAST included) per thread, after VACUUM FULL, over "
        f"{threads} threads of 400 messages. "
    )
    floor = _kilobytes(grown.theirs, threads)
    return [
        Row(
            "Postgres bytes of such a thread",
            _kilobytes(grown.state, threads),
            floor,
            grown.state / grown.theirs,
            None,
            ("<=", 0.2),
            how + "Ours: `messages`, `checkpoint*`, `event_ids`. Floor: AsyncPostgresSaver's tables.",
        ),
        Row(
            "the same with the log",
            _kilobytes(grown.state + grown.log, threads),
            floor,
            (grown.state + grown.log) / grown.theirs,
            None,
            None,
            f"With {_kilobytes(grown.log, threads)} a thread in the stream, by JetStream's own count.",
        ),
        Row(
            "the same with every read model",
            _kilobytes(grown.all + grown.log, threads),
            floor,
            (grown.all + grown.log) / grown.theirs,
            None,
            None,
            "With chunks and keywords for recall, episodes, activity and the rest; AsyncPostgresSaver has none of it.",
        ),
    ]


def _sides(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def _kilobytes(size: int, threads: int) -> str:
    return f"{size / threads / 1000:,.0f} kB"
