"""`make chaos`: 20,000 events, 30 kills, a long outage; then 100 runs of a team, whose worker is killed 60 times.

Exits with 1 if any event was lost, duplicated or parked, or if rows differ from a rebuild.
"""

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import runs
from .gate import OnProgress
from .run import Plan, Result, run

Part = Callable[[Path, OnProgress], Awaitable[Result | runs.RunsResult]]
err = Console(stderr=True, highlight=False)


def main() -> int:
    arguments = _arguments()
    plan = Plan(arguments.seed, arguments.events, arguments.kills, outage_s=arguments.outage)
    parts: dict[str, Part] = {
        "events": lambda home, progress: run(home, plan, progress),
        "runs": lambda home, progress: runs.run(home, plan.seed, arguments.runs, arguments.run_kills, progress),
    }
    return max(_judged(name, part, arguments) for name, part in parts.items() if name not in arguments.without)


def _judged(name: str, part: Part, arguments: argparse.Namespace) -> int:
    home = Path(tempfile.mkdtemp(prefix="turnlog-chaos-"))
    err.print(f"{name}: seed {arguments.seed}, home {home}")
    result = asyncio.run(_with_progress(home, part))
    if arguments.json:
        print(json.dumps(asdict(result), ensure_ascii=False, indent=2))
    else:
        Console(highlight=False).print(_table(name, result))
    for violation in result.violations:
        err.print(violation, style="red", markup=False)
    if result.violations:
        err.print(f"the data folder with all logs stays for a look: {home}")
        return 1
    shutil.rmtree(home)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--outage", type=float, default=30.0, help="seconds both servers are away after the kills")
    parser.add_argument("--runs", type=int, default=100, help="runs of a team")
    parser.add_argument("--run-kills", type=int, default=60, help="how often their worker is killed")
    parser.add_argument("--without", choices=("events", "runs"), action="append", default=[], help="leaves a part out")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="repeats a run's plan")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    return parser.parse_args()


async def _with_progress(home: Path, part: Part) -> Result | runs.RunsResult:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as bar:
        tasks = dict[str, TaskID]()

        def show(phase: str, done: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=None)
            bar.update(tasks[phase], completed=done)

        return await part(home, show)


def _table(name: str, result: Result | runs.RunsResult) -> Table:
    table = Table(title=f"chaos: {name}", show_header=False)
    shown = asdict(result) | {"violations": len(result.violations)}
    for name, value in shown.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) or "none" if isinstance(value, dict) else f"{value:,}"
        table.add_row(name.replace("_", " "), text)
    return table


if __name__ == "__main__":
    sys.exit(main())
