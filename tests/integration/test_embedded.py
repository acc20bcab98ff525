"""Embedded servers are real processes that start, are found again, survive kills and leave nothing behind."""

import asyncio
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import nats
import psutil
import psycopg
import pytest
from helpers.embedded_home import dead, kill, pids, said, say, socket_folder
from helpers.servers import processes_left_in

from turnlog.consumers.servers import Servers, ServerStartFailed, start, status, stop
from turnlog.consumers.servers.home import home_at
from turnlog.consumers.servers.nats_config import NatsAddress
from turnlog.consumers.servers.nats_server import Answer, probe

pytestmark = pytest.mark.slow


async def test_start_gives_jetstream_and_postgres_with_vectors(new_home: Path) -> None:
    servers = await start(new_home)
    assert servers.started == ("nats", "postgres")
    async with await psycopg.AsyncConnection.connect(servers.database_url) as connection:
        cursor = await connection.execute("SELECT '[1,2]'::vector <-> '[1,3]', version(), current_database()")
        distance, version, database = await cursor.fetchone() or (None, "", "")
        waits = [await connection.execute(f"SHOW {name}") for name in ("fsync", "synchronous_commit", "jit")]
        assert [await each.fetchone() for each in waits] == [("on",), ("on",), ("off",)]
    assert (distance, version.split(".")[0], database) == (1.0, "PostgreSQL 18", "turnlog")
    async with await nats.connect(servers.nats_url) as client:
        assert client.max_payload == 8 * 1024 * 1024
        await client.jetstream().account_info()


async def test_second_start_attaches_to_the_running_pair(home: Path) -> None:
    first = await start(home)
    before = pids(home)
    second = await start(home)
    assert (second.nats_url, second.database_url) == (first.nats_url, first.database_url)
    assert second.started == ()
    assert pids(home) == before
    assert len(before) == 2


async def test_commands_that_start_at_once_end_with_one_pair(new_home: Path) -> None:
    results = await asyncio.gather(*(start(new_home) for _ in range(4)))
    assert sorted(len(each.started) for each in results) == [0, 0, 0, 2]
    assert len({(each.nats_url, each.database_url) for each in results}) == 1


async def test_stop_is_idempotent_and_keeps_the_data(new_home: Path) -> None:
    await stop(new_home)
    assert not new_home.exists()
    await say(await start(new_home), "one")
    await stop(new_home)
    await stop(new_home)
    assert (status(new_home).nats, status(new_home).postgres) == (None, None)
    assert processes_left_in(new_home) == []
    assert list(new_home.rglob(".s.PGSQL*")) == []
    assert await said(await start(new_home)) == (["one"], ["one"])


async def test_servers_do_not_get_the_ctrl_c_of_the_command_that_started_them(home: Path) -> None:
    await start(home)
    sessions = {os.getsid(pid) for pid in pids(home).values()}
    assert os.getsid(0) not in sessions
    assert len(sessions) == 2


async def test_killed_servers_are_taken_over_with_their_data_and_address(home: Path) -> None:
    first = await start(home)
    await say(first, "before the kill")
    await kill(home, "nats", "postgres")
    second = await start(home)
    assert second.started == ("nats", "postgres")
    assert (second.nats_url, second.database_url) == (first.nats_url, first.database_url)
    assert await said(second) == (["before the kill"], ["before the kill"])


async def test_only_the_killed_server_is_started_again(home: Path) -> None:
    first = await start(home)
    await kill(home, "nats")
    assert (await start(home)).started == ("nats",)
    await kill(home, "postgres")
    assert await start(home) == Servers(first.nats_url, first.database_url, ("postgres",))


@pytest.mark.parametrize(
    "pid_file",
    [
        "{pid}\n/elsewhere\n1\n5432\n",
        pytest.param("", marks=pytest.mark.nightly),
        pytest.param("not a pid file", marks=pytest.mark.nightly),
    ],
)
async def test_stale_files_do_not_hinder_a_start(home: Path, pid_file: str) -> None:
    servers = await start(home)
    await say(servers, "kept")
    await kill(home, "nats", "postgres")
    # The pid of an unrelated running process, namely this test.
    (home / "postgres/data/postmaster.pid").write_text(pid_file.format(pid=os.getpid()))
    (socket_folder(servers) / ".s.PGSQL.5432.lock").write_text(f"{os.getpid()}\n")
    (home / "nats/nats.new").write_text("half a fi")
    assert await said(await start(home)) == (["kept"], ["kept"])


async def test_running_servers_with_lost_state_files_are_taken_over(home: Path) -> None:
    await say(await start(home), "kept")
    orphans = [psutil.Process(pid) for pid in pids(home).values()]
    (home / "nats/nats.conf").unlink()
    (home / "postgres/data/postmaster.pid").unlink()
    servers = await start(home)
    assert servers.started == ("nats", "postgres")
    assert await said(servers) == (["kept"], ["kept"])
    assert await dead(orphans)
    assert len(pids(home)) == 2


@pytest.mark.nightly
async def test_a_taken_port_of_the_last_run_is_left_to_its_new_owner(home: Path) -> None:
    first = await start(home)
    await stop(home)
    with socket.create_server(("127.0.0.1", address_in(first.nats_url)[0])):
        second = await start(home)
        assert second.nats_url != first.nats_url


async def test_a_port_that_the_last_server_frees_late_is_waited_for(home: Path) -> None:
    first = await start(home)
    await stop(home)
    with socket.create_server(("127.0.0.1", address_in(first.nats_url)[0])) as held:
        asyncio.get_running_loop().call_later(0.5, held.close)
        second = await start(home)
    assert second.nats_url == first.nats_url


@pytest.mark.nightly
async def test_two_homes_do_not_collide(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other home, with 'quotes' and ümläuts"
    try:
        here, there = await asyncio.gather(start(home), start(other))
        await say(here, "here")
        await say(there, "there")
        assert await said(here) == (["here"], ["here"])
        assert await said(there) == (["there"], ["there"])
        right = NatsAddress(*address_in(there.nats_url))
        wrong = NatsAddress(right.port, address_in(here.nats_url)[1])
        name = f"turnlog-{home_at(other).key}"
        assert await probe(right, name) is Answer.READY
        assert await probe(wrong, name) is Answer.STRANGER
        await stop(other)
        assert processes_left_in(other) == []
        assert await said(here) == (["here"], ["here"])
    finally:
        await stop(other)


def address_in(url: str) -> tuple[int, str]:
    parts = urlsplit(url)
    return parts.port or 0, parts.password or ""


async def test_a_deep_home_gets_a_short_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    try:
        servers = await start(deep)
        await say(servers, "deep")
        assert len(str(socket_folder(servers))) < 90
    finally:
        await stop(deep)
    assert processes_left_in(deep) == []
    assert not socket_folder(servers).exists()


async def test_a_data_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(ServerStartFailed, match=r"cannot use the data folder .*TURNLOG_HOME"):
        await start(tmp_path / "home")


async def test_a_database_of_another_major_version_is_refused_and_nothing_is_left_running(new_home: Path) -> None:
    (new_home / "postgres/data").mkdir(parents=True)
    (new_home / "postgres/data/PG_VERSION").write_text("16\n")
    with pytest.raises(ServerStartFailed, match=r"written by PostgreSQL 16.*runs 18"):
        await start(new_home)
    assert processes_left_in(new_home) == []


async def test_a_configured_port_that_is_taken_is_named(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartFailed, match=f"port {port} .* is taken"):
            await start(home, nats_port=port)


async def test_a_server_that_does_not_start_shows_its_last_log_lines(home: Path) -> None:
    (home / "nats").mkdir()
    (home / "nats/store").write_text("a file in the place of the folder")
    with pytest.raises(ServerStartFailed, match=r"(?s)nats\.log.*not a directory"):
        await start(home)
    assert processes_left_in(home) == []
