"""A pytest plugin, which pytest loads wherever turnlog is installed: a memory for each test."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from turnlog._opening import Opening


@pytest.fixture(scope="session")
def turnlog_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Yields arguments of `turnlog.open` for servers of this test session alone, where a thread plays the roles of
    every tenant.
    """
    import turnlog

    home = tmp_path_factory.mktemp("turnlog")
    # Never the servers that the environment names, because they store real data.
    where: dict[str, Any] = {"home": home, "nats_url": "", "database_url": ""}
    with turnlog.open(**where):
        yield {**where, "roles": ()}


@pytest.fixture
def turnlog_memory(turnlog_servers: dict[str, Any]) -> "Opening":
    """Returns a closed memory in a tenant of this test alone; open it: `with` or `async with turnlog_memory as
    memory`."""
    import turnlog

    return turnlog.open(**turnlog_servers, tenant=f"test-{uuid4().hex[:12]}")
