"""The TypeScript example of docs/typescript: its types fit, and it runs (`make clients`)."""

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.api import Serve
from installed import node, with_packages

EXAMPLE = Path(__file__).parents[2] / "docs/typescript"
COMPILER = "node_modules/typescript/bin/tsc"
STRICT = ["--strict", "--noEmit", "--allowImportingTsExtensions", "--erasableSyntaxOnly", "--skipLibCheck"]
MODULES = ["--target", "esnext", "--module", "nodenext", "--moduleResolution", "nodenext"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example where Node finds its packages."""
    return Path(shutil.copytree(EXAMPLE, with_packages(tmp_path), dirs_exist_ok=True))


async def run(folder: Path, *words: Any, **environment: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run, [node(), *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_the_example_has_no_type_errors(folder: Path) -> None:
    (folder / "node.d.ts").write_text("declare const process: { env: Record<string, string | undefined> };\n", "utf-8")
    await run(folder, COMPILER, *STRICT, *MODULES, "example.ts", "node.d.ts")


async def test_the_example_appends_recalls_and_streams_an_answer(serve: Serve, folder: Path) -> None:
    async with serve("agent") as api:
        said = await run(folder, "example.ts", TURNLOG_URL=api.url, TURNLOG_KEY=api.token())
    assert said.startswith("appended 2\ncontext true\nrecalled My corgi is called Sesame.\nanswered ")
    assert "Sesame" in said.rpartition("answered ")[2]
