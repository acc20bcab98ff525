"""python -m tests.benchmarks.junk [--data DIR] [--show]: checks the memories that the rules extract from MemoryBank,
English and Chinese.

Imports both files into separate servers, extracts memories and checks them: every memory must quote its turn, less than
2 % may be duplicates, and none may come from the assistant. --show prints each memory with its quote for inspection.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of the tests' own modules, as in pytest

from helpers.memory_quality import Quality, stored_quality

from tests.benchmarks.conversations import DEFAULT_FOLDER
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened, projecting

FILES = ("memorybank-en.json", "memorybank-cn.json")
MOST_DUPLICATES = 0.02
out = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Returns 0 if all three conditions are met, 1 if not, 2 if the files are missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.junk", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER, help="the folder with the files of MemoryBank")
    parser.add_argument("--show", action="store_true", help="print every memory with its quote")
    arguments = parser.parse_args()
    files = [arguments.data / name for name in FILES]
    if missing := [file.name for file in files if not file.exists()]:
        out.print(f"left out: {', '.join(missing)} not in {arguments.data}", markup=False)
        return 2
    quality = asyncio.run(_measured(files))
    for memory in quality.memories if arguments.show else ():
        out.print(f"{memory.user:<12} {memory.kind:<10} {memory.content}\n{'':<24}“{memory.quote}”", markup=False)
    out.print(
        f"{len(quality.memories)} memories; quoted {quality.with_quote:.1%}, twice {quality.duplicates:.1%}, "
        f"of others than the user {quality.of_others:.1%}",
        markup=False,
    )
    return int(quality.with_quote < 1 or quality.duplicates >= MOST_DUPLICATES or quality.of_others > 0)


async def _measured(files: list[Path]) -> Quality:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # the database runs as a different user
        settings = Settings(home=Path(folder), api_key=None, api_base_url=None)
        async with opened(settings, "junk") as runtime, projecting(runtime):
            return await stored_quality(runtime, files)


if __name__ == "__main__":
    sys.exit(main())
