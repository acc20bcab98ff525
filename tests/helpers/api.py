"""Runs the HTTP server as a client sees it: a real uvicorn on a free port, with the roles of a test."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx2
import openai
from helpers.stage import player

from turnlog.agent.access.api_keys import issue_token
from turnlog.agent.models.openai_http import tls_context
from turnlog.agent.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Api:
    """A running HTTP server. tenant: the tenant of the tokens; None means that of the runtime."""

    runtime: Runtime
    url: str
    tenant: str | None = None

    @asynccontextmanager
    async def client(self, user: str = "ann", **claims: Any) -> AsyncIterator[httpx2.AsyncClient]:
        """Yields a client that sends a token of this user. claims: role, scopes, tenant, ttl."""
        headers = {"Authorization": f"Bearer {self.token(user, **claims)}"}
        async with httpx2.AsyncClient(base_url=self.url, headers=headers, verify=tls_context(), timeout=120) as client:
            yield client

    def token(self, user: str = "ann", **claims: Any) -> str:
        return token_of(self.runtime, user, **{"tenant": self.tenant, **claims})


def token_of(
    runtime: Runtime,
    user: str,
    role: str = "user",
    ttl: timedelta = timedelta(hours=12),
    scopes: Collection[str] | None = None,
    tenant: str | None = None,
) -> str:
    """Returns a token as `turnlog token` prints it, by default for the runtime's tenant."""
    return issue_token(runtime.settings, tenant or runtime.settings.tenant, user, role, ttl, scopes).token


Serve = Callable[..., AbstractAsyncContextManager[Api]]


def server(nats_url: str, database_url: str, home: Any) -> Serve:
    """Returns a function that serves the API with the given roles: `async with serve("agent", model="m") as api`."""

    @asynccontextmanager
    async def serve(*roles: str, **settings: Any) -> AsyncIterator[Api]:
        play = player(nats_url, database_url, (), home=home, api_port=0)
        async with play("projectors", "api", *roles, **settings) as stage:
            assert stage.runtime.api_url
            yield Api(stage.runtime, stage.runtime.api_url)

    return serve


@asynccontextmanager
async def openai_client(api: Api, user: str = "ann", **claims: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """Yields OpenAI's unchanged client with this server's address and a token of the user."""
    token = api.token(user, **claims)
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=token, max_retries=0) as client:
        yield client


async def server_events(response: httpx2.Response) -> AsyncGenerator[dict[str, Any]]:
    """Yields the server-sent events as {"event", "id", "data"}."""
    event: dict[str, Any] = {}
    async for line in response.aiter_lines():
        if not line and event:
            yield event
            event = {}
        name, _, value = line.partition(": ")
        if name in ("event", "id"):
            event[name] = value
        elif name == "data":
            event["data"] = json.loads(value)
