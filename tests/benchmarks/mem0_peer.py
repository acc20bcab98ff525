"""Measures adding and searching messages with `turnlog.open()` and with mem0, with the same texts and vectors.

mem0 needs another version of protobuf than turnlog. `make bench` therefore installs it in a separate environment.
Without that environment only turnlog is measured.
"""

import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import SecretStr

import turnlog
from tests.benchmarks.measuring import Row, milliseconds, ms, per_second, quantile
from tests.benchmarks.served import free_port, started
from tests.benchmarks.stand import Stand, fill
from turnlog import Memory
from turnlog.agent.operations.lag import embedding_backlog
from turnlog.agent.privacy.keys.kek import new_kek

INTERPRETER = Path(sys.prefix) / "mem0" / "bin" / "python"
MESSAGES, QUERIES, BACKLOG = 2_000, 60, 30_000
SETTLED_S = 120.0
ADD_MS, RECALL_MS = 6.0, 20.0
_PROGRAM = Path(__file__).with_name("mem0_program.py")
Took = list[float]


async def measure(stand: Stand) -> list[Row]:
    texts = [text for text in stand.conversations.texts(6 * MESSAGES) if len(text) > 25]
    said, queries = texts[: stand.sized(MESSAGES, MESSAGES // 5)], texts[-QUERIES:]
    port = free_port()
    code = f"import asyncio; from tests.benchmarks.served import answer_at_once; asyncio.run(answer_at_once({port}))"
    async with started(code, port=port, token=str):
        url = f"http://127.0.0.1:{port}/v1"
        theirs = await _mem0(url, said, queries)
        ours, busy = await _turnlog(stand, url, said, queries)
    return [
        _row("a message added", ours["add"], theirs["add"], None),
        _row("a search over them", ours["search"], theirs["search"], None),
        _row("a message added, beside a backlog of the embedder", busy["add"], theirs["add"], ADD_MS),
        _row("a search, beside a backlog of the embedder", busy["search"], theirs["search"], RECALL_MS),
    ]


async def _mem0(url: str, texts: Sequence[str], queries: Sequence[str]) -> dict[str, Took]:
    if not INTERPRETER.exists():
        return {"add": [], "search": []}
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            INTERPRETER, _PROGRAM, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        request = {"url": url, "folder": folder, "texts": texts, "queries": queries}
        said, _ = await process.communicate(json.dumps(request).encode())
        assert process.returncode == 0
        took: dict[str, Took] = json.loads(said)
        return took


async def _turnlog(
    stand: Stand, url: str, texts: Sequence[str], queries: Sequence[str]
) -> tuple[dict[str, Took], dict[str, Took]]:
    """Returns the durations of calls in an idle process, and of calls while the process also embeds a backlog."""
    async with (
        stand.empty_log(),
        stand.fresh_database() as database_url,
        turnlog.open(
            nats_url=stand.nats_url,
            database_url=database_url,
            embedding_base_url=url,
            embedding_model="m",
            kek=SecretStr(new_kek()),
        ) as memory,
    ):
        ours = {"add": await _added(memory, texts)}
        await _at_rest(memory)
        ours["search"] = await _searched(memory, queries)
        await fill(
            memory.runtime.log,
            itertools.islice(stand.conversations.events(BACKLOG), stand.sized(BACKLOG, BACKLOG // 5)),
        )
        await memory.runtime.wait_until_projected(SETTLED_S)  # otherwise reads would wait for the projectors
        busy = {"search": await _searched(memory, queries), "add": await _added(memory, texts[: len(texts) // 4])}
        assert (await embedding_backlog(memory.runtime)).texts, "the backlog was too short"
        return ours, busy


async def _at_rest(memory: Memory) -> None:
    async with asyncio.timeout(SETTLED_S):
        await memory.settled("ann", SETTLED_S)
        while (await embedding_backlog(memory.runtime)).texts:
            await asyncio.sleep(0.2)


async def _added(memory: Memory, texts: Sequence[str]) -> Took:
    thread, left = memory.thread("talk", user="ann"), iter(texts)
    return await milliseconds(lambda: thread.add("user", next(left)), len(texts))


async def _searched(memory: Memory, queries: Sequence[str]) -> Took:
    left = iter(queries)
    return await milliseconds(lambda: memory.recall(next(left), user="ann", k=5), len(queries))


def _row(what: str, ours: Took, theirs: Took, bound_ms: float | None) -> Row:
    p95 = quantile(ours, 0.95)
    return Row(
        what,
        _shown(ours),
        _shown(theirs) if theirs else "not installed",
        p95 / bound_ms if bound_ms else p95 / quantile(theirs, 0.95) if theirs else None,
        None,
        ("<=", 1.0) if bound_ms else None,
        f"p50 / p95. Aim of p95: {bound_ms:g} ms." if bound_ms else "p50 / p95, and the ratio of the p95.",
    )


def _shown(took: Took) -> str:
    return f"{ms(quantile(took, 0.5))} / {ms(quantile(took, 0.95))}, {per_second(1000 * len(took) / sum(took))}"
