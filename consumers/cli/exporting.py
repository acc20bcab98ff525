"""`turnlog export --user`: the document of a user to a file or to stdout, piece by piece (M9)."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from turnlog.agent.privacy.sanitise import SanitiseLevel
from turnlog.agent.progress import OnProgress
from turnlog.agent.settings import Settings
from turnlog.agent.use_cases.personal_data import export_person
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.errors import TurnlogError


class ExportFailed(TurnlogError):
    """The export cannot be written, or a level has no such name; nothing was left half-written."""

    code = "export-failed"


def level_named(name: str) -> SanitiseLevel:
    """Raises ExportFailed."""
    if name.upper() not in SanitiseLevel.__members__:
        raise ExportFailed(f"there is no level {name!r}; there are {', '.join(SanitiseLevel.__members__)}, and --raw")
    return SanitiseLevel[name.upper()]


async def write_user(
    settings: Settings, tenant: str, user: str, level: SanitiseLevel | None, output: Path | None, progress: OnProgress
) -> int:
    """Returns how many characters it wrote. output: None is stdout. Raises ExportFailed."""
    size = 0
    async with opened(settings, "turnlog-export") as runtime, projecting(runtime):
        pieces = export_person(runtime, tenant, user, level, progress)
        with whole_file(output) as file:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    size += file.write(piece)
    return size


@contextlib.contextmanager
def whole_file(output: Path | None) -> Iterator[TextIO]:
    """A file comes into its place when it is whole, for its owner alone; a pipe or a device stays and is written to.

    None: stdout gets everything at the end, or nothing. Raises ExportFailed.
    """
    if output is None:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            yield file
            file.seek(0)
            shutil.copyfileobj(file, sys.stdout)
        return
    is_kept = output.exists() and not output.is_file()
    part = output if is_kept else output.with_name(output.name + ".part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            yield file
        if not is_kept:
            part.replace(output)
    except OSError as error:
        raise ExportFailed(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        if not is_kept:
            part.unlink(missing_ok=True)
