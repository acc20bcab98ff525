"""Runs the tests of BaseStore and InMemoryStore on TurnlogStore. Each store of a test has a separate tenant."""

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
    async with TurnlogStore.open(settings, index=False) as opened:
        yield opened


@pytest.fixture(autouse=True)
def stores(request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes InMemoryStore() return a TurnlogStore. In a synchronous test, the store runs its own event loop."""
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
