"""Data of an earlier commit (tests/helpers/release_data.py) can be opened unchanged on servers of this run."""

import json
import logging
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import psycopg
import pytest
from conftest import TestServers
from helpers.release_data import ERASED, RELEASE, SECRETS, STREAMS, reads, unpack
from helpers.servers import database_at, execute, rows, unlike_a_rebuild

import turnlog
from turnlog.events import backup
from turnlog.projectors.engine.database import connect
from turnlog.projectors.models.registry import PROJECTIONS

VERSIONS = "SELECT projection, build, code_version FROM projection_positions ORDER BY 1, 2"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    unpack(RELEASE, tmp_path / "release")
    return tmp_path / "release"


@pytest.fixture
async def release_database(servers: TestServers, template: str, release: Path) -> AsyncIterator[str]:
    """Yields the URL of a database as the release left it. template: its migrations create the role for the tenants'
    policies."""
    url = database_at(servers.database_url, name := f"turnlog_release_{uuid.uuid4().hex[:12]}")
    await execute(servers.database_url, f"CREATE DATABASE {name} TEMPLATE template0")
    lines = (release / "database.sql").read_text("utf-8").splitlines(keepends=True)
    dump = "".join(line for line in lines if not line.startswith("\\"))  # without psql's own commands
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await conn.execute(dump.encode())
    yield url
    await execute(servers.database_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def release_nats(nats_url: str, release: Path) -> str:
    """Returns the address of a NATS server with the log and the keys of the release."""
    async with await nats.connect(nats_url) as client:
        for name, stream in STREAMS.items():
            await backup.restore(client, stream, release / name)
    return nats_url


async def test_data_of_the_previous_release_opens_without_a_rebuild_and_reads_as_before(
    release_nats: str, release_database: str, release: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "turnlog.projectors")
    async with await connect(release_database) as conn:
        projected_by_release = await rows(conn, VERSIONS)
    places = {"nats_url": release_nats, "database_url": release_database}
    async with turnlog.open(tmp_path / "home", roles=("projectors",), **places, **SECRETS) as memory:
        await memory.runtime.wait_until_projected()
        recorded = json.loads((release / "reads.json").read_text("utf-8"))
        assert as_recorded(await reads(memory), recorded) == recorded
        assert recorded["threads"][ERASED] == [] and recorded["context knows the dog"] == [True]

        async with await connect(release_database) as conn:
            now = await rows(conn, VERSIONS)
        names = {name for name, _, _ in projected_by_release}
        assert [row for row in now if row[0] in names] == projected_by_release
        assert not [text for text in caplog.messages for name in names if "rebuil" in text and name in text]

        added = await memory.thread("trip", user="ann").add("user", "Sesame caught a cold in Kyoto.")
        assert (await memory.thread("trip", user="ann").messages())[-1].seq == added.seq
        existing = [projection for projection in PROJECTIONS if projection.name in names]
        assert await unlike_a_rebuild(memory.runtime.log, release_database, existing) == {}


def as_recorded(now: Any, recorded: Any) -> Any:
    """Returns the current result without fields that the release did not have yet."""
    if isinstance(now, dict) and isinstance(recorded, dict):
        return {key: as_recorded(value, recorded[key]) for key, value in now.items() if key in recorded}
    if isinstance(now, list) and isinstance(recorded, list) and len(now) == len(recorded):
        return [as_recorded(*pair) for pair in zip(now, recorded, strict=True)]
    return now
