"""Only its owner, and root on the owner's behalf, can use a home of embedded servers."""

import asyncio
import os
import stat
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import nats
import psutil
import pytest
from helpers.embedded_home import environment, pids, said, say, socket_folder
from helpers.servers import processes_left_in

from turnlog.consumers.servers import start
from turnlog.consumers.servers.postgres_server import MOST_LOG_BYTES
from turnlog.consumers.servers.server_user import hand_over, let_reach, server_identity

pytestmark = pytest.mark.slow


async def test_nobody_else_can_read_a_file_of_the_home_or_reach_the_socket(home: Path) -> None:
    """The umask restricts nothing; the logs of an earlier version were readable, and one of them is rotated."""
    older = [home / "nats/nats.log", home / "postgres/postgres.log", home / "turnlog.log", home / "kek"]
    for file in older:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.write_text("older")
        file.chmod(0o644)
    os.truncate(home / "postgres/postgres.log", MOST_LOG_BYTES + 1)
    before = os.umask(0)
    try:
        servers = await start(home)
    finally:
        os.umask(before)
    assert (home / "postgres/postgres.log.1").stat().st_size == MOST_LOG_BYTES + 1
    inside = [path for path in home.rglob("*") if not path.is_symlink() and not path.is_socket()]
    assert [path for path in inside if path.is_file() and path.stat().st_mode & 0o077] == []
    assert (home / "nats").stat().st_mode & 0o077 == 0
    assert socket_folder(servers).stat().st_mode & 0o077 == 0


ORDINARY_USER = """
import asyncio, encodings.idna, os, sys
from pathlib import Path
import psutil, psycopg
from turnlog.consumers.servers import start, status, stop
home, uid, gid = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
async def use():
    started = (await start(home)).started
    now = status(home)
    users = {it.uids().real for it in (now.nats, now.postgres)}
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
    """Yields a home outside pytest's folder, because each pytest run of root closes that folder to others."""
    with tempfile.TemporaryDirectory(prefix="turnlog-test-") as folder:
        yield Path(folder) / "home"


@pytest.mark.nightly
async def test_root_and_the_owner_of_a_home_share_its_servers(shared_home: Path) -> None:
    """When an ordinary user runs them, all other tests show that root is not needed."""
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
    assert processes_left_in(shared_home) == []


async def test_running_servers_survive_a_closed_parent_folder(home: Path) -> None:
    servers = await start(home)
    await say(servers, "before")
    home.chmod(0o700)  # removes the rights that root had granted to the servers' user
    await say(servers, "after")
    async with await nats.connect(servers.nats_url) as client:
        await client.jetstream().add_stream(name="MORE", subjects=["more"])
    assert await said(await start(home)) == (["before", "after"], ["before", "after"])


async def test_root_hands_the_servers_to_somebody_else(home: Path) -> None:
    await start(home)
    users = {psutil.Process(pid).uids().real for pid in pids(home).values()}
    assert len(users) == 1
    assert 0 not in users


def test_root_opens_a_private_folder_only_to_the_servers_and_a_group_folder_to_all(
    shared_home: Path,
) -> None:
    closed, of_a_group = shared_home / "closed", shared_home / "closed" / "of-a-group"
    data = of_a_group / "data"
    data.mkdir(parents=True)
    closed.chmod(0o700)
    of_a_group.chmod(0o750)
    if (identity := server_identity(shared_home)) is None:
        return
    let_reach(data, identity)
    modes = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in (closed, of_a_group)}
    assert modes == {closed: 0o710, of_a_group: 0o751}
    assert (closed.stat().st_gid, of_a_group.stat().st_gid) == (identity.gid, os.getegid())
    listed = subprocess.run(["ls", data], user=identity.uid, group=identity.gid, extra_groups=[], cwd="/")
    assert listed.returncode == 0
