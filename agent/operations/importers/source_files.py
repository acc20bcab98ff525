"""Opens a plain file, a gzip file or the zip of an export, recognised by its first bytes, and names its format."""

import contextlib
import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

from pydantic_core import from_json

from turnlog.agent.operations.importers.imported import ImportFailed
from turnlog.agent.operations.importers.jsontext import parse

# An export has one file, several numbered files, or one per conversation.
_PART = re.compile(r"(^|/)(conversations(-\d+)?|conversations/(?!index\.)[^/]+)\.json$")
# JSON compresses to about a tenth; a file that compresses to less than a thousandth was made to fill memory or disk.
_LARGEST_RATIO = 1000


DAMAGED = (EOFError, zlib.error, zipfile.BadZipFile, OSError)


class Part(NamedTuple):
    """A decompressed file. name: its name inside a zip; otherwise empty."""

    name: str
    stream: IO[bytes]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Iterator[Part]]:
    """Yields the decompressed parts of the file: a single one, or those files of a zip that contain conversations,
    opened one after the other."""
    with _open(path) as raw:
        start = raw.read(4)
        raw.seek(0)
        if start.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(raw) as archive:
                yield _parts(path, archive)
        elif start.startswith(b"\x1f\x8b"):
            with gzip.open(raw) as stream:
                yield iter([Part("", cast(IO[bytes], stream))])
        else:
            yield iter([Part("", raw)])


def head(path: Path, size: int) -> bytes:
    """Returns the first `size` decompressed bytes of the file, or of the first part of a zip."""
    with opened(path) as parts:
        return next(parts).stream.read(size)


def check_unpacked(path: Path, most: int) -> None:
    """Raises ImportFailed for a file that decompresses to more than `most` bytes."""
    size = 0
    with opened(path) as parts, contextlib.suppress(*DAMAGED):  # a damaged file is reported when it is read
        for part in parts:
            while size <= most and (chunk := part.stream.read(1 << 20)):
                size += len(chunk)
    if size > most:
        raise ImportFailed(f"{path} unpacks to more than {most >> 20:,} MiB; unpack it and import a part at a time")


def is_blank(path: Path) -> bool:
    """Returns whether the first 64 KiB of the file are only white space."""
    return not head(path, 1 << 16).strip()


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb", buffering=1 << 20)
    except FileNotFoundError as error:
        raise ImportFailed(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise ImportFailed(f"{path} is a folder; name the file inside it") from error
    except OSError as error:
        raise ImportFailed(f"{path} cannot be opened: {error.strerror}") from error


def _parts(path: Path, archive: zipfile.ZipFile) -> Iterator[Part]:
    """Yields the files of a zip that contain conversations. Raises ImportFailed if the zip has no conversations, needs
    a password or expands too much."""
    infos = sorted((info for info in archive.infolist() if _PART.search(info.filename)), key=lambda info: info.filename)
    if not infos:
        names = ", ".join(repr(info.filename[:60]) for info in archive.infolist()[:5]) or "nothing"
        raise ImportFailed(f"{path} is a zip without a conversations.json; it has {names}. Unpack it, import its files")
    for info in infos:
        if info.file_size > _LARGEST_RATIO * max(info.compress_size, 1):
            raise ImportFailed(f"{path}: {info.filename} would unpack to {info.file_size:,} bytes; it is not an export")
        try:
            stream = archive.open(info)
        except RuntimeError as error:  # encrypted, or compressed by a method that Python lacks
            raise ImportFailed(f"{path}: {info.filename} cannot be unpacked ({error}); unpack it yourself") from error
        with stream:
            yield Part(info.filename, stream)


def looks_like(path: Path) -> str:
    """Returns a description of the beginning of a file of unknown format, such as "a list of objects with the fields a,
    b", or its first characters."""
    start = head(path, _HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
    try:
        described = _described(from_json(start, allow_partial="trailing-strings"))
    except ValueError:
        described = None
    return described or f"neither a JSON list nor a JSON object, but {start[:40].decode('utf-8', 'replace')!r}"


def _described(value: Any) -> str | None:
    if isinstance(value, dict):
        names = ", ".join(key[:40] for key in list(value)[:8])
        return f"an object with the fields {names}{', …' if len(value) > 8 else ''}" if names else "an empty object"
    if isinstance(value, list):
        return f"a list whose first item is {_described(value[0]) or 'neither list nor object'}" if value else "a list"
    return None


Format = Literal["openai", "chatgpt", "claude", "open-webui", "librechat", "jsonl", "mem0", "zep", "letta"]
# The beginning of a file of each format, to help people whose file was not recognised.
EXAMPLES: dict[Format, str] = {
    "jsonl": '{"thread": "trip", "user": "ann", "role": "user", "text": "Hi!", "time": "2026-05-08T13:56:00Z"}',
    "openai": '{"messages": [{"role": "user", "content": "Hi!"}]}',
    "chatgpt": '[{"title": "Trip", "mapping": {"…": {"message": {…}, "parent": "…"}}, "current_node": "…"}]',
    "claude": '[{"uuid": "…", "name": "Trip", "chat_messages": [{"sender": "human", "text": "Hi!"}]}]',
    "open-webui": '[{"chat": {"history": {"messages": {"…": {"parentId": null, "role": "user", "content": "Hi!"}}}}}]',
    "librechat": '{"conversationId": "…", "messages": [{"messageId": "…", "isCreatedByUser": true, "text": "Hi!"}]}',
    "mem0": '{"results": [{"id": "…", "memory": "Lives in Porto", "user_id": "ann"}]}',
    "zep": '{"user_id": "ann", "threads": [{"thread_id": "…", "messages": […]}], "facts": […]}',
    "letta": '{"agents": [{"name": "Loop", "messages": [{"role": "user", "content": […]}]}], "blocks": […]}',
}
_HEAD = 1 << 18
_SIGNS: tuple[tuple[Format, tuple[str, ...]], ...] = (
    ("letta", ("agents", "blocks")),
    ("letta", ("message_type", "date")),
    ("letta", ("core_memory", "label")),
    ("claude", ("chat_messages",)),
    ("chatgpt", ("mapping",)),
    ("open-webui", ("history", "parentId", "role")),
    ("librechat", ("conversationId", "messageId", "isCreatedByUser")),
    ("zep", ("fact", "created_at")),
    ("zep", ("messages", "thread_id", "threads")),
    ("zep", ("messages", "thread_id", "uuid")),
    ("zep", ("messages", "session_id", "uuid")),
    ("mem0", ("memory", "user_id")),
    ("openai", ("role", "content")),
    ("openai", ("messages",)),
)


def detect_format(path: Path) -> Format | None:
    """Returns the format that the beginning of the file shows, or None if it is not recognised. Raises ImportFailed if
    the file is unreadable or UTF-16."""
    start = head(path, _HEAD)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start[:2]:
        raise ImportFailed(f"{path} is UTF-16; save it as UTF-8 and import it again")
    lines = start.splitlines()[: -1 if len(start) == _HEAD else None]
    return _by_lines(lines[:20]) or _by_signs(start.decode("utf-8", "replace"))


def _by_lines(lines: list[bytes]) -> Format | None:
    """Returns the format of JSONL by the first line that is a JSON object of a known format."""
    for line in lines:
        try:
            value = parse(line.decode("utf-8", "replace").encode())
        except ValueError:
            continue
        detected = _by_keys(value) if isinstance(value, dict) else None
        if detected:
            return detected
    return None


def _by_keys(value: dict[str, Any]) -> Format | None:
    if "chat_messages" in value:
        return "claude"
    if "mapping" in value:
        return "chatgpt"
    if isinstance(value.get("chat", value), dict) and "history" in value.get("chat", value):
        return "open-webui"
    if "messages" in value and "conversationId" in value:
        return "librechat"
    if "core_memory" in value or any(keys <= value.keys() for keys in ({"message_type", "date"}, {"agents", "blocks"})):
        return "letta"
    if "fact" in value or ("messages" in value and "'uuid': " in str(value["messages"])[:2_000]):
        return "zep"
    if "messages" in value or ("role" in value and not value.keys() & {"thread", "text", "user"}):
        return "openai"
    return "jsonl" if value.keys() & {"thread", "text", "content"} else None


def _by_signs(text: str) -> Format | None:
    """Returns the format of a document by the first entry of _SIGNS whose keys it all has. A key that is quoted in a
    text is escaped, so it does not count."""
    for name, keys in _SIGNS:
        if all(re.search(rf'(?<!\\)"{key}"\s*:', text) for key in keys):
            return name
    return None
