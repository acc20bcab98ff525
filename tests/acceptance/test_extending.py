"""The recipes of docs/extending.md work when they are applied to a copy of the repository."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TestServers
from helpers.markdown_examples import blocks
from helpers.repository_copy import copy_working_tree, environment_of_copy, importable

pytestmark = pytest.mark.slow

PAGE = "docs/extending.md"
RECIPES = ("event", "read-model", "function", "importer", "rule", "tool")
# The guard tests that the recipes' files must pass.
GUARDS = (
    "tests/unit/test_contracts_golden.py",
    "tests/unit/test_faces.py",
    "tests/unit/test_guards.py::test_imports_go_one_way",
    "tests/unit/test_guards.py::test_rooms_import_only_rooms_before_them",
    "tests/migration/test_schema.py::test_the_migrated_schema_is_the_declared_one",
)
PATIENCE_S = 840.0


def recipe(name: str) -> str:
    (block,) = blocks(PAGE, "diff", name)
    return block.text


def files_of(diff: str) -> list[str]:
    return [line.removeprefix("+++ b/") for line in diff.splitlines() if line.startswith("+++ b/")]


def apply(diff: str, copy: Path) -> None:
    done = subprocess.run(["git", "apply", "-"], cwd=copy, input=diff, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def numbered_after_the_newest(diff: str, copy: Path) -> str:
    """Returns the read model's diff with its migration numbered after the newest migration of the repository."""
    newest = max(path.name[:4] for path in (copy / "migrations" / "versions").glob("[0-9]*.py"))
    return diff.replace("0026", f"{int(newest) + 1:04}").replace("0025", newest)


def apply_all(copy: Path) -> list[str]:
    """Applies the recipes one after the other and returns their files."""
    files = []
    for name in RECIPES:
        diff = numbered_after_the_newest(recipe(name), copy)
        apply(diff, copy)
        files += files_of(diff)
    return files


def test_every_recipe_applies_and_is_python(tmp_path: Path) -> None:
    copy = copy_working_tree(tmp_path / "copy")
    for path in apply_all(copy):
        if path.endswith(".py"):
            compile((copy / path).read_text(), path, "exec")


@pytest.mark.nightly
async def test_the_code_that_the_recipes_add_works(servers: TestServers, nats_url: str, tmp_path: Path) -> None:
    copy = await asyncio.to_thread(copy_working_tree, tmp_path / "copy")
    files = await asyncio.to_thread(apply_all, copy)
    tests = [*GUARDS, *(path for path in files if Path(path).name.startswith("test_") and path not in GUARDS)]
    importable(copy)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"NATS_URL": nats_url, "DATABASE_URL": servers.database_url, "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *dict.fromkeys(tests)]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=copy,
        env=environment_of_copy(copy, environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]


def test_a_read_model_with_a_look_up_and_a_command_takes_at_most_eight_files() -> None:
    """The files include the generated reference of commands."""
    assert len({*files_of(recipe("read-model")), "docs/cli.md"}) <= 8


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_brings_a_test(name: str) -> None:
    assert any(Path(path).name.startswith("test_") for path in files_of(recipe(name)))
