"""What an erasure works on, from a runtime: its servers, its files, its projectors (M9)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from turnlog.agent.embedded.home import home_at
from turnlog.agent.privacy.erase import Surroundings
from turnlog.agent.privacy.scanning import files_below
from turnlog.agent.privacy.traces import OnProgress, Person
from turnlog.agent.settings import Settings
from turnlog.consumers.background import log_path
from turnlog.consumers.graph.spaces import memories_of
from turnlog.consumers.runtime import Runtime
from turnlog.events.subjects import check_id, check_tenant
from turnlog.projectors.store_items import store_thread

Step = Callable[[str], AbstractContextManager[OnProgress]]


def person_of(tenant: str, user: str, namespaces: Iterable[str] = ()) -> Person:
    """namespaces: of LangGraph's store, labels joined by dots, beside the one of the user's memories.

    Raises InvalidToken.
    """
    check_tenant(tenant)
    check_id("user", user)
    spaces = [memories_of(user), *(tuple(one.split(".")) for one in namespaces)]
    threads = [thread for space in spaces for thread in (store_thread(space), store_thread(space) + ".")]
    return Person(tenant, user, tuple(threads))


def surroundings(runtime: Runtime, step: Step) -> Surroundings:
    settings = runtime.settings
    return Surroundings(
        log=runtime.log,
        pool=runtime.pool,
        database_url=runtime.database_url,
        settle=runtime.settle,
        step=step,
        files=lambda: _files(settings),
        archive=settings.archive,
        search_stream=settings.nats_url is not None,
    )


def _files(settings: Settings) -> Iterator[tuple[str, Path]]:
    """The stream's files and all logs of the data folder; those of servers elsewhere are out of reach."""
    home = home_at(settings.home)
    if settings.nats_url is None:
        yield from (("stream files", path) for path in files_below(home.nats))
    if settings.database_url is None:
        yield from (("log files", path) for path in files_below(home.postgres, ".log"))
    yield from (("log files", path) for path in home.path.glob(f"{log_path(settings).name}*") if path.is_file())
    yield from (("archive files", path) for path in files_below(settings.archive))
