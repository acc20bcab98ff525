"""If the database belongs to another log, nothing is written and health is red until one of three commands was run.

Tested by HTTP and commands, with a stream that was deleted, recreated, or restored from an older backup.
"""

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import nats
import pytest
from helpers.api import Api, Serve
from helpers.cli import Cli, commands, environment_of
from helpers.key_rings import KEK
from helpers.sample_events import turn
from helpers.servers import eventually
from nats.js.errors import NotFoundError

from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.events.subjects import STREAM

pytestmark = pytest.mark.slow


@pytest.fixture
def turnlog(nats_url: str, database_url: str, tmp_path: Path) -> Cli:
    return commands(environment_of(nats_url, database_url, tmp_path) | {"TURNLOG_KEK": KEK, "TURNLOG_PARTITIONS": "8"})


async def say(client: httpx2.AsyncClient, text: str) -> None:
    answer = await client.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": text}]})
    assert answer.status_code in (200, 201), answer.text


async def said(client: httpx2.AsyncClient) -> list[str]:
    """Returns the stored turns. They may include a refused write that NATS had already stored in another log."""
    items = (await client.get("/api/threads/t/turns")).json()["items"]
    return [item["content"] for item in items if item["content"] != "lost"]


async def is_refused(client: httpx2.AsyncClient) -> bool:
    answer = await client.post("/api/threads/t/turns", json={"turns": [{"role": "user", "content": "lost"}]})
    return answer.status_code == 503 and answer.json()["code"] == "other-log"


async def until_written(client: httpx2.AsyncClient, text: str) -> None:
    """Appends the text as soon as the server has noticed that the log is correct again."""

    async def is_ready() -> bool:
        return (await client.get("/health/ready")).status_code == 200

    await eventually(is_ready)
    await say(client, text)


async def assert_red(client: httpx2.AsyncClient, turnlog: Cli) -> None:
    ready = await client.get("/health/ready")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    assert "turnlog log adopt" in ready.json()["log"]
    assert (await turnlog("lag", "--json")).error == "other-log"
    doctor = await turnlog("doctor")
    assert doctor.code == 1 and "FAIL  log" in doctor.out


async def metric_of(api: Api) -> str:
    async with api.client("root", role="admin") as root:
        page = (await root.get("/metrics")).text
    return page.split("\nturnlog_other_log ")[1].split("\n")[0]


async def delete_stream(nats_url: str) -> None:
    async with await nats.connect(nats_url) as client:
        await client.jetstream().delete_stream(STREAM)


async def begun_at(nats_url: str) -> datetime:
    """Returns the time when the durable of analytics was created."""
    async with await nats.connect(nats_url) as client:

        async def is_there() -> bool:
            with suppress(NotFoundError):
                return bool(await client.jetstream().consumer_info(STREAM, "analytics"))
            return False

        await eventually(is_there)
        created = (await client.jetstream().consumer_info(STREAM, "analytics")).created
        assert created is not None
        return created


async def done(turnlog: Cli, *words: str) -> Any:
    document = (await turnlog("log", *words, "--json")).document
    assert document["problem"] is None
    return document


@pytest.mark.nightly
async def test_after_the_stream_was_deleted_adopting_the_new_one_keeps_every_turn(
    serve: Serve, nats_url: str, turnlog: Cli
) -> None:
    async with serve(partitions=8) as api, api.client() as ann:
        for number in range(4):
            await say(ann, f"turn {number}")
        assert len(await said(ann)) == 4
    await delete_stream(nats_url)
    async with serve(partitions=8) as api, api.client() as ann:
        assert await is_refused(ann)
        await assert_red(ann, turnlog)
        assert await metric_of(api) == "1.0"
        assert len(await said(ann)) == 4  # earlier turns can be read
        refused = await turnlog("log", "adopt", "--json")
        assert refused.error == "not-confirmed"
        adopted = await done(turnlog, "adopt", "--yes")
        assert adopted["kept_through"] == adopted["rows_through"] <= adopted["head"]
        await until_written(ann, "turn 4")
        assert await said(ann) == [f"turn {number}" for number in range(5)]
        assert await metric_of(api) == "0.0"
    assert (await turnlog("rebuild", "messages", "--json")).error == "rows-not-in-log"


@pytest.mark.nightly
async def test_a_log_that_is_replaced_under_a_running_server_is_refused_at_once_and_restored(
    serve: Serve, nats_url: str, turnlog: Cli, tmp_path: Path
) -> None:
    backup = str(tmp_path / "backup")
    async with serve(partitions=8) as api, api.client() as ann:
        for number in range(3):
            await say(ann, f"turn {number}")
        assert len(await said(ann)) == 3
        assert (await turnlog("log", "backup", backup)).code == 0
        await delete_stream(nats_url)
        await (await Log.connect(nats_url, StreamOptions(partitions=8))).close()  # creates an empty stream
        assert await is_refused(ann)
        await assert_red(ann, turnlog)
        await done(turnlog, "restore", backup, "--yes")
        await until_written(ann, "turn 3")
        assert await said(ann) == [f"turn {number}" for number in range(4)]

        restored = await turnlog("log", "restore", backup, "--yes", "--json")  # the restored log lacks a turn
        assert restored.code == 1 and "an older backup" in restored.out
        assert await is_refused(ann)
        await done(turnlog, "adopt", "--yes")
        await until_written(ann, "turn 4")
        assert await said(ann) == [f"turn {number}" for number in range(5)]


@pytest.mark.nightly
async def test_a_restored_log_with_new_events_is_noticed_and_rows_are_rebuilt_from_it(
    serve: Serve, nats_url: str, turnlog: Cli, tmp_path: Path
) -> None:
    """Events were appended beyond the positions, so that the length of the log no longer shows the difference."""
    backup = str(tmp_path / "backup")
    async with serve(partitions=8) as api, api.client() as ann:
        await say(ann, "both have it")
        assert len(await said(ann)) == 1
        assert (await turnlog("log", "backup", backup)).code == 0
        await say(ann, "only the rows have it")
        assert len(await said(ann)) == 2
    assert (await turnlog("log", "restore", backup, "--yes")).code == 1
    log = await Log.connect(nats_url, StreamOptions(partitions=8))
    await log.append_many([turn(f"elsewhere {number}", thread=f"other {number % 3}") for number in range(9)])
    await log.close()
    async with serve("analytics", partitions=8) as api, api.client() as ann:
        begun = await begun_at(nats_url)
        assert await is_refused(ann)
        assert "is not the one" in (await ann.get("/health/ready")).json()["log"]
        await done(turnlog, "rebuild", "--yes")
        await until_written(ann, "new")
        assert await said(ann) == ["both have it", "new"]
        assert await begun_at(nats_url) > begun  # the workers' durables are recreated too
    rows = (await turnlog("verify", "messages", "--json")).document
    assert [(row["clean"], row["rows"]) for row in rows] == [(True, 11)]
