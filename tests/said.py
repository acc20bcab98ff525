"""The command `turnlog` on the servers of a test: what it printed, its document and its error."""

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import COMMAND


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        assert self.code == 0, self.out + self.err
        return json.loads(self.out)

    @property
    def error(self) -> str:
        code: str = json.loads(self.out)["error"]["code"]
        assert self.code == 1
        return code


Cli = Callable[..., Awaitable[Said]]


@pytest.fixture
def turnlog(nats_url: str, database_url: str, tmp_path: Path) -> Cli:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    environment = kept | {"NATS_URL": nats_url, "DATABASE_URL": database_url, "TURNLOG_HOME": str(tmp_path)}

    async def run(*words: str, stdin: str = "") -> Said:
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, *words),
            env=environment | {"COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate(stdin.encode())
        assert b"Traceback" not in err
        return Said(process.returncode or 0, out.decode(), err.decode())

    return run
