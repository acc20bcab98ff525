"""Small files that a server reads."""

import os
from pathlib import Path

from turnlog.agent.embedded.identity import Identity


def write_private(path: Path, text: str, identity: Identity | None) -> None:
    """Writes `path` at once (a killed writer leaves the old one), for `identity` only. Raises OSError."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if identity is not None:
        os.chown(draft, identity.uid, identity.gid)
    draft.replace(path)
