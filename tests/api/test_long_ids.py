"""A user with an id that is too long for a name, and a user whose id is its hash, see no data of each other."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import httpx2
import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from helpers.api import Api, Serve
from helpers.memory_events import memory_id, recorded
from helpers.servers import eventually

from turnlog.events.contracts import MemoryRecorded
from turnlog.events.stored import recorded as recorded_of
from turnlog.events.subjects import former_thread, memory_thread
from turnlog.migrations.upgrade import engine
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild.rebuild import rebuild
from turnlog.projectors.rebuild.replay import rebuild_thread

pytestmark = pytest.mark.slow

LONG = "anna@" + "example." * 50 + "org"
HASH = sha256(LONG.encode()).hexdigest()
TEA, COFFEE = "Anna likes green tea.", "The other likes black coffee."


async def seen(client: httpx2.AsyncClient) -> list[str]:
    listed = (await client.get("/api/memories")).json()["items"]
    recalled = (await client.post("/api/recall", json={"query": "What does Anna like, tea or coffee?"})).json()[
        "memories"
    ]
    contents = sorted(memory["content"] for memory in listed)
    assert sorted(memory["content"] for memory in recalled) == contents
    return contents


async def erased(client: httpx2.AsyncClient) -> None:
    begun = await client.post("/api/erase", json={"reason": "asked"})
    assert begun.status_code == 202, begun.text
    job: dict[str, Any] = {}

    async def ended() -> bool:
        job.update((await client.get(f"/api/jobs/{begun.json()['id']}")).json())
        return bool(job["state"] != "running")

    await eventually(ended)
    assert job["state"] == "done" and job["result"]["hits"] == {}, job


async def remember(client: httpx2.AsyncClient, text: str) -> str:
    made = await client.post("/api/memories", json={"content": text})
    assert made.status_code == 201, made.text
    return str(made.json()["memory_id"])


async def test_a_user_named_like_the_hash_of_a_long_id_sees_none_of_its_data(serve: Serve) -> None:
    async with serve() as api, api.client(LONG) as anna, api.client(HASH) as other:
        tea, coffee = await remember(anna, TEA), await remember(other, COFFEE)
        assert (await seen(anna), await seen(other)) == ([TEA], [COFFEE])
        for client, memory in ((anna, coffee), (other, tea)):
            assert (await client.get(f"/api/memories/{memory}")).status_code == 404
            assert (await client.delete(f"/api/memories/{memory}")).status_code == 404
        await erased(other)
        assert (await seen(anna), await seen(other)) == ([TEA], [])
        assert (await anna.delete(f"/api/memories/{tea}")).status_code == 200
        assert await seen(anna) == []


async def old_data(api: Api, other: httpx2.AsyncClient) -> None:
    """Creates data in the old form, in which the long id's memory is on the other user's thread."""
    await remember(other, COFFEE)
    event = recorded(TEA, user=LONG)
    former = former_thread(event.thread)
    assert former == memory_thread(HASH)
    await api.runtime.log.append(event.model_copy(update={"thread": former}))
    await api.runtime.wait_until_projected()


async def all_again(api: Api) -> None:
    await rebuild(api.runtime.log, api.runtime.database_url, BY_NAME["memories"])


async def each_thread_again(api: Api) -> None:
    for user in (LONG, HASH):
        place = ("default", memory_thread(user))
        await rebuild_thread(api.runtime.log, api.runtime.database_url, BY_NAME["memories"], *place)


async def nothing(_: Api) -> None:
    return None


@pytest.mark.parametrize("make_again", [nothing, all_again, each_thread_again])
async def test_old_data_of_a_long_id_belongs_to_its_user(
    serve: Serve, make_again: Callable[[Api], Awaitable[None]]
) -> None:
    async with serve() as api, api.client(LONG) as anna, api.client(HASH) as other:
        await old_data(api, other)
        await make_again(api)
        assert (await seen(anna), await seen(other)) == ([TEA], [COFFEE])
        assert (await other.delete(f"/api/memories/{memory_id(TEA, LONG)}")).status_code == 404
        assert (await anna.delete(f"/api/memories/{memory_id(TEA, LONG)}")).status_code == 200
        await make_again(api)
        assert (await seen(anna), await seen(other)) == ([], [COFFEE])


@pytest.mark.parametrize(
    ("who", "sealed"),
    [
        pytest.param(LONG, False, id="long-plain"),
        pytest.param(HASH, True, id="hash-sealed"),
        pytest.param(LONG, True, id="long-sealed", marks=pytest.mark.nightly),
        pytest.param(HASH, False, id="hash-plain", marks=pytest.mark.nightly),
    ],
)
async def test_an_erasure_removes_all_old_data_of_one_user_and_none_of_the_other(
    serve: Serve, who: str, sealed: bool
) -> None:
    async with serve(plaintext=not sealed) as api, api.client(LONG) as anna, api.client(HASH) as other:
        await old_data(api, other)
        await erased(anna if who == LONG else other)
        for _ in range(2):
            assert await seen(anna) == ([] if who == LONG else [TEA])
            assert await seen(other) == ([COFFEE] if who == LONG else [])
            await all_again(api)
        events = [recorded_of(stored).event async for stored in api.runtime.log.read(["turnlog.log.>"])]
        left = {event.data.memory.content for event in events if isinstance(event.data, MemoryRecorded)} & {TEA, COFFEE}
        assert left == {COFFEE if who == LONG else TEA}


async def test_old_rows_get_the_current_thread(serve: Serve, database_url: str, db: Connection) -> None:
    async with serve() as api, api.client(LONG) as anna, api.client(HASH) as other:
        await old_data(api, other)
        moved = await db.execute("UPDATE memories SET thread_id = %s WHERE user_id = %s", (memory_thread(HASH), LONG))
        assert moved.rowcount == 1
        await asyncio.to_thread(run_migration, database_url)
        assert (await seen(anna), await seen(other)) == ([TEA], [COFFEE])


def run_migration(database_url: str) -> None:
    made = engine(database_url)
    with made.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        importlib.import_module("turnlog.migrations.versions.0021_names_of_long_ids").upgrade()
    made.dispose()
