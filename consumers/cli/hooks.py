"""The command `hooks`: captures what is said in coding agents, and gives them the user's profile."""

import contextlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from turnlog.agent.access import api_keys
from turnlog.agent.settings import Settings
from turnlog.consumers.cli.console import BadOption, Result, check_given, check_known
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command
from turnlog.consumers.servers import background

PROGRAM = Path(__file__).resolve().parents[1] / "capture.py"
EVENTS = ("SessionStart", "UserPromptSubmit", "Stop")
FILES = {"claude-code": "~/.claude/settings.json", "codex": "~/.codex/hooks.json"}
TIMEOUT_S = 5
PRIVATE = os.O_WRONLY | os.O_TRUNC | os.O_CREAT | os.O_CLOEXEC

app = commands()
below = group(app, "hooks", "Capture what is said in coding agents, and give them the user's profile.")


def _check(agent: str, user: str, url: str | None) -> None:
    check_known("agent", agent, FILES)
    check_given("user", user)
    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise BadOption(f"--url {url!r} is not an address such as http://127.0.0.1:8484")


@command(below, checks=_check)
async def install(
    rt: Runtime,
    agent: Annotated[str, typer.Argument(help=f"{' or '.join(FILES)}.")],
    user: Annotated[str, typer.Option("--user", "-u", help="The user who talks to the agent.")],
    url: Annotated[str | None, typer.Option(help="URL of the server. Default: the one on this machine.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="The agent's settings file. Default: that of the whole account.")
    ] = None,
) -> Result:
    """Add hooks to a coding agent's settings: each prompt and answer becomes a turn, and a session begins with the
    profile of the user. Other settings stay. Installed again, it replaces its hooks and its API key."""
    address = url or address_of(rt.settings)
    settings = (file or Path(FILES[agent])).expanduser().absolute()
    known = _read(settings)
    configuration = rt.settings.home / "hooks" / f"{agent}.json"
    configuration.parent.mkdir(mode=0o700, exist_ok=True)
    if configuration.exists():
        await _revoke(rt, json.loads(configuration.read_text("utf-8"))["key_id"])
    key = await api_keys.create_key(rt, rt.settings.tenant, user, "user", ["read", "write"], f"hooks: {agent}")
    with os.fdopen(os.open(configuration, PRIVATE, 0o600), "w") as private:
        json.dump(configuration_of(agent, address, key.key) | {"key_id": key.id}, private)
    settings.parent.mkdir(parents=True, exist_ok=True)
    fresh = settings.with_name(f"{settings.name}.turnlog")
    fresh.write_text(
        json.dumps(with_hooks(known, command_of(configuration)), indent=2, ensure_ascii=False) + "\n", "utf-8"
    )
    fresh.replace(settings)
    made = {
        "agent": agent,
        "file": str(settings),
        "configuration": str(configuration),
        "key_id": key.id,
        "url": address,
    }
    return Result(made, [f"{settings} has the hooks; start {agent} again", f"they use API key {key.id} at {address}"])


def address_of(settings: Settings) -> str:
    """Returns the URL of this home's `up`, whose port may differ from the default; if it does not run, the URL that it
    will have."""
    with contextlib.suppress(background.NotUp):
        return background.running_url(settings)
    port, kept = settings.api_port, settings.home / "api-port"
    if "api_port" not in settings.model_fields_set and kept.exists():
        port = int(kept.read_text("ascii"))
    return f"http://{settings.api_host}:{port}"


def configuration_of(agent: str, url: str, key: str) -> dict[str, Any]:
    """Returns the configuration of `capture.py`. The address is in parts, because `capture.py` has no time to parse
    it.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = {"scheme": parts.scheme, "host": parts.hostname, "port": port, "prefix": parts.path.rstrip("/")}
    return {"client": agent, "key": key, **address}


def command_of(configuration: Path) -> str:
    return shlex.join([sys.executable, "-I", "-S", str(PROGRAM), str(configuration.absolute())])


def with_hooks(settings: dict[str, Any], command: str) -> dict[str, Any]:
    """Returns the settings with turnlog's hooks, which replace earlier hooks of turnlog; all other hooks stay."""
    hooks = dict(settings.get("hooks", {}))
    for event in EVENTS:
        others = [group for group in hooks.get(event, []) if PROGRAM.name not in json.dumps(group)]
        hooks[event] = [*others, {"hooks": [{"type": "command", "command": command, "timeout": TIMEOUT_S}]}]
    return {**settings, "hooks": hooks}


def _read(path: Path) -> dict[str, Any]:
    """Returns the file's JSON object; {} if there is no file. Raises BadOption for any other content, so that it is not
    overwritten."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if isinstance(content, dict):
            return content
        raise ValueError("it is not an object")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadOption(f"{path} cannot be read as JSON, and was not changed: {error}") from None


async def _revoke(rt: Runtime, key_id: str) -> None:
    if any(key.id == key_id for key in await api_keys.list_keys(rt, rt.settings.tenant)):
        await api_keys.revoke_key(rt, rt.settings.tenant, key_id)
