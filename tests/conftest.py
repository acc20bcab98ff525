"""Provides real servers for every test: those of the environment, or containers, or embedded servers."""

import asyncio
import gc
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import nats
import psutil
import pytest
from helpers import nightly
from helpers.api import Api, Serve, server
from helpers.chromium import NO_BROWSER
from helpers.databases import Databases
from helpers.forked_workers import fork_workers
from helpers.key_rings import keks
from helpers.prepared_home import copy_database, make_prepared_home, shared_by_workers
from helpers.servers import database_at, empty_nats, execute, processes_left_in, running_projector
from helpers.slow_callbacks import SlowCallbacks
from helpers.stage import MemoryServer
from nats.js.errors import NotFoundError

from turnlog.agent.access.throttle import fair_share
from turnlog.agent.conversations.sessions import bucket, levels, tail
from turnlog.agent.models import calls
from turnlog.agent.privacy.keys.key_stream import KeyStream
from turnlog.agent.recall import memory_search, search
from turnlog.consumers.servers import background, lease, postgres_server, start, stop
from turnlog.consumers.servers.postgres_server import DATABASE
from turnlog.consumers.workers import answering, durable_consumer
from turnlog.events.log import Log
from turnlog.events.stream import StreamOptions
from turnlog.events.subjects import STREAM
from turnlog.migrations.upgrade import upgrade
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.engine import Runner
from turnlog.projectors.engine.lag import wait_for
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import BY_NAME

Settled = Callable[..., Awaitable[None]]

RUN_FOLDER = "turnlog-tests-"
MEMORY_DISK, ROOM = Path("/dev/shm"), 4 * 2**30

# A shell's background job ignores Ctrl-C, and so would every command that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly",
        action="store_true",
        help="long kills of servers, projections at every size of batch, slow properties with all examples",
    )
    parser.addoption("--slow-callbacks", action="store_true", help="name callbacks that block the event loop for long")


def pytest_configure(config: pytest.Config) -> None:
    """Puts the files of tests and servers in memory if there is room, which halves the time. Tests kill processes but
    not the machine, so files in memory survive like files on disk.

    Each run has a separate folder. In pytest's common folder for all runs of root, the next run would revoke the
    access of the servers' user to its files."""
    nightly.FULL = config.getoption("nightly")
    if config.getoption("slow_callbacks"):
        watch = SlowCallbacks()
        watch.watch()
        config.pluginmanager.register(watch)
    gc.disable()  # off during collection, because modules and test items are not garbage
    # The duration of an example depends on the machine and not on the code. In CI the examples are the same for the
    # same code, so that random findings do not fail unrelated changes; elsewhere they are different each time.
    hypothesis.settings.register_profile(
        "turnlog", deadline=None, derandomize="CI" in os.environ, max_examples=nightly.examples(100)
    )
    hypothesis.settings.load_profile("turnlog")
    if config.getoption("basetemp") is None and "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        root = MEMORY_DISK if has_room() else Path(tempfile.gettempdir())
        remove_folders_of_ended_runs(root)
        own = root / f"{RUN_FOLDER}{os.getpid()}"
        own.mkdir(mode=0o700, exist_ok=True)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own)


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Forks the workers. pytest-xdist calls this in the process that starts the workers, before their start."""
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    fork_workers(config, patch)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not nightly.FULL:
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Excludes the million objects of modules and test items from later garbage collections."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.getreports("skipped") if NO_BROWSER in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests of the web page did not run: {NO_BROWSER}")


def remove_folders_of_ended_runs(root: Path) -> None:
    """Removes the folders of earlier runs. The files of failed tests are kept until the next run."""
    for folder in root.glob(f"{RUN_FOLDER}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(RUN_FOLDER))):
            shutil.rmtree(folder, ignore_errors=True)


def has_room() -> bool:
    if not MEMORY_DISK.is_dir() or os.statvfs(MEMORY_DISK).f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
        return False
    return min(psutil.virtual_memory().available, shutil.disk_usage(MEMORY_DISK).free) > ROOM


@pytest.fixture(autouse=True)
def short_pauses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pauses before retries, because tests wait for results and not for pauses. Unit tests check the real
    pauses."""
    if "unit" not in request.path.parts:
        monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.02)
        monkeypatch.setattr(durable_consumer, "SERVER_AWAY_S", 0.2)
        monkeypatch.setattr(answering, "RETRY_S", 0.5)
        monkeypatch.setattr(background, "FIRST_PAUSE_S", 0.1)


@pytest.fixture(autouse=True)
def long_patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises the time limits of optional work, so that it succeeds on a busy machine: tests expect memories found by
    vectors, copies of sessions in the bucket and counted requests. Tests of timeouts shorten the limits themselves."""
    if "unit" not in request.path.parts:
        for module in (fair_share, bucket, tail):
            monkeypatch.setattr(module, "PATIENCE_S", 30.0)
        monkeypatch.setattr(levels, "POSTGRES_PATIENCE_S", 30.0)
        for module in ("conversation", "conversation_context"):
            monkeypatch.setattr(f"turnlog.consumers.langgraph.{module}.PATIENCE_S", 30.0)
        monkeypatch.setattr(memory_search, "ANSWER_PATIENCE_S", 30.0)
        monkeypatch.setattr(search, "EMBEDDING_PATIENCE_S", 30.0)


@pytest.fixture
def no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the pause after a failed model call too long for a retry."""
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 120.0)


@dataclass(frozen=True, slots=True)
class TestServers:
    """The servers of this test session; no other session uses them."""

    __test__ = False

    nats_url: str
    database_url: str
    migrated: str | None = None  # a database that already has the schema and no connections


@pytest.fixture(scope="session")
async def prepared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the data folder of stopped servers with a migrated, empty database; created once for all workers."""
    return await make_prepared_home(shared_by_workers(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TestServers]:
    """Yields the servers of NATS_URL and DATABASE_URL if both are set, else containers if Docker answers, else embedded
    servers."""
    addresses = os.environ.get("NATS_URL"), os.environ.get("DATABASE_URL")
    if addresses[0] and addresses[1]:
        await refuse_a_log_in_use(addresses[0])
        yield TestServers(addresses[0], addresses[1])
    elif docker_answers():
        with containers() as started:
            yield started
    else:
        prepared = await make_prepared_home(shared_by_workers(tmp_path_factory.getbasetemp()))
        async with embedded(copy_database(prepared, tmp_path_factory.mktemp("servers") / "home")) as started:
            yield started


@pytest.fixture(scope="session")
async def template(servers: TestServers) -> AsyncIterator[str]:
    """Yields the name of a migrated, empty database from which others are copied."""
    name = f"turnlog_template_{uuid.uuid4().hex[:12]}"
    if servers.migrated is not None:
        await execute(
            database_at(servers.database_url, "postgres"), f"CREATE DATABASE {name} TEMPLATE {servers.migrated}"
        )
    else:
        await execute(servers.database_url, f"CREATE DATABASE {name}")
        await asyncio.to_thread(upgrade, database_at(servers.database_url, name))
    yield name
    await execute(servers.database_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
async def databases(servers: TestServers, template: str) -> AsyncIterator[Databases]:
    made = Databases(servers.database_url, template)
    yield made
    await made.close()


@pytest.fixture
async def database_url(databases: Databases) -> AsyncIterator[str]:
    """Yields the URL of a migrated, empty database for this test only."""
    async with databases.empty() as url:
        yield url


@pytest.fixture
async def empty_database_url(databases: Databases) -> AsyncIterator[str]:
    """Yields the URL of a second empty database, into which the log is read as after the loss of Postgres."""
    async with databases.empty() as url:
        yield url


@pytest.fixture
async def nats_url(servers: TestServers) -> str:
    """Returns the URL of the NATS server after emptying it; tests run one after another, so each gets an empty
    server."""
    await empty_nats(servers.nats_url)
    return servers.nats_url


@pytest.fixture
async def log(nats_url: str) -> AsyncIterator[Log]:
    """Yields an empty log."""
    connected = await Log.connect(nats_url, StreamOptions())
    yield connected
    await connected.close()


@pytest.fixture
async def key_stream(log: Log) -> KeyStream:
    """Returns the empty stream of users' keys."""
    stream = KeyStream(log.nc, keks())
    await stream.create(StreamOptions())
    return stream


@pytest.fixture
def serve(nats_url: str, database_url: str, tmp_path: Path) -> Serve:
    return server(nats_url, database_url, tmp_path)


@pytest.fixture
def model() -> Iterator[MemoryServer]:
    """Yields a model server that answers the reactors' prompts."""
    with MemoryServer() as server:
        yield server


@pytest.fixture
async def api(serve: Serve, model: MemoryServer) -> AsyncIterator[Api]:
    """Yields the HTTP server with the agent, which uses `model`; topics are not tagged."""
    async with serve("agent", api_base_url=model.url, model="m", topic_extraction=False) as api:
        yield api


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Connection]:
    async with await connect(database_url) as conn:
        yield conn


@pytest.fixture
async def running_projectors(log: Log, database_url: str) -> AsyncIterator[Runner]:
    """Runs all projections of the only partition during the test."""
    async with running_projector(log, database_url) as runner:
        yield runner


@pytest.fixture
def settled(log: Log, db: Connection) -> Settled:
    """Returns a function that waits until every projection (or the named ones) has applied the current log."""

    async def wait(*names: str) -> None:
        await wait_for(db, names or tuple(BY_NAME), 0, await log.partition_head(0), 180.0)

    return wait


@pytest.fixture
async def home(prepared_home: Path, new_home: Path) -> Path:
    """Returns a folder for separate embedded servers of a test, with a migrated, empty database."""
    return copy_database(prepared_home, new_home)


@pytest.fixture
async def new_home(tmp_path: Path) -> AsyncIterator[Path]:
    """Yields a folder that does not exist, for tests of the first start of embedded servers."""
    folder = tmp_path / "home"
    yield folder
    await stop(folder)
    assert processes_left_in(folder) == []


@asynccontextmanager
async def embedded(home: Path) -> AsyncIterator[TestServers]:
    async with lease(home):
        with pytest.MonkeyPatch.context() as patch:
            # Every connection maps the buffers, and DROP DATABASE reads them all; 1 GB would take a tenth of the tests'
            # CPU time.
            patch.setattr(postgres_server, "MOST_BUFFERS_MB", 128)
            started = await start(home)
        yield TestServers(started.nats_url, started.database_url, DATABASE)
    assert processes_left_in(home) == []


def docker_answers() -> bool:
    if not (os.environ.get("DOCKER_HOST") or Path("/var/run/docker.sock").exists()):
        return False
    import docker

    try:
        docker.from_env(timeout=3).close()
    except docker.errors.DockerException:
        return False
    return True


@contextmanager
def containers() -> Iterator[TestServers]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    broker = DockerContainer("nats:2.15").with_command("-js").with_exposed_ports(4222)
    database = DockerContainer("pgvector/pgvector:pg18").with_env("POSTGRES_HOST_AUTH_METHOD", "trust")
    broker.waiting_for(LogMessageWaitStrategy("Server is ready"))
    database.with_exposed_ports(5432).waiting_for(LogMessageWaitStrategy("listening on IPv4 address .*5432"))
    with broker, database:
        yield TestServers(
            f"nats://{broker.get_container_host_ip()}:{broker.get_exposed_port(4222)}",
            f"postgresql://postgres@{database.get_container_host_ip()}:{database.get_exposed_port(5432)}/postgres",
        )


async def refuse_a_log_in_use(nats_url: str) -> None:
    """Refuses a server whose log is in use, because tests delete the stream and the variable may be set by mistake."""
    async with await nats.connect(nats_url) as client:
        try:
            state = (await client.jetstream().stream_info(STREAM)).state
        except NotFoundError:
            return
    if state.messages:
        pytest.exit(f"NATS_URL has a stream {STREAM} of {state.messages} events; tests would delete it", 2)
