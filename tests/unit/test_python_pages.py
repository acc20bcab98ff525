"""Calls on the pages about the Python package match its methods, and every method is documented."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from turnlog._memory import Memory
from turnlog._thread import Thread

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "coming-from.md").read_text("utf-8")
# The second column of each table contains turnlog's calls.
CALLS = [
    call
    for row in re.findall(r"^\|.*?\|(.*?)\|", PAGE, re.MULTILINE)
    for call in re.findall(r"`((?:memory|thread)\.[^`]+)`", row)
]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_the_page_fits_its_method(call: str) -> None:
    for node in ast.walk(ast.parse(call.replace("…", "..."), mode="eval")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_memory = isinstance(node.func.value, ast.Name) and node.func.value.id == "memory"
            method = getattr(Memory if of_memory else Thread, node.func.attr)
            keywords = {str(word.arg): word.value for word in node.keywords}
            inspect.signature(method).bind(None, *node.args, **keywords)


def test_the_page_has_calls() -> None:
    assert len(CALLS) > 10


@pytest.mark.parametrize("face", [Memory, Thread])
def test_every_method_is_on_the_page_of_the_package(face: type) -> None:
    page = (DOCS / "python.md").read_text("utf-8")
    methods = [name for name, _ in inspect.getmembers(face, inspect.isfunction) if not name.startswith("_")]
    assert [name for name in methods if f"{name}(" not in page] == []
