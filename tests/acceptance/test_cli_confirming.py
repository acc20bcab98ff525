"""Commands ask before irreversible actions, and refuse them if they cannot ask."""

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog

from turnlog.consumers.cli import every_command
from turnlog.events.log import Log

pytestmark = pytest.mark.slow

COMMANDS = {
    "revert": ("tea", "--user", "ann"),
    "forget": ("tea", "--user", "ann"),
    "clear": ("--memories", "--user", "ann"),
    "erase": ("--user", "ann"),
    "redact": ("t", "1", "--whole"),
    "dead-letters drop": ("1",),
    "rederive promote": ("shadow",),
    "threads delete": ("t",),
    "log adopt": (),
    "log rebuild": (),
    "log restore": ("backup",),
}


def asking(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    if any("--yes" in parameter.opts for parameter in command.params):
        yield " ".join(path)
    for name, child in getattr(command, "commands", {}).items():
        yield from asking(child, (*path, name))


def test_every_command_that_asks_is_tried_here() -> None:
    assert {name for top, command in every_command().items() for name in asking(command, (top,))} == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
async def test_nothing_is_changed_without_confirmation(name: str, log: Log, turnlog: Cli) -> None:
    """Tests a script, --json, and --json at a terminal, where a question would corrupt the document."""
    words = (*name.split(), *COMMANDS[name])
    head = await log.head()
    plain = await turnlog(*words)
    assert (plain.code, plain.out) == (1, "")
    assert "so nothing was changed; give --yes to confirm [not-confirmed]" in plain.err
    for typed in (None, "y\n"):
        assert (await turnlog(*words, "--json", typed=typed)).error == "not-confirmed"
    assert await log.head() == head
