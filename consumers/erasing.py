"""Finds the files that an erasure searches: those of the embedded servers, the logs and the archive."""

from collections.abc import Iterator
from pathlib import Path

from turnlog.agent.privacy.erasure.erasure_plan import ErasureReach, Step, silent_step
from turnlog.agent.privacy.erasure.scanning import files_below
from turnlog.agent.settings import Settings
from turnlog.consumers.servers.background import log_path
from turnlog.consumers.servers.home import home_at


def erasure_reach(settings: Settings, step: Step = silent_step) -> ErasureReach:
    return ErasureReach(lambda: _files(settings), step)


def _files(settings: Settings) -> Iterator[tuple[str, Path]]:
    """Yields (kind, path) of the stream's files, the log files and the archive; files of external servers cannot be
    read."""
    home = home_at(settings.home)
    if settings.nats_url is None:
        yield from (("stream files", path) for path in files_below(home.nats))
    if settings.database_url is None:
        yield from (("log files", path) for path in files_below(home.postgres, ".log"))
    yield from (("log files", path) for path in home.path.glob(f"{log_path(settings).name}*") if path.is_file())
    yield from (("archive files", path) for path in files_below(settings.archive))
