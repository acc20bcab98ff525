"""Commands only parse and show; functions of agent/ look up and decide."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "consumers" / "cli"
# The modules of agent/ that a command may import, by package.
ASKED_FOR = {
    "access": (
        "api_keys",
        "limits",
        "subscribers",
        "webhooks",
    ),
    "answering": (
        "asking",
        "client_tasks",
        "completions",
        "agents",
        "context",
        "turns",
    ),
    "conversations": (
        "forks",
        "labels",
        "ownership",
        "participants",
        "threads",
        "transcript",
        "transcript_matching",
        "sessions.session_calls",
    ),
    "memory": (
        "entities",
        "memories",
        "memory_changes",
        "preferences",
        "rederiving",
        "extraction.extract_now",
    ),
    "recall": (
        "profile",
        "recall",
        "user_context",
        "embedding.embed_now",
    ),
    "team": ("agents", "runs", "samples"),
    "privacy": (
        "personal_data",
        "keys.key_status",
        "redaction.redact",
        "redaction.retention",
    ),
    "operations": (
        "activity",
        "all_processes",
        "analysis",
        "archives",
        "breakers",
        "checkup",
        "dead_letters",
        "gauges",
        "health",
        "importing",
        "jobs.job_states",
        "lag",
        "log_identity",
        "model_checkup",
        "role_processes",
        "read_models",
        "tailing",
        "usage",
    ),
}
KNOWN = (
    *(f"turnlog.agent.{room}.{module}" for room, modules in ASKED_FOR.items() for module in modules),
    "turnlog.agent.counting",
    "turnlog.agent.settings",
    "turnlog.agent.runtime",
    "turnlog.consumers",
    "turnlog.events",
)
# Other imports of each module, with the reason. Entries may only be removed.
EXCEPTIONS = {
    # It demonstrates each part of turnlog separately.
    "demo.py": {
        "turnlog.agent.recall.embedding.pending",
        "turnlog.agent.operations.importers",
        "turnlog.agent.operations.sample",
        "turnlog.projectors.models.conversation.thread_lookup",
        "turnlog.projectors.models.registry",
        "turnlog.projectors.rebuild.rebuild",
        "turnlog.projectors.rebuild.verify",
    },
    "exporting.py": {
        "turnlog.agent.operations.importers",
        "turnlog.agent.memory.sanitiser.sanitise",
    },  # file formats, names of levels
    "encryption_keys.py": {"turnlog.agent.privacy.keys.kek"},  # a new key is random bytes and needs no runtime
    "mcp.py": {"turnlog.agent.access.identity"},  # the user of a client on stdio
    "remembering.py": {"turnlog.agent.memory.dates.dates"},  # times as people write them
    "rendering.py": {"turnlog.agent.context.plain_text"},  # pure, turns values into lines
    "runner.py": {"turnlog.agent.memory.sanitiser.sanitise"},  # to sanitise the logs of every command
    "transfer.py": {"turnlog.agent.operations.importers"},  # file formats
}


def imported(path: Path) -> Iterator[str]:
    """Yields the turnlog modules that this module imports, except those for type checks only."""
    tree = ast.parse(path.read_text("utf-8"))
    for_types = {
        id(node)
        for check in ast.walk(tree)
        if isinstance(check, ast.If) and isinstance(check.test, ast.Name) and check.test.id == "TYPE_CHECKING"
        for node in ast.walk(check)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types and node.module:
            parts = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (part if is_module(part) else node.module for part in parts)


def is_module(name: str) -> bool:
    path = FOLDER.parents[1].joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_a_command_imports_only_operations_and_listed_exceptions(path: Path) -> None:
    others = {name for name in imported(path) if name.startswith("turnlog.") and not name.startswith(KNOWN)}
    assert others == EXCEPTIONS.get(path.name, set())


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_a_command_imports_at_the_top_of_its_module(path: Path) -> None:
    functions = (
        function
        for function in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    inside = [
        node.lineno
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert inside == []
