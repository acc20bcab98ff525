"""Runs the conformance suite of the Model Context Protocol against the server (`make clients`)."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from helpers.api import Serve
from installed import node, with_packages

HERE = Path(__file__).parent
SUITE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_mcp_conforms_to_a_revision_except_for_the_baseline(serve: Serve, revision: str, tmp_path: Path) -> None:
    """The baseline lists the scenarios that fail. A listed scenario that passes fails the test, too."""
    folder = with_packages(tmp_path)
    shutil.copy(HERE / "programs/with_token.mjs", folder)
    known = yaml.safe_load((HERE / "mcp_baseline.yml").read_text("utf-8"))
    expected = {"server": known["every revision"] + known.get(revision, [])}
    (folder / "baseline.yml").write_text(yaml.safe_dump(expected), "utf-8")
    async with serve() as api:
        command = [node(), "--import", "./with_token.mjs", SUITE, "server", "--url", f"{api.url}/mcp"]
        command += ["--spec-version", revision, "--expected-failures", "baseline.yml"]
        environment = {"TURNLOG_KEY": api.token(), "HOME": str(folder)}
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=folder, env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout + done.stderr
