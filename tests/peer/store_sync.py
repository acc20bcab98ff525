"""Runs the tests of PostgresStore on TurnlogStore."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from published import cases, published

from turnlog.agent.settings import Settings
from turnlog.consumers.langgraph.store.store import TurnlogStore

peer = published("langgraph_checkpoint_postgres", "test_store")
globals().update(cases(peer))


@pytest.fixture(autouse=True)
def create_vector_store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    @contextlib.contextmanager
    def create(
        vector_type: str, distance_type: str, embed: Any, text_fields: list[str] | None = None, enable_ttl: bool = True
    ) -> Iterator[TurnlogStore]:
        index: Any = {"dims": embed.dims, "embed": embed, "fields": text_fields}
        with TurnlogStore.open_sync(settings, index=index) as store:
            yield store

    monkeypatch.setattr(peer, "_create_vector_store", create)
    return create


@pytest.fixture
def store(settings: Settings) -> Iterator[TurnlogStore]:
    with TurnlogStore.open_sync(settings, index=False) as opened:
        yield opened


@pytest.fixture
def vector_store(create_vector_store: Any, fake_embeddings: Any) -> Iterator[TurnlogStore]:
    with create_vector_store("vector", "cosine", fake_embeddings) as opened:
        yield opened
