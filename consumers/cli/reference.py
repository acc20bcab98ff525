"""Makes docs/cli.md from the commands.

python -m turnlog.consumers.cli.reference > docs/cli.md
"""

import sys
from collections.abc import Iterator
from typing import Any

from turnlog.consumers.cli import SUBJECTS, every_command

HEAD = """# Commands

Every command takes `--help`. With `--json` a command writes one JSON document to stdout (`chat` and `tail` one per
line); logs, progress and errors go to stderr. Exit code 0 is success, 1 an error or a finding (`verify`, `lag`,
`doctor`), 2 a mistake in the command line.

Commands with `--yes` ask before they do what cannot be undone. With `--json`, or if stdin is not a terminal,
they cannot ask: without `--yes` they change nothing and end with the error `not-confirmed`.

Commands and logs are in English only, whatever `LANG` says; `chat` answers a Chinese question in Chinese.

This page is made by `python -m turnlog.consumers.cli.reference > docs/cli.md`; a test keeps it current.
"""


def text() -> str:
    commands = every_command()
    return HEAD + "".join(
        part
        for subject, names in SUBJECTS.items()
        for part in (
            f"\n## {subject}\n",
            *(text for name in names for text in _command(commands[name], ("turnlog", name))),
        )
    )


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    group = getattr(command, "commands", {})
    if not group or command.invoke_without_command:
        yield from _section(command, path)
    for name in group:
        yield from _command(group[name], (*path, name))


def _section(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    parameters = [p for p in command.params if p.name not in ("json", "help")]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    usage = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments]
    yield f"\n### {' '.join(path)}\n\n`{' '.join([*path, *usage, '[OPTIONS]'])}`\n\n{' '.join(command.help.split())}\n"
    rows = [_row(p) for p in parameters]
    if rows:
        yield "\n| | |\n|---|---|\n" + "".join(rows)


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    name = parameter.name.upper() if is_argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    shown = f" Default: `{default}`." if isinstance(default, int | str) and not isinstance(default, bool) else ""
    return f"| `{name}` | {(parameter.help or '').replace('|', '/')}{shown} |\n"


if __name__ == "__main__":
    sys.stdout.write(text())
