"""Invalid ids are refused: an empty id is an unset variable of a script and never means the default."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.cli import Cli as Cli
from helpers.cli import ManyCommands
from helpers.cli import turnlog as turnlog
from helpers.cli import turnlog_in_one_process as turnlog_in_one_process
from helpers.nightly import part

from turnlog.consumers.cli import every_command
from turnlog.events.log import Log

# The other arguments of each command with --user or --tenant.
WORDS = {
    "activity": (),
    "answer": ("new",),
    "chat": ("t", "-m", "hello"),
    "clear": ("--memories", "--yes"),
    "compactions": (),
    "compactions undo": ("00000000-0000-7000-8000-000000000001",),
    "conflicts": (),
    "context": ("t",),
    "edit": ("tea", "I like cake"),
    "entities": (),
    "entities add": ("Mia", "--type", "PERSON"),
    "entities update": ("Mia", "--type", "PERSON"),
    "erase": ("--yes",),
    "export": (),
    "extract": (),
    "forget": ("tea", "--yes"),
    "fork": ("t", "--at", "1"),
    "import": ("/dev/null",),
    "api-key create": (),
    "api-key list": (),
    "api-key revoke": ("0123456789abcdef",),
    "encryption-key rotate": (),
    "graph": ("t", "--message", "tea"),
    "limits": (),
    "limits reset": (),
    "limits set": ("user_per_hour=1",),
    "hooks install": ("codex",),
    "mcp install": (),
    "mcp stdio": (),
    "memories": (),
    "memories archive": ("tea", "--reason", "old"),
    "memories show": ("tea",),
    "memories stats": (),
    "messages": ("t",),
    "participants accept": ("t", "bob"),
    "participants invitations": (),
    "participants invite": ("t", "bob"),
    "participants list": ("t",),
    "participants remove": ("t", "bob"),
    "participants role": ("t", "bob", "reader"),
    "page": ("--url", "http://127.0.0.1:1"),
    "preferences": (),
    "profile": (),
    "rate": ("tea", "0.5"),
    "rebuild": ("messages",),
    "recall": ("tea",),
    "redact": ("t", "1", "--whole", "--yes"),
    "retention": (),
    "receipts": ("t",),
    "rederive diff": ("shadow",),
    "rederive drop": ("shadow",),
    "rederive list": (),
    "rederive promote": ("shadow", "--yes"),
    "agents": (),
    "agents off": ("essay",),
    "agents on": ("essay",),
    "agents set": ("essay", "--model", "m"),
    "agents show": ("essay",),
    "rederive run": ("shadow",),
    "remember": ("I like tea",),
    "restore": ("t",),
    "revert": ("tea", "--yes"),
    "runs": (),
    "sample advising": (),
    "session checkpoint": ("t", "--summary", "tea"),
    "session checkpoints": ("t",),
    "session context": ("t",),
    "session create": ("t",),
    "session reset": ("t",),
    "session set": ("t", "--intent", "x"),
    "session show": ("t",),
    "sql": ("SELECT 1",),
    "log parquet": ("/dev/null/nowhere",),
    "subscribers create": ("billing",),
    "subscribers list": (),
    "subscribers remove": ("billing",),
    "tail": ("--no-follow",),
    "threads": (),
    "threads delete": ("t", "--yes"),
    "threads label": ("t",),
    "threads open": ("t",),
    "threads rename": ("t", "Tea"),
    "token": (),
    "usage": (),
    "webhooks create": ("crm", "https://93.184.216.34/"),
    "webhooks drop": ("crm", "1"),
    "webhooks failures": (),
    "webhooks list": (),
    "webhooks remove": ("crm",),
    "webhooks retry": ("crm", "1"),
}


def options(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
    """Yields the name and the options of every command."""
    yield " ".join(path), {name for parameter in command.params for name in parameter.opts}
    for name, child in getattr(command, "commands", {}).items():
        yield from options(child, (*path, name))


OPTIONS = {
    name: command_options & {"--user", "--tenant"}
    for top, command in every_command().items()
    for name, command_options in options(command, (top,))
}


def test_every_command_that_takes_an_id_is_tried_here() -> None:
    assert {name for name, command_options in OPTIONS.items() if command_options} == WORDS.keys()


async def test_an_empty_user_or_tenant_is_refused_by_every_command(
    log: Log, turnlog_in_one_process: ManyCommands
) -> None:
    calls = []
    for name, words in part([*WORDS.items()]):
        somebody = ("--user", "ann") if "--user" in OPTIONS[name] else ()
        command_words = (*name.split(), *words)
        calls += [(*command_words, *somebody, "--tenant", "")] if "--tenant" in OPTIONS[name] else []
        calls += [(*command_words, "--user", "")] if somebody else []
    for call, said in zip(calls, await turnlog_in_one_process([(*call, "--json") for call in calls]), strict=True):
        assert (call, said.error) == (call, "invalid-id")
    assert await log.head() == 0


async def test_no_conversation_begins_with_an_empty_id_or_on_an_internal_thread(
    log: Log, turnlog_in_one_process: ManyCommands
) -> None:
    for thread in ("", "memories/ann", "shadow/new/memories/ann", "store/users.ann", "jobs/decay", "erasures/1"):
        begun = [
            ("chat", thread, "-m", "hello", "--json"),
            ("import", "/dev/null", "--thread", thread, "--json"),
            ("fork", "t", "--at", "1", "--as", thread, "--json"),
            ("session", "create", thread, "--json"),
        ]
        assert [(thread, said.error) for said in await turnlog_in_one_process(begun)] == [(thread, "invalid-id")] * 4
    assert await log.head() == 0


async def test_a_line_with_invalid_ids_is_rejected_once(log: Log, turnlog: Cli, tmp_path: Path) -> None:
    ids = [{"thread": "fine"}, {"thread": "memories/ann"}, {"thread": "t", "user": "x" * 600}]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({**line_ids, "role": "user", "text": "hello"}) + "\n" for line_ids in ids))
    done = await turnlog("import", str(file), "--format", "jsonl", "--no-embed", "--json")
    report = json.loads(done.out)
    assert done.code == 1
    assert (report["turns"], report["threads"], report["rejected_count"]) == (1, 1, 2)
    assert [rejected["where"] for rejected in report["rejected"]] == [
        "turn L2 of thread memories/ann",
        "turn L3 of thread t",
    ]
    assert await log.head() == 2
