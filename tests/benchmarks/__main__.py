"""python -m tests.benchmarks [NAME...] [--data DIR] [--quick]: measures, prints a table, writes docs/benchmarks.md.

With names, measures only these benchmarks and does not write the document, which shows one complete run.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.benchmarks.catalogue import BENCHMARKS
from tests.benchmarks.catalogue import measured as measured_by
from tests.benchmarks.conversations import DEFAULT_FOLDER, Conversations
from tests.benchmarks.measuring import Row
from tests.benchmarks.report import DOCUMENT, document, table
from tests.benchmarks.stand import standing

out, err = Console(width=None if sys.stdout.isatty() else 160), Console(stderr=True)


def main() -> int:
    """Returns 1 if a target was missed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER, help="the folder with irc.jsonl.gz")
    parser.add_argument("--quick", action="store_true", help="fewer events and rounds")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in the command; the measuring processes inherit it
    conversations = Conversations(arguments.data)
    measured = asyncio.run(_measure(arguments.names or list(BENCHMARKS), conversations, arguments.quick))
    rows = [row for part in measured.values() for row in part]
    out.print(table(rows))
    if not arguments.names:
        DOCUMENT.write_text(document(measured, conversations.described, arguments.quick), "utf-8")
        err.print(f"wrote {DOCUMENT}", markup=False)
    return int(any(row.met is False for row in rows))


async def _measure(names: Sequence[str], conversations: Conversations, quick: bool) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    async with standing(conversations, quick) as stand:
        for name in names:
            err.print(f"measuring {name} …", markup=False)
            rows[name] = await measured_by(name, stand)
    return rows


if __name__ == "__main__":
    sys.exit(main())
