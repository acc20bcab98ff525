"""Formats the measured rows as a table for the terminal and as docs/benchmarks.md."""

import os
import platform
import re
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
from rich.table import Table

from tests.benchmarks.measuring import Row
from tests.benchmarks.sections import SECTIONS

DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmarks.md"
HEADS = ("what", "turnlog", "floor", "ratio", "target")
PACKAGES = ("nats-py", "psycopg", "pydantic", "langgraph", "langgraph-checkpoint-postgres")
_NEWEST = re.compile(r"full ([0-9.]+ % \([0-9,]+\))")
COLUMNS = ("newest turns", "tiers", "tiers, relevant episodes first")


def table(rows: Sequence[Row]) -> Table:
    made = Table(*HEADS)
    for row in rows:
        made.add_row(*_cells(row))
    return made


def document(measured: Mapping[str, Sequence[Row]], data: str, quick: bool) -> str:
    """Returns the text of docs/benchmarks.md. measured: the rows of each benchmark, by its name in the catalogue."""
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench`{' (--quick: small numbers of events)' if quick else ''} on "
        f"{datetime.now(UTC):%Y-%m-%d}, on {machine()}. Turns: {data}.",
        "",
        "Every number has a floor that the same run measured on the same servers: a nats-server with",
        "`sync_interval: always` and a Postgres with `fsync`. Two sides that are compared take turns; the ratio is the",
        "median of the rounds' ratios, with the lowest and the highest. Rates: more is better; times: less is better.",
        "",
    ]
    for section in SECTIONS:
        rows = [row for name in section.names for row in measured.get(name, ())]
        lines += [f"## {section.title}", "", *textwrap.wrap(section.method, 118), ""]
        lines += [*(_windows(rows) if "evidence" in section.names else _rows(rows)), ""]
    versions = ", ".join(f"{name} {installed}" for name in PACKAGES if (installed := _version(name)))
    return "\n".join([*lines, f"Versions: {versions}.", ""])


def _rows(rows: Sequence[Row]) -> list[str]:
    return [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}", *(f"| {' | '.join(_cells(row))} |" for row in rows)]


def _windows(rows: Sequence[Row]) -> list[str]:
    """Returns the lines of a table: tokens and evidence for each context window. Rows without a window come last."""
    lines_by_window: dict[str, dict[str, str]] = {}
    for row in rows:
        what, _, kind = row.what.partition(": ")
        window = re.search(r"window ([0-9,]+)", row.what)
        line = lines_by_window.setdefault(window[1] if window else kind or "hybrid history (3 turns, 3 episodes)", {})
        if what.startswith("evidence"):
            line[kind or "tiers"] = row.ours
            line["newest turns"] = (match[1] if (match := _NEWEST.match(row.floor)) else "") if window else ""
        else:
            line[what] = _cells(row)[3].partition(" ")[0]
    heads = ("tokens of 50 requests together", "tokens of the request of turn 50", *COLUMNS)
    shown = ("window", "tokens, 50 requests", "tokens, the last", *(f"evidence: {name}" for name in COLUMNS))
    lines = [f"| {' | '.join(shown)} |", f"|{'---|' * len(shown)}"]
    return lines + [
        f"| {name} | " + " | ".join(line.get(head, "") for head in heads) + " |"
        for name, line in lines_by_window.items()
    ]


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
    met = {True: " met", False: " **missed**", None: ""}[row.met]
    return row.what, row.ours, row.floor, ratio + spread, target + met


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ImportError:  # PackageNotFoundError if the extra is not installed
        return None
