"""Each row of "When something is down" in docs/operation.md names existing tests, and no such test is missing.

The same is true for the promises of docs/reliability.md."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/operation.md"
HEADING = "## When something is down"
NAMED = re.compile(r"`(test_\w+)\.py::(test_\w+)`")


def table() -> list[str]:
    """Returns the rows of the section's table without its head."""
    section = PAGE.read_text("utf-8").partition(HEADING)[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def existing(pattern: str) -> set[tuple[str, str]]:
    """Returns (file, function) of every test in the matching files."""
    defined = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
    return {(path.stem, name) for path in TESTS.rglob(pattern) for name in defined.findall(path.read_text("utf-8"))}


def test_every_row_names_tests_that_exist() -> None:
    known = existing("test_*.py")
    assert len(table()) >= 15
    for row in table():
        named = set(NAMED.findall(row.rstrip("|").rpartition("|")[2]))
        assert named, f"names no test: {row}"
        assert named <= known, f"{sorted(named - known)} do not exist: {row}"


def test_every_degradation_test_is_in_a_row() -> None:
    named = set(NAMED.findall("\n".join(table())))
    assert existing("test_degradation*.py") <= named


def test_the_promises_name_tests_that_exist() -> None:
    page = (PAGE.parent / "reliability.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    named = set(re.findall(r"`(\w+)\.py::(test_\w+)`", page))
    assert len(named) > 50
    assert named <= existing("*.py")
    untested = [row for row in rows if "::" not in row and "By hand" not in row and "| Test |" not in row]
    assert untested == []
