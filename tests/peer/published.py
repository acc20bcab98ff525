"""Loads LangGraph's own store tests from the source distributions that `make peer` unpacks."""

import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

UNPACKED = Path(sys.prefix) / "peer"

# Part of a test's name → why the test is excluded.
NOT_SUPPORTED = {
    "l2": "similarity is the cosine, of which inner products of unit vectors are a case",
    "ttl": "an item stays until it is deleted; a put with a ttl is refused",
    "omit_expired": "as ttl",
    "nonnull_migrations": "about PostgresStore's own tables",
    "pool_checkout": "about AsyncPostgresStore's own pool",
    "escape_like_literal": "about PostgresStore's own SQL",
    "namespace_match_pattern": "about PostgresStore's own SQL",
    "get_text_at_path": "about a function of LangGraph, no store takes part",
    "validate_op_namespace": "as get_text_at_path",
    "dedupe_ops": "as get_text_at_path",
    "async_batch_store": "about AsyncBatchedBaseStore, which TurnlogStore is not",
    "cannot_put_empty_namespace": "calls the synchronous methods in the event loop, which raises wrong-thread",
    "test_rejects_invalid_namespace": "spies on InMemoryStore's own methods",
    "test_async_rejects_invalid_namespace": "as test_rejects_invalid_namespace",
}


def published(distribution: str, name: str) -> ModuleType:
    """Returns a test module of the distribution, in its installed version."""
    folder = UNPACKED / f"{distribution}-{version(distribution)}" / "tests"
    embed = _load(folder / "embed_test_utils.py", "peer_embed_test_utils")
    known = {"DEFAULT_URI": "", "VECTOR_TYPES": ["vector"], "CharacterEmbeddings": embed.CharacterEmbeddings}
    seen = {
        "tests": _module("tests"),
        "tests.conftest": _module("tests.conftest", **known),
        "tests.embed_test_utils": embed,
        "pytest_mock": _module("pytest_mock", MockerFixture=None),  # only the annotations of excluded tests use it
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, stand_in in seen.items():
            patch.setitem(sys.modules, module, stand_in)
        return _load(folder / f"{name}.py", f"peer_{distribution}_{name}")


def cases(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name.startswith("test_")}


def _load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module
