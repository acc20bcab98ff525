"""The measured rows as a table for the terminal and as docs/benchmarks.md."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
from rich.table import Table

from tests.benchmarks.measuring import Row

DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmarks.md"
HEADS = ("what", "turnlog", "floor", "ratio", "target", "met")
PACKAGES = ("nats-py", "psycopg", "pydantic", "langgraph", "langgraph-checkpoint-postgres")
READING = (
    "What a request costs and what it holds are chosen together, by the window. In the rows of tokens the relevant",
    "episodes come first, as in the rows of evidence that say so. On average a quarter of sending everything buys",
    "windows of 1,250 tokens over all 50 requests and of 2,000 for the last, or hybrid history, which has no window;",
    "wider ones cost more, and one that everything fits into costs everything and the schema of a tool. Without the",
    "episodes the tiers are the newest turns and a summary, and at most windows they hold less of the evidence than",
    "the newest turns alone within the same budget. With them (`MEMORY_HYBRID_EPISODES`, `--hybrid`) they hold many",
    "times more at every window. Without them the model has `recall_memory`, whose finds no row counts.",
)


def table(rows: Sequence[Row]) -> Table:
    made = Table(*HEADS)
    for row in rows:
        made.add_row(*_cells(row))
    return made


def document(rows: Sequence[Row], data: str, quick: bool) -> str:
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench`{' (--quick: small numbers of events)' if quick else ''} on "
        f"{datetime.now(UTC):%Y-%m-%d}, from one run on {machine()}. Turns: {data}.",
        "",
        "Every number stands beside a floor that the same run measured on the same servers (a nats-server with",
        "`sync_interval: always`, a Postgres with `fsync` and `synchronous_commit` on, but that projectors do not wait",
        "for its disk: docs/decisions/0014). Where two sides are compared",
        "by rounds, they took turns, a first round was thrown away, and the ratio is the median of the rounds' ratios",
        "with the lowest and the highest behind it. Rates: more is better; times: less is better.",
        "",
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
        *(f"| {' | '.join(_cells(row))} |" for row in rows),
        "",
        *_reading(rows),
        "## How each was measured",
        "",
        *(f"- **{row.what}**: {row.method}" for row in rows),
        "",
        "## Versions",
        "",
        *(f"- {name} {found}" for name in PACKAGES if (found := _version(name))),
        "",
    ]
    return "\n".join(lines)


def _reading(rows: Sequence[Row]) -> list[str]:
    """Where there are rows to read so."""
    if not any(row.what.startswith("evidence in the context") for row in rows):
        return []
    return ["## Tokens and evidence", "", *READING, ""]


def machine() -> str:
    memory = psutil.virtual_memory().total / 1024**3
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores ({_processor()}), {memory:.0f} GB, "
        f"Python {platform.python_version()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    spread = f" ({row.spread[0]:.2f}–{row.spread[1]:.2f})" if row.spread else ""
    target = "" if row.target is None else f"{'≥' if row.target[0] == '>=' else '≤'} {row.target[1]:.2g}"
    met = {True: "yes", False: "**no**", None: ""}[row.met]
    return row.what, row.ours, row.floor, ratio + spread, target, met


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ImportError:  # PackageNotFoundError: the extra is not installed
        return None
