"""Real servers for every test: those of the environment, or containers, or the embedded ones."""

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

from turnlog.agent.access.throttle import admission, fair_share
from turnlog.agent.conversations.sessions import bucket, levels, tail
from turnlog.agent.models import calls
from turnlog.agent.operations.jobs import caches
from turnlog.agent.privacy.keys.key_stream import KeyStream
from turnlog.agent.recall import memory_search, search
from turnlog.consumers.servers import background, lease, postgres_server, start, stop
from turnlog.consumers.servers.postgres_server import DATABASE
from turnlog.consumers.workers import answering, durable_consumer
from turnlog.consumers.workers.reactors import segments
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

# A shell's background job ignores Ctrl-C, and so would every command that is begun here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly",
        action="store_true",
        help="long kills of servers, projections at every size of batch, slow properties with all examples",
    )
    parser.addoption("--slow-callbacks", action="store_true", help="name callbacks that block the event loop for long")


def pytest_configure(config: pytest.Config) -> None:
    """The files of tests and their servers are in memory where it has room, which takes half of the time: processes
    are killed here, no machine is, and what a killed one had written stays on either kind of disk.

    Each run has a folder of its own. In the one that pytest has for all runs of root, the next run to begin would take
    the servers' user the right to reach its files."""
    nightly.FULL = config.getoption("nightly")
    if config.getoption("slow_callbacks"):
        watch = SlowCallbacks()
        watch.watch()
        config.pluginmanager.register(watch)
    gc.disable()  # until all is collected: nothing of modules and test items is garbage
    # How long an example takes says something of the machine, nothing of the code. In CI the examples are the same
    # for the same code, so that nobody's change is blamed for what chance finds; elsewhere they are new ones each time.
    hypothesis.settings.register_profile(
        "turnlog", deadline=None, derandomize="CI" in os.environ, max_examples=nightly.examples(100)
    )
    hypothesis.settings.load_profile("turnlog")
    if config.getoption("basetemp") is None and "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        place = MEMORY_DISK if has_room() else Path(tempfile.gettempdir())
        remove_folders_of_ended_runs(place)
        own = place / f"{RUN_FOLDER}{os.getpid()}"
        own.mkdir(mode=0o700, exist_ok=True)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own)


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Called in the process that starts the workers, before their start."""
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    fork_workers(config, patch)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not nightly.FULL:
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Every search for garbage would go through the million objects of modules and test items again."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.getreports("skipped") if NO_BROWSER in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests of the web page did not run: {NO_BROWSER}")


def remove_folders_of_ended_runs(place: Path) -> None:
    """A run leaves what its failed tests wrote, for a look until the next one."""
    for folder in place.glob(f"{RUN_FOLDER}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(RUN_FOLDER))):
            shutil.rmtree(folder, ignore_errors=True)


def has_room() -> bool:
    if not MEMORY_DISK.is_dir() or os.statvfs(MEMORY_DISK).f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
        return False
    return min(psutil.virtual_memory().available, shutil.disk_usage(MEMORY_DISK).free) > ROOM


@pytest.fixture(autouse=True)
def short_pauses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again sooner than in use: tests wait for what happens, not for pauses. Unit tests look at
    the pauses themselves."""
    if "unit" not in request.path.parts:
        monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.02)
        monkeypatch.setattr(durable_consumer, "SERVER_AWAY_S", 0.2)
        monkeypatch.setattr(answering, "RETRY_S", 0.5)
        monkeypatch.setattr(background, "FIRST_PAUSE_S", 0.1)


@pytest.fixture(autouse=True)
def long_patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives what a user does not wait for in use the time that it takes on a busy machine: a test expects memories
    found by their vectors, copies of sessions in the bucket and requests that are counted. A test of the other case
    shortens the time itself."""
    if "unit" not in request.path.parts:
        for module in (admission, fair_share, bucket, tail, caches):
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


@pytest.fixture
def no_segment_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries a failed checkpoint without pauses."""
    monkeypatch.setattr(segments, "PAUSES_S", [0.0] * len(segments.PAUSES_S))


@pytest.fixture
def impatient_throttle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the throttle wait only a tenth of a second until a request is counted."""
    monkeypatch.setattr(admission, "PATIENCE_S", 0.1)


@dataclass(frozen=True, slots=True)
class TestServers:
    """What the tests of this session run on; both are theirs alone."""

    __test__ = False

    nats_url: str
    database_url: str
    migrated: str | None = None  # a database that has the schema already, and that nobody is connected to


@pytest.fixture(scope="session")
async def prepared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of stopped servers with a migrated, empty database; made once for all workers."""
    return await make_prepared_home(shared_by_workers(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TestServers]:
    """NATS_URL and DATABASE_URL when both are set; else containers when Docker answers; else embedded servers."""
    given = os.environ.get("NATS_URL"), os.environ.get("DATABASE_URL")
    if given[0] and given[1]:
        await refuse_a_log_in_use(given[0])
        yield TestServers(given[0], given[1])
    elif docker_answers():
        with containers() as found:
            yield found
    else:
        prepared = await make_prepared_home(shared_by_workers(tmp_path_factory.getbasetemp()))
        async with embedded(copy_database(prepared, tmp_path_factory.mktemp("servers") / "home")) as found:
            yield found


@pytest.fixture(scope="session")
async def template(servers: TestServers) -> AsyncIterator[str]:
    """The name of a migrated, empty database that others are copied from."""
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
    """A migrated database without any row, of this test alone."""
    async with databases.empty() as url:
        yield url


@pytest.fixture
async def empty_database_url(databases: Databases) -> AsyncIterator[str]:
    """A second one: the log is read as after the loss of Postgres."""
    async with databases.empty() as url:
        yield url


@pytest.fixture
async def nats_url(servers: TestServers) -> str:
    """The NATS server without any log or session: tests run one after another, so each gets an empty one."""
    await empty_nats(servers.nats_url)
    return servers.nats_url


@pytest.fixture
async def log(nats_url: str) -> AsyncIterator[Log]:
    """An empty log."""
    found = await Log.connect(nats_url, StreamOptions())
    yield found
    await found.close()


@pytest.fixture
async def key_stream(log: Log) -> KeyStream:
    """The stream of users' keys, without any."""
    found = KeyStream(log.nc, keks())
    await found.create(StreamOptions())
    return found


@pytest.fixture
def serve(nats_url: str, database_url: str, tmp_path: Path) -> Serve:
    return server(nats_url, database_url, tmp_path)


@pytest.fixture
def model() -> Iterator[MemoryServer]:
    """A language model that knows the reactors' prompts."""
    with MemoryServer() as server:
        yield server


@pytest.fixture
async def api(serve: Serve, model: MemoryServer) -> AsyncIterator[Api]:
    """The HTTP server with the agent, which asks `model`; topics are not tagged."""
    async with serve("agent", api_base_url=model.url, model="m", topic_extraction=False) as api:
        yield api


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Connection]:
    async with await connect(database_url) as conn:
        yield conn


@pytest.fixture
async def running_projectors(log: Log, database_url: str) -> AsyncIterator[Runner]:
    """All projections of the one partition follow the log while the test runs."""
    async with running_projector(log, database_url) as runner:
        yield runner


@pytest.fixture
def settled(log: Log, db: Connection) -> Settled:
    """await settled() returns when every projection (or those named) applied all that is in the log now."""

    async def wait(*names: str) -> None:
        await wait_for(db, names or tuple(BY_NAME), 0, await log.partition_head(0), 180.0)

    return wait


@pytest.fixture
async def home(prepared_home: Path, new_home: Path) -> Path:
    """A folder for embedded servers of the test's own; their database is migrated and empty."""
    return copy_database(prepared_home, new_home)


@pytest.fixture
async def new_home(tmp_path: Path) -> AsyncIterator[Path]:
    """A folder that does not exist, for tests of the first start of embedded servers."""
    folder = tmp_path / "home"
    yield folder
    await stop(folder)
    assert processes_left_in(folder) == []


@asynccontextmanager
async def embedded(home: Path) -> AsyncIterator[TestServers]:
    async with lease(home):
        with pytest.MonkeyPatch.context() as patch:
            # Every connection maps them, and DROP DATABASE reads all: with 1 GB, a tenth of the tests' processor time.
            patch.setattr(postgres_server, "MOST_BUFFERS_MB", 128)
            found = await start(home)
        yield TestServers(found.nats_url, found.database_url, DATABASE)
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
    """Tests delete the stream; a log that somebody uses must not be lost to a forgotten variable."""
    async with await nats.connect(nats_url) as client:
        try:
            state = (await client.jetstream().stream_info(STREAM)).state
        except NotFoundError:
            return
    if state.messages:
        pytest.exit(f"NATS_URL has a stream {STREAM} of {state.messages} events; tests would delete it", 2)
