"""Hooks of coding agents run as an agent runs them, with a real server that is up, down and up again."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from helpers.api import Api, Serve
from helpers.servers import eventually

from turnlog.agent.access.api_keys import create_key
from turnlog.agent.settings import Settings
from turnlog.consumers.capture import REFUSED
from turnlog.consumers.cli.hooks import PROGRAM, address_of, command_of, configuration_of, with_hooks
from turnlog.consumers.servers import background

NOWHERE = "http://127.0.0.1:9"


async def configured(api: Api, folder: Path) -> Path:
    key = await create_key(api.runtime, api.runtime.settings.tenant, "ann", "user", ["read", "write"])
    return configure(folder, api.url, key.key)


def configure(folder: Path, url: str, key: str) -> Path:
    path = folder / "claude-code.json"
    path.write_text(json.dumps(configuration_of("claude-code", url, key)))
    return path


async def run(path: Path, event: str, **more: Any) -> str:
    """Runs the hook as an agent does and returns its output; the hook does not wait for the server."""
    words = (sys.executable, "-I", "-S", str(PROGRAM), str(path))
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*words, **pipes)
    hook_input = {"session_id": "s", "cwd": "/", "hook_event_name": event, **more}
    out, error = await process.communicate(json.dumps(hook_input).encode())
    assert (process.returncode, error) == (0, b"")
    return out.decode()


async def has(api: Api, *said: str) -> None:
    """Waits until the conversation has exactly these turns, in any order."""

    async def shown() -> bool:
        async with api.client() as http:
            answer = await http.get("/api/threads/claude-code-s/turns")
        turns = answer.json()["items"] if answer.is_success else []
        return sorted(turn["content"] for turn in turns) == sorted(said)

    await eventually(shown, 60)


async def test_a_session_is_captured_and_the_next_begins_with_the_profile(serve: Serve, tmp_path: Path) -> None:
    async with serve() as api, api.client() as http:
        path = await configured(api, tmp_path)
        assert await run(path, "SessionStart", source="startup") == ""
        assert await run(path, "UserPromptSubmit", prompt="I live in 上海") == ""
        await has(api, "I live in 上海")
        assert await run(path, "Stop", last_assistant_message="A fine city.") == ""
        await has(api, "I live in 上海", "A fine city.")
        await http.post("/api/memories", json={"content": "I live in Shanghai."})
        printed = ""

        async def is_shown() -> bool:  # it is left out if the server takes half a second
            nonlocal printed
            printed = await run(path, "SessionStart", source="startup")
            return bool(printed)

        await eventually(is_shown, 60)
        shown = json.loads(printed)["hookSpecificOutput"]
        assert shown["hookEventName"] == "SessionStart" and "I live in Shanghai." in shown["additionalContext"]


async def test_nothing_is_lost_while_the_server_is_away_and_nothing_is_sent_twice(serve: Serve, tmp_path: Path) -> None:
    async with serve() as api:
        path = await configured(api, tmp_path)
        key = json.loads(path.read_text())["key"]
        configure(tmp_path, NOWHERE, key)
        assert await run(path, "SessionStart") == ""
        at_once = [f"turn {number}" for number in range(6)]
        await asyncio.gather(*(run(path, "UserPromptSubmit", prompt=text) for text in at_once))
        spool = Path(f"{path}.spool")
        spool.write_bytes(spool.read_bytes() + b'{"id": "x", "thread": "claude-code-s", "turn"')
        configure(tmp_path, api.url, key)
        await asyncio.gather(*(run(path, "UserPromptSubmit", prompt=text) for text in ("back", "again")))
        # A hook that finds another hook running leaves its line to the next hook.
        await run(path, "SessionStart")
        await has(api, *at_once, "back", "again")

        async def is_clear() -> bool:
            await run(path, "SessionStart")
            return not spool.exists() and not Path(f"{path}.sending").exists()

        await eventually(is_clear, 60)
        refused = Path(f"{path}.refused")
        assert refused.read_bytes() == b'{"id": "x", "thread": "claude-code-s", "turn"\n'
        assert refused.stat().st_mode & 0o077 == 0
        await has(api, *at_once, "back", "again")


def test_installed_again_it_replaces_its_hooks_and_leaves_others(tmp_path: Path) -> None:
    other = {"hooks": [{"type": "command", "command": "say done"}]}
    settings = {"model": "opus", "hooks": {"Stop": [other], "PreToolUse": [other]}}
    once = with_hooks(settings, command_of(tmp_path / "a.json"))
    twice = with_hooks(once, command_of(tmp_path / "b c.json"))
    assert twice["model"] == "opus" and twice["hooks"]["PreToolUse"] == [other]
    assert len(twice["hooks"]["Stop"]) == 2 and twice["hooks"]["Stop"][0] == other
    (ours,) = twice["hooks"]["Stop"][1]["hooks"]
    assert ours["command"].endswith(f"{PROGRAM} '{tmp_path}/b c.json'")
    assert 401 not in REFUSED and 422 in REFUSED


def test_hooks_use_the_port_that_up_has(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert address_of(settings) == "http://127.0.0.1:8484"
    with background.only_one(settings) as say_ready:
        say_ready("http://127.0.0.1:21344")
        assert address_of(settings) == "http://127.0.0.1:21344"
    (tmp_path / "api-port").write_text("21355")
    assert address_of(settings) == "http://127.0.0.1:21355"
