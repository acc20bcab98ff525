"""A hook for coding agents: stores the turns of a session, and gives the agent the person's profile at its start.

The agent runs it as a file, `python -I -S capture.py CONFIGURATION`, with the hook's input on stdin. It imports only
the standard library, because the agent waits for it. A turn is first written to a spool file; a separate process then
sends the file. If the server is slow or unavailable, the agent does not wait and no turn is lost: the next hook sends
the rest.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes time to load
    from collections.abc import Iterator
    from typing import Any

PROFILE_S, SEND_S = 0.5, 30.0
REFUSED = frozenset(range(400, 500)) - {401, 403, 408, 409, 425, 429}  # the server would refuse a retry too


def main(path: str) -> None:
    """Spools the turn in the hook's input, or prints the profile when a session starts, and sends spooled turns later.

    path: a file with a JSON object: `client`, `key`, `scheme`, `host`, `port`, `prefix`.
    """
    with open(path) as file:
        settings = json.load(file)
    said = json.load(sys.stdin)
    event = said.get("hook_event_name")
    content: dict[str, Any] = {}
    if event == "UserPromptSubmit":
        content = {"role": "user", "content": said.get("prompt")}
    elif event == "Stop":
        content = {"role": "assistant", "content": said.get("last_assistant_message")}
    if content.get("content"):
        turn = content | {"time": datetime.now(UTC).isoformat()}
        keep(path, {"id": os.urandom(16).hex(), "thread": f"{settings['client']}-{said['session_id']}", "turn": turn})
    elif event == "SessionStart":
        show_profile(settings)
    send_later(path)


def show_profile(settings: dict[str, Any]) -> None:
    with suppress(OSError, ValueError):
        status, body = request(settings, "GET", "/api/profile", PROFILE_S)
        if status == 200 and (text := json.loads(body)["text"]):
            shown = {"hookEventName": "SessionStart", "additionalContext": text}
            sys.stdout.write(json.dumps({"hookSpecificOutput": shown}))
            sys.stdout.flush()


def keep(path: str, line: dict[str, Any]) -> None:
    """Adds a line to the spool. If a crash left an incomplete line there, ends that line first."""
    with locked(f"{path}.lock"), opened(f"{path}.spool", os.O_RDWR | os.O_APPEND) as file:
        size = os.fstat(file).st_size
        torn = size and os.pread(file, 1, size - 1) != b"\n"
        os.write(file, b"\n" * bool(torn) + json.dumps(line).encode() + b"\n")


def send_later(path: str) -> None:
    """Sends the spooled turns in a child process, for which the agent does not wait."""
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    with suppress(Exception):
        send(path)
    os._exit(0)


def send(path: str) -> None:
    """Sends spooled turns, oldest first, until one cannot be sent now. Only one process sends at a time; the turns of
    others are sent by that process or by the next hook."""
    with locked(f"{path}.sending.lock", wait=False) as is_mine:
        while is_mine and claimed(path):
            with open(f"{path}.sending", "rb") as file:
                lines = file.read().splitlines(keepends=True)
            for at, line in enumerate(lines):
                if not sent(path, line):
                    with opened(f"{path}.rest", os.O_WRONLY | os.O_TRUNC) as rest:
                        os.write(rest, b"".join(lines[at:]))
                    os.replace(f"{path}.rest", f"{path}.sending")
                    return
            os.unlink(f"{path}.sending")


def claimed(path: str) -> bool:
    """Moves the spool to a file to which no hook adds lines. Returns False if there is nothing to send."""
    with locked(f"{path}.lock"):
        if not os.path.exists(f"{path}.sending"):
            with suppress(FileNotFoundError):
                os.rename(f"{path}.spool", f"{path}.sending")
        return os.path.exists(f"{path}.sending")


def sent(path: str, line: bytes) -> bool:
    """Sends a line. Returns True if it was stored, or refused for good and added to the file `.refused`. Its id is the
    idempotency key, so a repeated request stores the turn only once."""
    try:
        kept = json.loads(line)
        turns, thread = {"turns": [kept["turn"]]}, kept["thread"]
    except (ValueError, KeyError, TypeError):
        return set_aside(path, line)
    with open(path) as file:
        settings = json.load(file)
    try:
        status, _ = request(settings, "POST", f"/api/threads/{thread}/turns", SEND_S, turns, kept["id"])
    except (OSError, ValueError):
        return False
    return set_aside(path, line) if status in REFUSED else status < 300


def set_aside(path: str, line: bytes) -> bool:
    with opened(f"{path}.refused", os.O_WRONLY | os.O_APPEND) as file:
        os.write(file, line)
    return True


def request(
    settings: dict[str, Any], method: str, path: str, seconds: float, body: Any = None, key: str = ""
) -> tuple[int, bytes]:
    """Sends a request and returns (status, body). Uses HTTP/1.0, so that the body is not chunked; loading urllib would
    take 100 ms."""
    content = b"" if body is None else json.dumps(body).encode()
    head = [f"{method} {settings['prefix']}{path} HTTP/1.0", f"Host: {settings['host']}:{settings['port']}"]
    head += [f"Authorization: Bearer {settings['key']}", f"Content-Length: {len(content)}", "Connection: close"]
    head += ["Content-Type: application/json", *([f"Idempotency-Key: {key}"] if key else []), "", ""]
    with connected(settings, seconds) as connection:
        connection.sendall("\r\n".join(head).encode() + content)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    top, _, rest = answer.partition(b"\r\n\r\n")
    return int(top.split(maxsplit=2)[1]), rest


def connected(settings: dict[str, Any], seconds: float) -> socket.socket:
    connection = socket.create_connection((settings["host"], settings["port"]), seconds)
    if settings["scheme"] != "https":
        return connection
    import ssl

    return ssl.create_default_context().wrap_socket(connection, server_hostname=settings["host"])


@contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def locked(path: str, wait: bool = True) -> Iterator[bool]:
    """Holds a lock while the block runs. Yields False if `wait` is False and another process holds the lock."""
    with opened(path, os.O_RDWR) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


if __name__ == "__main__":
    with suppress(Exception):  # a failure of the hook must not disturb the agent
        main(sys.argv[1])
