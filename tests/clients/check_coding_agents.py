"""Runs unmodified Claude Code and Codex with turnlog's hooks and its printed MCP configuration (`make clients`)."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from helpers.api import Api, Serve
from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from helpers.json_server import answering
from helpers.key_rings import KEK
from helpers.markdown_examples import blocks
from helpers.servers import eventually
from helpers.stage import MemoryServer
from installed import HOME, node

from turnlog.agent.access.api_keys import create_key
from turnlog.consumers.cli.hooks import command_of, configuration_of, with_hooks

CLAUDE, CODEX = "@anthropic-ai/claude-code/cli-wrapper.cjs", "@openai/codex/bin/codex.js"
DOG, TEA = "My corgi is called Sesame.", "Ann likes tea."
ANSWER = {
    **{
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hi."}],
    },
    **{"stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}},
}


async def run(folder: Path, program: str, *words: str, **environment: str) -> str:
    """Runs an agent with this folder as its home directory. Returns its standard output."""
    quiet = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "MCP_TIMEOUT": "120000"}
    done = await asyncio.to_thread(
        subprocess.run,
        [node(), HOME / "node_modules" / program, *words],
        cwd=folder,
        env={"HOME": str(folder), "PATH": os.environ["PATH"], **quiet, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def add_hooks(api: Api, agent: str, folder: Path, settings: Path) -> None:
    key = await create_key(api.runtime, api.runtime.settings.tenant, "ann", "user", ["read", "write"])
    path = folder / f"{agent}.json"
    path.write_text(json.dumps(configuration_of(agent, api.url, key.key)), "utf-8")
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps(with_hooks({}, command_of(path))), "utf-8")


async def is_captured(api: Api, *said: str) -> None:
    """Waits until ann's only conversation consists of exactly these turns."""

    async def shown() -> bool:
        async with api.client() as ann:
            for thread in (await ann.get("/api/threads")).json()["items"]:
                turns = (await ann.get(f"/api/threads/{thread['thread']}/turns")).json()["items"]
                return [turn["content"] for turn in turns] == list(said)
        return False

    await eventually(shown, 60)


async def test_claude_code_is_captured_and_reads_its_mcp_configuration(
    serve: Serve, turnlog: Cli, tmp_path: Path
) -> None:
    sent: list[str] = []

    def answer(_: str, __: Any, asked: Any) -> Any:
        sent.append(json.dumps(asked))
        return ANSWER

    async with serve() as api, api.client() as ann:
        await add_hooks(api, "claude-code", tmp_path, tmp_path / ".claude/settings.json")
        await ann.post("/api/memories", json={"content": TEA})
        with answering(answer) as (url, _):
            said = await run(tmp_path, CLAUDE, "-p", DOG, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="none")
        assert said == "Hi.\n" and any(DOG in text and TEA in text for text in sent)
        await is_captured(api, DOG, "Hi.")
        printed = (await turnlog("mcp", "install", "--user", "ann", "--client", "claude-code")).document
        printed["mcpServers"]["turnlog"]["env"]["TURNLOG_KEK"] = KEK
        (tmp_path / ".claude.json").write_text(json.dumps(printed), "utf-8")
        assert "✔ Connected" in await run(tmp_path, CLAUDE, "mcp", "list")


async def test_codex_is_captured_has_turnlogs_tools_and_is_answered_through_turnlog(
    serve: Serve, model: MemoryServer, turnlog: Cli, tmp_path: Path
) -> None:
    home = tmp_path / "codex"
    async with serve(api_base_url=model.url, model="m") as api, api.client() as ann:
        await add_hooks(api, "codex", tmp_path, home / "hooks.json")
        await ann.post("/api/memories", json={"content": TEA})
        (provider,) = (block.text for block in blocks("docs/clients.md", "toml", "") if "model_provider" in block.text)
        provider = provider.replace("http://127.0.0.1:8484", api.url)
        printed = await turnlog("mcp", "install", "--user", "ann", "--client", "codex")
        (home / "config.toml").write_text(f'{provider}\n{printed.out}TURNLOG_KEK = "{KEK}"\n', "utf-8")
        words = ("exec", "--skip-git-repo-check", "--dangerously-bypass-hook-trust", "-s", "read-only")
        waiting = ("-c", "mcp_servers.turnlog.required=true")
        model.reply(tool_calls=[("mcp__turnlog__recall", {"query": "tea"})])
        model.reply("Hi.")
        said = await run(tmp_path, CODEX, *words, *waiting, DOG, CODEX_HOME=str(home), TURNLOG_KEY=api.token())
        assert said == "Hi.\n"
        first, second = model.bodies()
        assert TEA in json.dumps(first["messages"])
        assert TEA in str(second["messages"][-1]["content"]) and second["messages"][-1]["role"] == "tool"
        await is_captured(api, DOG, "Hi.")
