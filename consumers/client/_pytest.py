"""A pytest plugin, which pytest loads wherever turnlog is installed: a memory for each test."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from turnlog._opening import Opening


@pytest.fixture(scope="session")
def turnlog_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Starts servers for this test session alone and yields the arguments with which `turnlog.open` connects to them.

    The projectors and workers of all tenants run in one thread, so the arguments name no roles.
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
