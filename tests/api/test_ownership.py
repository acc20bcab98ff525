"""The owner of a conversation is known while read models lag behind, and with several servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from helpers.api import Serve

from turnlog.events.contracts import Event, ThreadDeleted
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection

TURN = {"turns": [{"role": "user", "content": "The boat sails."}]}
URL = "/api/threads/t/turns"


@asynccontextmanager
async def no_projection(db: Connection) -> AsyncIterator[None]:
    """Keeps the projector from projecting events while the block runs, by locking a row that it needs."""
    async with db.transaction():
        rows = await db.execute("SELECT FROM thread_activity WHERE thread_id = 't' FOR UPDATE")
        assert rows.rowcount == 1
        yield


async def begin(ann: httpx2.AsyncClient) -> None:
    assert (await ann.post(URL, json=TURN)).status_code == 201
    assert (await ann.get("/api/threads/t")).status_code == 200  # this waits for the projection


async def test_an_owner_appends_without_waiting_for_the_turn_before(serve: Serve, db: Connection) -> None:
    async with serve() as api, api.client("ann") as ann, api.client("bob") as bob:
        await begin(ann)
        async with no_projection(db):
            for _ in range(3):
                assert (await ann.post(URL, json=TURN)).status_code == 201
            rows = await db.execute("SELECT message_count FROM thread_activity WHERE thread_id = 't'")
            assert await rows.fetchall() == [(1,)]
            begun = asyncio.create_task(bob.post(URL, json=TURN))
        assert (await begun).status_code == 201
        assert len((await bob.get(URL)).json()["items"]) == 1  # only of his own conversation


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_removal_that_is_not_projected_yet_ends_the_ownership(
    serve: Serve, log: Log, db: Connection, method: str
) -> None:
    async with serve() as api, api.client("ann") as ann:
        await begin(ann)
        async with no_projection(db):
            await log.append(Event(source="another process", tenant="default", thread="t", data=ThreadDeleted()))
            asked = asyncio.create_task(ann.request(method, URL, json=TURN))
            assert not (await asyncio.wait({asked}, timeout=0.5))[0]
        assert (await asked).status_code == 404


async def test_a_thread_deleted_by_one_server_is_refused_by_another_at_once(serve: Serve) -> None:
    async with serve() as first, serve() as second, first.client("ann") as ann, second.client("ann") as elsewhere:
        await begin(ann)
        assert (await elsewhere.post(URL, json=TURN)).status_code == 201
        assert (await elsewhere.delete("/api/threads/t")).status_code == 204
        for method in ("GET", "POST"):
            assert (await ann.request(method, URL, json=TURN)).status_code == 404
