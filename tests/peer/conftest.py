"""Fixtures for LangGraph's store tests, which run on TurnlogStore instead of LangGraph's stores."""

from pathlib import Path
from typing import Any

import pytest
from published import NOT_SUPPORTED

from turnlog.agent.settings import Settings


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests of features that TurnlogStore does not support."""
    left_out = [item for item in items if item.path.parent == Path(__file__).parent and _unsupported(item)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _unsupported(item: pytest.Item) -> bool:
    return any(part in item.name for part in NOT_SUPPORTED)


@pytest.fixture
def settings(nats_url: str, database_url: str) -> Settings:
    return Settings(nats_url=nats_url, database_url=database_url)


@pytest.fixture
def fake_embeddings(request: pytest.FixtureRequest) -> Any:
    return request.module.peer.CharacterEmbeddings(dims=500)
