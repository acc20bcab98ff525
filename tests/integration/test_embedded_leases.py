"""Leases keep the embedded servers running; the end of the last lease stops them."""

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest
from helpers.embedded_home import environment, pids, say
from helpers.servers import processes_left_in

from turnlog.consumers.servers import keep, lease, start, stop
from turnlog.consumers.servers.home import home_at
from turnlog.consumers.servers.processes import wait_until

pytestmark = pytest.mark.slow


async def test_the_last_lease_out_stops_the_servers(home: Path) -> None:
    async with lease(home):
        await start(home)
        async with lease(home):
            assert (await start(home)).started == ()
        assert len(pids(home)) == 2
    assert pids(home) == {}
    assert processes_left_in(home) == []


async def test_kept_servers_outlive_every_lease(home: Path) -> None:
    async with lease(home):
        await start(home)
        await keep(home)
    assert len(pids(home)) == 2
    assert home_at(home).keep_flag.exists()
    await stop(home)
    assert (pids(home), home_at(home).keep_flag.exists()) == ({}, False)


HOLDER = """
import asyncio, sys
from pathlib import Path
from turnlog.consumers.servers import lease, start
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


async def test_a_command_killed_in_its_first_start_does_not_block_the_next(new_home: Path) -> None:
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(new_home), env=environment())

    async def in_the_making() -> bool:
        return (new_home / "postgres/data.new").exists()

    assert await wait_until(in_the_making, lambda: True, timeout=60)
    holder.kill()
    await holder.wait()
    await say(await start(new_home), "fine")
    assert not (new_home / "postgres/data.new").exists()
    await stop(new_home)
    assert processes_left_in(new_home) == []


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
