"""Runs the command `turnlog` as a process, and writes small files for it to import."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.preloaded_cli import run_command

from turnlog.consumers.servers.servers import Servers

COMMAND = [sys.executable, "-m", "turnlog.consumers.cli"]
SETTINGS = ("NATS_URL", "DATABASE_URL", "API_KEY", "API_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL")
PEOPLE = [
    {"thread": "conv-1", "label": "conv-1", "time": f"2023-05-08T13:56:0{position}Z", "source_id": f"D1:{position}"}
    | said
    for position, said in enumerate(
        (
            {"name": "Ann", "text": "I ran a marathon in Lisbon."},
            {"name": "Bo", "text": "My sister paints boats."},
            {"name": "Ann", "text": "The dentist moved. [image: a tooth]"},
        ),
        start=1,
    )
]
CHATGPT = [
    {
        "title": "Essay plan",
        "create_time": 1778248560.5,
        "conversation_id": "c-1",
        "current_node": "b",
        "mapping": {
            "a": {
                "parent": None,
                "children": ["b"],
                "message": {
                    "id": "a",
                    "author": {"role": "user"},
                    "content": {"content_type": "text", "parts": ["hi"]},
                },
            },
            "b": {
                "parent": "a",
                "children": [],
                "message": {
                    "id": "b",
                    "author": {"role": "assistant"},
                    "content": {"content_type": "text", "parts": ["hello"]},
                },
            },
        },
    }
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
OPENAI = [
    {"role": "user", "content": "find x"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "x is here"},
    {"role": "assistant", "content": "It is here."},
]
JSONL = [
    {"thread": "notes", "user": "ann", "role": "user", "content": "Buy 牛奶 🥛"},
    {"thread": "notes", "role": "assistant", "content": "Noted."},
]

# The code of each error and a part of its message.
ERRORS = {
    ("messages", "nope"): ("not-found", "turnlog threads"),
    ("recall", "x", "--thread", "nope"): ("not-found", "turnlog threads"),
    ("recall", "x"): ("bad-query", "a thread, or a user"),
    ("rebuild", "nope"): ("not-found", "there are thread_activity, messages"),
    ("import", "nope.json"): ("import-failed", "there is no file nope.json"),
    ("chat", "-m", " "): ("bad-option", "--message is empty"),
    ("messages", "n\udcff"): ("invalid-id", "lone surrogate"),
    ("context", "n\udcff"): ("invalid-id", "lone surrogate"),
    ("import", "/"): ("import-failed", "/ is a folder"),
    ("import", "nope.json", "--format", "word"): ("bad-option", "there are openai, chatgpt"),
    ("export", "conv-1", "-o", "/no/such/folder/x"): ("export-failed", "cannot write /no/such/folder/x"),
    ("dead-letters", "list", "--projection", "nope"): ("not-found", "there are thread_activity"),
    ("dead-letters", "show", "999999"): ("not-found", "no event at sequence 999999"),
    ("up", "--detach"): ("already-up", "turnlog down"),
}


@dataclass(frozen=True, slots=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Returns the only JSON document on stdout."""
        assert "Traceback" not in self.err
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, str]:
        assert self.code == 1
        error: dict[str, str] = self.document["error"]
        return error


@dataclass(frozen=True, slots=True)
class Cli:
    """The command `turnlog` on a separate data folder whose servers are running."""

    home: Path
    servers: Servers

    def __call__(self, *arguments: str, **env: str) -> CommandResult:
        done = run_command(*arguments, environment=environment(self.home, **env))
        return CommandResult(done.code, done.out, done.err)

    def together(self, *calls: tuple[str, ...]) -> list[CommandResult]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda call: self(*call), calls))

    def begin(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*COMMAND, *arguments], env=environment(self.home), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )


def environment(home: Path, **more: str) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if key not in SETTINGS and not key.startswith("MEMORY_")}
    return {**own, "TURNLOG_HOME": str(home), "TURNLOG_API_PORT": "0", **more}


def write_files(folder: Path) -> Path:
    """Writes the files that `imports` imports, and returns their folder."""
    for name, content in (("chatgpt", CHATGPT), ("openai", OPENAI)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    for name, lines in (("people", PEOPLE), ("jsonl", JSONL)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def imports(files: Path) -> dict[str, tuple[str, ...]]:
    return {
        "people": ("import", str(files / "people.jsonl"), "--format", "jsonl", "--user", "team"),
        "chatgpt": ("import", str(files / "chatgpt.json"), "--no-embed"),
        "openai": ("import", str(files / "openai.json"), "--thread", "tools", "--no-embed"),
        "jsonl": ("import", str(files / "jsonl.jsonl"), "--no-embed"),
    }
