"""The tests of BaseStore and InMemoryStore, on TurnlogStore: each store a test makes is a tenant of its own."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from published import cases, published

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.store.store import TurnlogStore

peer = published("langgraph_checkpoint", "test_store")
globals().update(cases(peer))


@pytest.fixture
async def running(settings: Settings) -> AsyncIterator[TurnlogStore]:
    async with TurnlogStore.open(settings, index=False) as found:
        yield found


@pytest.fixture(autouse=True)
def stores(request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """InMemoryStore() makes a TurnlogStore: of the test's event loop, or with one of its own for a synchronous test."""
    waits = asyncio.iscoroutinefunction(request.function)
    running: TurnlogStore | None = request.getfixturevalue("running") if waits else None
    tenants = map("store-{}".format, itertools.count())
    with contextlib.ExitStack() as stack:

        def create(index: Any = False) -> TurnlogStore:
            if running is not None:
                return TurnlogStore(running.log, running.pool, next(tenants), index=index)
            return stack.enter_context(TurnlogStore.open_sync(settings, tenant=next(tenants), index=index))

        monkeypatch.setattr(peer, "InMemoryStore", create)
        monkeypatch.setattr(peer, "MockAsyncBatchedStore", create)
        yield
