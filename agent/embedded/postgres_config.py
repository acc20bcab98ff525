"""postgresql.conf of the embedded Postgres: a small machine, nothing acknowledged is lost.

The file is written anew at every start; to change a setting for good use `ALTER SYSTEM`, which wins over it.
"""

import shutil
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (a size is asked, nothing is written)
ENOUGH_SHARED_MEMORY = 1024 * 1024 * 1024
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # bytes, or "max"
LEAST_BUFFERS_MB, MOST_BUFFERS_MB = 128, 1024

SETTINGS: dict[str, str | int] = {
    "listen_addresses": "",
    "port": 5432,
    "unix_socket_permissions": "0700",
    "max_connections": 100,
    "maintenance_work_mem": "256MB",
    "max_wal_size": "2GB",
    "fsync": "on",
    "synchronous_commit": "on",
    "jit": "off",
    # Solid state disks; the default of 4 keeps the planner off indexes.
    "random_page_cost": "1.1",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}


def render(socket_folder: Path) -> str:
    """The text of postgresql.conf for a server that listens on a socket in `socket_folder` only."""
    settings = {
        **SETTINGS,
        "shared_buffers": f"{buffers_mb(memory())}MB",
        "unix_socket_directories": str(socket_folder),
        "dynamic_shared_memory_type": "posix" if _roomy_shared_memory() else "mmap",
    }
    return "".join(f"{name} = {_quoted(str(value))}\n" for name, value in settings.items())


def memory() -> int:
    """Bytes that this machine, or the container we are in, has."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):
        return total


def buffers_mb(memory_bytes: int) -> int:
    """A quarter of the memory, as Postgres's manual has it, but no more than recall among 200,000 chunks needs."""
    return min(max(memory_bytes // 4 // 2**20, LEAST_BUFFERS_MB), MOST_BUFFERS_MB)


def _roomy_shared_memory() -> bool:
    """Containers often have 64 MB of it, which a parallel index build overruns."""
    return not SHARED_MEMORY.is_dir() or shutil.disk_usage(SHARED_MEMORY).total >= ENOUGH_SHARED_MEMORY


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
