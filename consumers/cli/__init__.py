"""The command `turnlog`. Every command takes --json: one document on stdout; logs and progress go to stderr."""

import atexit
import gc
import os
import resource
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version as installed_version
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any

import typer
from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup

# Commands by subject: {name: (module in this package, help line)}.
SUBJECTS = {
    "Start and stop": {
        "up": ("running", "Start the servers and play every role until Ctrl-C"),
        "down": ("running", "Stop what `up` started; data stays"),
        "page": ("running", "Open the web page, or print a link that signs in"),
        "serve": ("running", "Serve the HTTP API in this process until a signal"),
        "worker": ("running", "Play one role in this process until a signal"),
        "env": ("running", "Print the servers' addresses for other programs"),
        "doctor": ("running", "Check settings, servers, read models and models"),
        "demo": ("demo", "Watch a demonstration in which a projector is killed"),
    },
    "Conversations": {
        "chat": ("chatting", "Talk to the agent; the answer streams"),
        "graph": ("chatting", "Talk to the conversation graph of LangGraph"),
        "threads": ("threads", "List conversations; open, rename, label or delete one"),
        "participants": ("participants", "Share a conversation: invite, accept, list, end"),
        "messages": ("threads", "Show a thread's transcript"),
        "fork": ("threads", "Start a new thread from any event of a thread"),
        "context": ("contexts", "Show what a model sees of a thread, now or earlier"),
        "receipts": ("contexts", "Show what the model saw for each answer"),
        "session": ("sessions", "Short-term memory: the session of a conversation"),
        "import": ("transfer", "Import conversations from a file"),
        "export": ("exporting", "Export a thread, or all data of a user"),
    },
    "Memory": {
        "recall": ("recalling", "Find what was said and what is remembered"),
        "memories": ("memories", "List what is remembered about a user"),
        "profile": ("recalling", "Show who a user is, in a few lines"),
        "remember": ("memories", "Write a memory by hand"),
        "edit": ("memories", "Replace what a memory says"),
        "rate": ("memories", "Set how important a memory is"),
        "revert": ("memories", "Make an earlier version of a memory valid again"),
        "forget": ("memories", "Remove a memory's words from every read model"),
        "conflicts": ("conflicts", "List contradictions that wait for an answer"),
        "answer": ("conflicts", "Decide which of two contradictory memories is valid"),
        "extract": ("extracting", "Extract memories from what users said"),
        "entities": ("entities", "List people, schools, events and topics of a user"),
        "clear": ("clearing", "Remove a person's memories, conversations or entities"),
        "preferences": ("preferences", "Show or set how a user wants to be answered"),
        "compactions": ("compactions", "List memories that were merged, or undo a merge"),
        "rederive": ("rederiving", "Derive memories again with other rules or models"),
    },
    "Agents": {
        "agents": ("agents", "List, configure or switch agents"),
        "runs": ("runs", "Show what agents planned, called and handed over"),
        "sample": ("sampling", "Store fictional data to try a team with"),
        "mcp": ("mcp", "Give a model turnlog's memory as tools (MCP)"),
        "hooks": ("hooks", "Capture what is said in Claude Code and Codex"),
    },
    "Access and limits": {
        "token": ("access", "Print a token for a user"),
        "api-key": ("access", "Make, list or revoke API keys"),
        "limits": ("limits", "Show or change how much users may ask for"),
        "usage": ("metering", "Show calls, tokens and cost of language models"),
        "subscribers": ("subscribers", "Let a tenant's own program read its log from NATS"),
        "webhooks": ("webhooks", "Send a tenant's events to URLs"),
    },
    "Privacy": {
        "erase": ("erasing", "Erase a person, and search for what is left"),
        "redact": ("redacting", "Strike words or a turn, and search for what is left"),
        "retention": ("redacting", "Show turns that are past their retention period"),
        "encryption-key": ("encryption_keys", "Show and change the keys that encrypt users' words"),
    },
    "Log and read models": {
        "lag": ("operating", "Show how far projections are behind the log"),
        "verify": ("operating", "Compare read models with a rebuild, row for row"),
        "rebuild": ("operating", "Rebuild read models from the log"),
        "dead-letters": ("dead_letters", "List, retry or drop events that were not applied"),
        "tail": ("transfer", "Show events as they arrive in the log"),
        "jobs": ("jobs", "List scheduled jobs, or run one now"),
        "activity": ("analysing", "Show what happened, hour by hour"),
        "sql": ("analysing", "Read a tenant's rows with SQL"),
        "log": ("logs", "Show, back up, restore or adopt the log"),
        "archive": ("archiving", "Move cold conversations into files"),
        "restore": ("archiving", "Bring a conversation back from the archive"),
    },
}
COMMANDS = {name: entry for commands in SUBJECTS.values() for name, entry in commands.items()}
_WIDEST = max(map(len, COMMANDS))

# {earlier name: name}. Earlier names are removed in the release after 0.1.
RENAMED = {"key": "api-key", "keys": "encryption-key"}


LATER = ("turnlog.agent.", "turnlog.projectors.", "turnlog.consumers.")


class _LaterFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(LATER) or fullname.startswith("turnlog.consumers.cli."):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and isinstance(spec.loader, Loader):
            spec.loader = LazyLoader(spec.loader)
        return spec


def import_lazily(name: str) -> ModuleType:
    """Imports a command's module. Modules of turnlog that it imports run only when they are first used.

    These modules load libraries for a second, which --help and completion do not need. This works only if the command's
    module imports whole modules, not names from them.
    """
    finder = _LaterFinder()
    sys.meta_path.insert(0, finder)
    try:
        return import_module(name)
    finally:
        sys.meta_path.remove(finder)


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is looked up, as click's documentation shows it. Names
    and help of all commands come from the table."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": dict.fromkeys(COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in RENAMED:
            if not ctx.resilient_parsing:
                typer.echo(f"`turnlog {cmd_name}` is now `turnlog {RENAMED[cmd_name]}`; use that name", err=True)
            cmd_name = RENAMED[cmd_name]
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands.update(commands_of(COMMANDS[cmd_name][0]))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for subject, commands in SUBJECTS.items():
            with formatter.section(subject):
                formatter.write_dl([(name.ljust(_WIDEST), text) for name, (_, text) in commands.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        if incomplete and not incomplete[0].isalnum():
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]


app = typer.Typer(
    name="turnlog",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"turnlog {installed_version('turnlog')}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Event-sourced memory for chat agents."""


def commands_of(module: str) -> dict[str, Any]:
    """Returns the commands that a module of this package defines, by name."""
    return dict(typer.main.get_group(import_lazily(f"turnlog.consumers.cli.{module}").app).commands)


def every_command() -> dict[str, Any]:
    """Returns all commands by name, for documentation and tests."""
    group: Any = typer.main.get_command(app)
    return {name: group.get_command(None, name) for name in COMMANDS}


def main() -> None:
    """Runs the command line. Garbage is collected less often, because a pass over the million objects of libraries
    takes a third of a short command's time. A crash leaves no core dump, which would contain keys, tokens and what
    people said."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)
    # Set before numpy is loaded. Its threads spin while they wait for each other: 15 ms instead of 3 on a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    app()
