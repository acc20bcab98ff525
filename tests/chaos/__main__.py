"""`make chaos`: 20,000 events, 30 kills, a long outage. Exit 1 when anything was lost, doubled, parked or differs."""

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .run import Plan, Result, run

err = Console(stderr=True, highlight=False)


def main() -> int:
    arguments = _arguments()
    home = Path(tempfile.mkdtemp(prefix="turnlog-chaos-"))
    err.print(f"seed {arguments.seed}, home {home}")
    result = asyncio.run(
        _with_progress(home, Plan(arguments.seed, arguments.events, arguments.kills, outage_s=arguments.outage))
    )
    if arguments.json:
        print(json.dumps(asdict(result), ensure_ascii=False, indent=2))
    else:
        Console(highlight=False).print(_table(result))
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
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="repeats a run's plan")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    return parser.parse_args()


async def _with_progress(home: Path, plan: Plan) -> Result:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as bar:
        tasks = {"appending": bar.add_task("appending", total=plan.events)}

        def show(phase: str, done: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=None)
            bar.update(tasks[phase], completed=done)

        return await run(home, plan, show)


def _table(result: Result) -> Table:
    table = Table(title="chaos", show_header=False)
    shown = asdict(result) | {"violations": len(result.violations)}
    for name, value in shown.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) or "none" if isinstance(value, dict) else f"{value:,}"
        table.add_row(name.replace("_", " "), text)
    return table


if __name__ == "__main__":
    sys.exit(main())
