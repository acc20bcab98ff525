"""Checks that third-party linters and client generators accept the OpenAPI document (`make clients`)."""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.api import Serve
from installed import HOME, PYTHON, node, with_packages

from turnlog.consumers.api.app import document

TYPESCRIPT = {
    "strict": True,
    "target": "esnext",
    "module": "nodenext",
    "types": [],
    "outDir": "js",
    "noEmitOnError": True,
}
USE_PYTHON = """
import os
from turnlog_client import AuthenticatedClient
from turnlog_client.api.threads import list_threads
from turnlog_client.api.turns import append_turns
from turnlog_client.models import Turns

client = AuthenticatedClient(os.environ["TURNLOG_URL"], os.environ["TURNLOG_KEY"], raise_on_unexpected_status=True)
turns = Turns.from_dict({"turns": [{"role": "user", "content": "hello"}]})
append_turns.sync("generated", client=client, body=turns)
print([thread.thread for thread in list_threads.sync(client=client).items])
"""
HEY = {"input": "openapi.json", "output": {"path": "hey", "importFileExtension": ".js"}}
USE_HEY = """
import { createClient } from "./hey/client/index.js";
import { appendTurns, listThreads } from "./hey/index.js";

const client = createClient({ baseUrl: process.env.TURNLOG_URL, auth: () => process.env.TURNLOG_KEY });
const body = { turns: [{ role: "user" as const, content: "hello" }] };
await appendTurns({ client, path: { thread: "generated" }, body, throwOnError: true });
const { data } = await listThreads({ client, throwOnError: true });
console.log(JSON.stringify(data.items.map((thread) => thread.thread)));
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "openapi.json").write_text(json.dumps(document()), "utf-8")
    return with_packages(tmp_path)


async def run(folder: Path, *words: Any, **environment: str) -> str:
    """Runs a command, which must succeed, and returns its output."""
    variables = {"HOME": str(folder), "PATH": f"{HOME}/bin", "REDOCLY_TELEMETRY": "off", **environment}
    variables |= {"REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    done = await asyncio.to_thread(
        subprocess.run, [*map(str, words)], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def package(name: str, *words: str) -> Sequence[Any]:
    return node(), f"node_modules/{name}", *words


async def test_redocly_finds_no_error(folder: Path) -> None:
    said = await run(folder, *package("@redocly/cli/bin/cli.js", "lint", "openapi.json", "--format", "json"))
    totals = json.loads(said[said.index("{") : said.rindex("}") + 1])["totals"]
    assert (totals["errors"], totals["warnings"]) == (0, 0), said


async def test_spectral_finds_nothing(folder: Path) -> None:
    (folder / ".spectral.yaml").write_text('extends: ["spectral:oas"]\n', "utf-8")
    words = ("lint", "openapi.json", "--ruleset", ".spectral.yaml", "--fail-severity", "hint")
    await run(folder, *package("@stoplight/spectral-cli/dist/index.js", *words))


async def test_openapi_python_client_makes_a_client_that_works(serve: Serve, folder: Path) -> None:
    generator = [HOME / "bin/openapi-python-client", "generate", "--path", "openapi.json", "--output-path", "made"]
    assert "WARNING" not in await run(folder, *generator, "--fail-on-warning")
    (folder / "made/use.py").write_text(USE_PYTHON, "utf-8")
    async with serve() as api:
        said = await run(folder, PYTHON, "made/use.py", TURNLOG_URL=api.url, TURNLOG_KEY=api.token())
    assert said == "['generated']\n"


async def test_hey_api_makes_a_client_that_compiles_and_works(serve: Serve, folder: Path) -> None:
    (folder / "package.json").write_text('{"type": "module"}', "utf-8")
    (folder / "tsconfig.json").write_text(
        json.dumps({"compilerOptions": TYPESCRIPT, "include": ["*.ts", "hey"]}), "utf-8"
    )
    (folder / "node.d.ts").write_text("declare const process: { env: Record<string, string | undefined> };\n", "utf-8")
    (folder / "use.ts").write_text(USE_HEY, "utf-8")
    (folder / "openapi-ts.config.mjs").write_text(f"export default {json.dumps(HEY)};", "utf-8")
    await run(folder, *package("@hey-api/openapi-ts/bin/run.js"))
    await run(folder, *package("typescript/bin/tsc", "-p", "."))
    async with serve() as api:
        said = await run(folder, node(), "js/use.js", TURNLOG_URL=api.url, TURNLOG_KEY=api.token())
    assert json.loads(said) == ["generated"]
