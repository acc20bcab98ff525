"""Slow objects are created in a separate thread, so that the event loop is not blocked."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fastapi import routing
from fastapi.dependencies.utils import get_dependant
from helpers.api import Serve

from turnlog.agent.models import factory
from turnlog.agent.settings import Settings
from turnlog.consumers.api import app as app_of_api
from turnlog.consumers.api.document import documented

pytestmark = pytest.mark.slow


async def test_models_are_made_outside_the_event_loop_before_anything_is_served(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating clients loads modules and builds TLS contexts, which would otherwise delay all requests during the first
    one."""
    made = list[threading.Thread]()

    def make(settings: Settings) -> factory.Models:
        made.append(threading.current_thread())
        return make_models(settings)

    make_models = factory.make_models
    monkeypatch.setattr(factory, "make_models", make)
    async with serve():
        [thread] = made
    assert thread is not threading.main_thread()


async def test_routes_and_their_document_are_made_outside_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are hundreds of models, which FastAPI would otherwise create at the first request to a router."""
    made = {get_dependant: list[threading.Thread](), documented: list[threading.Thread]()}

    def noted(make: Callable[..., Any], *args: Any, **named: Any) -> Any:
        made[make].append(threading.current_thread())
        return make(*args, **named)

    monkeypatch.setattr(routing, "get_dependant", partial(noted, get_dependant))
    monkeypatch.setattr(app_of_api, "documented", partial(noted, documented))
    app_of_api._routes.cache_clear()
    app_of_api.document.cache_clear()
    async with serve() as api, api.client() as ann:
        before = len(made[get_dependant])
        assert (await ann.get("/openapi.json")).status_code == 200
        assert (await ann.post("/v1/chat/completions", json={})).status_code == 400
    assert len(made[get_dependant]) == before > 100
    [thread] = made[documented]
    assert thread is not threading.main_thread()
