"""A crashing process leaves no core dump, which would contain keys, tokens and people's words."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from helpers.embedded_home import pids

from turnlog.consumers.servers import start, stop

# Sets the limit that a shell may have set, and lets the command crash.
CRASH = """
import os, resource
from turnlog.consumers import cli
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
def crash():
    print(resource.getrlimit(resource.RLIMIT_CORE), flush=True)
    os.abort()
cli.app = crash
cli.main()
"""


def test_a_command_that_crashes_leaves_no_core_dump(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (-signal.SIGABRT, "(0, 0)")
    assert list(tmp_path.iterdir()) == []


async def test_embedded_servers_write_no_core_dump(home: Path) -> None:
    await start(home)
    try:
        servers = pids(home)
        assert set(servers) == {"nats", "postgres"}
        limits = [Path(f"/proc/{pid}/limits").read_text() for pid in servers.values()]
        assert all(re.search(r"^Max core file size +0 +0 ", text, re.MULTILINE) for text in limits)
    finally:
        await stop(home)
