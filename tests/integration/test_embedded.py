"""Embedded servers, real processes: they start, are found again, survive kills and leave nothing behind."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import nats
import psutil
import psycopg
import pytest

from turnlog.agent.embedded import (
    ServerOptions,
    Servers,
    ServerStartFailed,
    keep,
    lease,
    start,
    status,
    stop,
)
from turnlog.agent.embedded.home import home_at
from turnlog.agent.embedded.identity import hand_over, let_reach, server_identity
from turnlog.agent.embedded.nats_config import NatsAddress
from turnlog.agent.embedded.nats_probe import Answer, probe
from turnlog.agent.embedded.processes import alive, wait_until


def left_behind(folder: Path) -> list[str]:
    """Every process that works in `folder` or names it."""
    found = []
    for process in psutil.process_iter(["name", "cwd", "cmdline", "status"]):
        info = process.info
        texts = [info["cwd"] or "", *(info["cmdline"] or [])]
        if info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in text for text in texts):
            found.append(f"{process.pid} {info['name']}")
    return found


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    folder = tmp_path / "home"
    yield folder
    await stop(folder)
    assert left_behind(folder) == []


async def say(servers: Servers, text: str) -> None:
    """Writes `text` to both servers."""
    async with await nats.connect(servers.nats_url) as client:
        jetstream = client.jetstream()
        await jetstream.add_stream(name="NOTES", subjects=["notes"])
        await jetstream.publish("notes", text.encode())
    async with await psycopg.AsyncConnection.connect(servers.database_url) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
        await connection.execute("INSERT INTO notes VALUES (%s)", [text])


async def said(servers: Servers) -> tuple[list[str], list[str]]:
    """Everything written so far: (in JetStream, in Postgres)."""
    async with await nats.connect(servers.nats_url) as client:
        jetstream = client.jetstream()
        info = await jetstream.stream_info("NOTES")
        messages = [await jetstream.get_msg("NOTES", seq) for seq in range(1, info.state.last_seq + 1)]
    async with await psycopg.AsyncConnection.connect(servers.database_url) as connection:
        rows = await (await connection.execute("SELECT text FROM notes")).fetchall()
    return [(m.data or b"").decode() for m in messages], [row[0] for row in rows]


def pids(home: Path) -> dict[str, int]:
    now = status(home)
    return {name: it.pid for name, it in (("nats", now.nats), ("postgres", now.postgres)) if it is not None}


async def kill(home: Path, *names: str) -> None:
    victims = [psutil.Process(pid) for name, pid in pids(home).items() if name in names]
    for victim in victims:
        victim.kill()
    assert await wait_until(partial(dead, victims), lambda: True, timeout=10)


async def dead(processes: Iterable[psutil.Process]) -> bool:
    return not any(alive(process) for process in processes)


async def test_start_gives_jetstream_and_postgres_with_vectors(home: Path) -> None:
    servers = await start(home)
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


async def test_commands_that_start_at_once_end_with_one_pair(home: Path) -> None:
    results = await asyncio.gather(*(start(home) for _ in range(4)))
    assert sorted(len(each.started) for each in results) == [0, 0, 0, 2]
    assert len({(each.nats_url, each.database_url) for each in results}) == 1


async def test_stop_is_idempotent_and_keeps_the_data(home: Path) -> None:
    await stop(home)
    assert not home.exists()
    await say(await start(home), "one")
    await stop(home)
    await stop(home)
    assert (status(home).nats, status(home).postgres) == (None, None)
    assert left_behind(home) == []
    assert list(home.rglob(".s.PGSQL*")) == []
    assert await said(await start(home)) == (["one"], ["one"])


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


async def test_only_the_killed_one_of_the_two_is_started(home: Path) -> None:
    first = await start(home)
    await kill(home, "nats")
    assert (await start(home)).started == ("nats",)
    await kill(home, "postgres")
    assert await start(home) == Servers(first.nats_url, first.database_url, ("postgres",))


@pytest.mark.parametrize("pid_file", ["{pid}\n/elsewhere\n1\n5432\n", "", "not a pid file"])
async def test_stale_files_do_not_hinder_a_start(home: Path, pid_file: str) -> None:
    await say(await start(home), "kept")
    postgres = status(home).postgres
    assert postgres is not None
    await kill(home, "nats", "postgres")
    # The pid of a living stranger: this test.
    (home / "postgres/data/postmaster.pid").write_text(pid_file.format(pid=os.getpid()))
    (Path(postgres.address) / ".s.PGSQL.5432.lock").write_text(f"{os.getpid()}\n")
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


async def test_a_taken_port_of_the_last_run_is_left_to_its_new_owner(home: Path) -> None:
    first = await start(home)
    await stop(home)
    with socket.create_server(("127.0.0.1", address_in(first.nats_url)[0])):
        second = await start(home)
        assert second.nats_url != first.nats_url


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
        assert left_behind(other) == []
        assert await said(here) == (["here"], ["here"])
    finally:
        await stop(other)


def address_in(url: str) -> tuple[int, str]:
    parts = urlsplit(url)
    return parts.port or 0, parts.username or ""


async def test_a_deep_home_gets_a_short_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    try:
        await say(await start(deep), "deep")
        postgres = status(deep).postgres
        assert postgres is not None
        assert len(postgres.address) < 90
    finally:
        await stop(deep)
    assert left_behind(deep) == []
    assert not Path(postgres.address).exists()


async def test_nobody_else_can_read_the_token_or_reach_the_socket(home: Path) -> None:
    await start(home)
    now = status(home)
    assert now.postgres is not None
    assert (home / "nats/nats.conf").stat().st_mode & 0o077 == 0
    assert (home / "nats").stat().st_mode & 0o077 == 0
    assert Path(now.postgres.address).stat().st_mode & 0o077 == 0


async def test_the_last_lease_out_stops_the_servers(home: Path) -> None:
    async with lease(home):
        await start(home)
        async with lease(home):
            assert (await start(home)).started == ()
        assert len(pids(home)) == 2
    assert pids(home) == {}
    assert left_behind(home) == []


async def test_kept_servers_outlive_every_lease(home: Path) -> None:
    async with lease(home):
        await start(home)
        await keep(home)
    assert len(pids(home)) == 2
    assert status(home).kept
    await stop(home)
    assert (pids(home), status(home).kept) == ({}, False)


HOLDER = """
import asyncio, sys
from pathlib import Path
from turnlog.agent.embedded import lease, start
async def hold():
    async with lease(Path(sys.argv[1])):
        print((await start(Path(sys.argv[1]))).started, flush=True)
        await asyncio.sleep(60)
asyncio.run(hold())
"""


async def test_a_living_lease_of_another_process_counts_and_a_killed_one_does_not(home: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(home), stdout=PIPE, env=environment()
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"('nats', 'postgres')\n"
    async with lease(home):
        assert (await start(home)).started == ()
    assert len(pids(home)) == 2
    holder.kill()
    await holder.wait()
    assert len(pids(home)) == 2
    async with lease(home):
        assert (await start(home)).started == ()
    assert pids(home) == {}


async def test_a_command_killed_in_its_first_start_leaves_nothing_in_the_way(home: Path) -> None:
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(home), env=environment())

    async def in_the_making() -> bool:
        return (home / "postgres/data.new").exists()

    assert await wait_until(in_the_making, lambda: True, timeout=20)
    holder.kill()
    await holder.wait()
    await say(await start(home), "fine")
    assert not (home / "postgres/data.new").exists()
    await stop(home)
    assert left_behind(home) == []


async def test_a_command_that_gets_ctrl_c_gives_its_lease_back(home: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(home), stdout=PIPE,
        stderr=DEVNULL, env=environment(),
    )  # fmt: skip
    assert holder.stdout is not None
    await holder.stdout.readline()
    holder.send_signal(signal.SIGINT)
    await holder.wait()
    assert pids(home) == {}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


ORDINARY_USER = """
import asyncio, encodings.idna, os, sys
from pathlib import Path
import psutil, psycopg
from turnlog.agent.embedded import start, status, stop
home, uid, gid = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
async def use():
    started = (await start(home)).started
    now = status(home)
    users = {psutil.Process(it.pid).uids().real for it in (now.nats, now.postgres)}
    print(started, users == {uid}, flush=True)
async def play():
    os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
    await use()  # attaches to what root started
    await stop(home)
    await use()
    await stop(home)
asyncio.run(play())
"""


@pytest.fixture
def shared_home() -> Iterator[Path]:
    """Not below pytest's own folder, which each new pytest run of root closes to all others."""
    with tempfile.TemporaryDirectory(prefix="turnlog-test-") as folder:
        yield Path(folder) / "home"


async def test_root_and_the_owner_of_a_home_share_its_servers(shared_home: Path) -> None:
    """Run by an ordinary user, all the other tests show that no root is needed."""
    shared_home.mkdir()
    identity = server_identity(shared_home)
    assert (identity is None) == (os.geteuid() != 0)
    if identity is None:
        return
    hand_over(shared_home, identity)
    let_reach(shared_home, identity)
    assert (await start(shared_home)).started == ("nats", "postgres")
    argv = ["-W", "error", "-c", ORDINARY_USER, str(shared_home), str(identity.uid), str(identity.gid)]
    done = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=PIPE, stderr=PIPE, env=environment())
    out, err = await done.communicate()
    assert (err.decode(), out.decode()) == ("", "() True\n('nats', 'postgres') True\n")
    assert left_behind(shared_home) == []


async def test_running_servers_do_not_mind_a_folder_above_them_being_closed(home: Path) -> None:
    servers = await start(home)
    await say(servers, "before")
    home.chmod(0o700)  # takes back what root had granted to the servers' user
    await say(servers, "after")
    async with await nats.connect(servers.nats_url) as client:
        await client.jetstream().add_stream(name="MORE", subjects=["more"])
    assert await said(await start(home)) == (["before", "after"], ["before", "after"])


async def test_root_hands_the_servers_to_somebody_else(home: Path) -> None:
    await start(home)
    users = {psutil.Process(pid).uids().real for pid in pids(home).values()}
    assert len(users) == 1
    assert 0 not in users


async def test_a_data_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(ServerStartFailed, match=r"cannot use the data folder .*TURNLOG_HOME"):
        await start(tmp_path / "home")


async def test_a_database_of_another_major_version_is_refused_and_nothing_is_left_running(home: Path) -> None:
    (home / "postgres/data").mkdir(parents=True)
    (home / "postgres/data/PG_VERSION").write_text("16\n")
    with pytest.raises(ServerStartFailed, match=r"written by PostgreSQL 16.*runs 18"):
        await start(home)
    assert left_behind(home) == []


async def test_a_wished_port_that_is_taken_is_named(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartFailed, match=f"port {port} .* is taken"):
            await start(home, ServerOptions(nats_port=port))


async def test_a_server_that_does_not_start_shows_its_last_log_lines(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartFailed, match=r"(?s)nats\.log.*address already in use"):
            await start(home, ServerOptions(monitor_port=port))
    assert left_behind(home) == []
