"""After a redaction on three real nats-servers the words are gone, even after the leader dies."""

import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.nats_cluster import Cluster, start_cluster
from helpers.sample_events import turn
from helpers.servers import eventually
from helpers.stage import player

from turnlog.agent.privacy.redaction.redact import redact_turn
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.errors import LogUnavailable
from turnlog.events.log import Log
from turnlog.events.subjects import STREAM

SECRET = "Zebrafish-77"
# nats-py forgets to close the socket of a server that dies while it reconnects to it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*StreamWriter:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    started = await start_cluster(tmp_path / "cluster")
    yield started
    await started.stop()
    gc.collect()


async def contents(log: Log) -> str:
    return " ".join([str(stored.event) async for stored in log.read_thread("default", "t")])


@pytest.mark.nightly
async def test_redacted_words_stay_gone_for_readers_when_the_leader_dies(
    cluster: Cluster, database_url: str, tmp_path: Path
) -> None:
    play = player(",".join(cluster.urls), database_url, ["projectors"], home=tmp_path / "home", kek=None, replicas=3)
    async with play() as stage:
        runtime = stage.runtime
        seq = (await runtime.log.append(turn(f"My locker opens with {SECRET}, and I like tea.", user="ann"))).seq
        await runtime.wait_until_projected()
        assert SECRET in await contents(runtime.log)
        done = await redact_turn(runtime, "default", "t", seq, erasure_reach(runtime.settings), SECRET)
        assert done.data.hits == 0, done
        about = (await runtime.log.nc.jetstream().stream_info(STREAM)).cluster
        assert about is not None and about.leader is not None
        await cluster.kill(int(about.leader[1:]))

        async def is_gone() -> bool:
            with contextlib.suppress(LogUnavailable):  # until there is a new leader
                return SECRET not in await contents(runtime.log)
            return False

        await eventually(is_gone, 180)
        said = (await stage.events())[0]
        assert "I like tea." in str(said)
        await cluster.restart(int(about.leader[1:]))
