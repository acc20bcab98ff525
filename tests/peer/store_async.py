"""Runs the tests of AsyncPostgresStore on TurnlogStore."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from published import cases, published

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.store.store import TurnlogStore

peer = published("langgraph_checkpoint_postgres", "test_async_store")
globals().update(cases(peer))


@pytest.fixture(autouse=True)
def create_vector_store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    @contextlib.asynccontextmanager
    async def create(
        vector_type: str, distance_type: str, embed: Any, text_fields: list[str] | None = None
    ) -> AsyncIterator[TurnlogStore]:
        index: Any = {"dims": embed.dims, "embed": embed, "fields": text_fields}
        async with TurnlogStore.open(settings, index=index) as store:
            yield store

    monkeypatch.setattr(peer, "_create_vector_store", create)
    return create


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[TurnlogStore]:
    async with TurnlogStore.open(settings, index=False) as opened:
        yield opened


@pytest.fixture
async def vector_store(create_vector_store: Any, fake_embeddings: Any) -> AsyncIterator[TurnlogStore]:
    async with create_vector_store("vector", "cosine", fake_embeddings) as opened:
        yield opened
