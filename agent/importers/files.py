"""Opens a plain, gzip or ChatGPT export zip file, recognised by its first bytes."""

import gzip
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, cast

from turnlog.agent.importers.imported import ImportFailed
from turnlog.agent.importers.jsontext import parse

_CHATGPT_PART = re.compile(r"(^|/)conversations(-\d+)?\.json$")


@contextmanager
def opened(path: Path) -> Iterator[list[IO[bytes]]]:
    """The decompressed streams of the file: one, or one per conversations*.json of a zip."""
    with _open(path) as raw:
        start = raw.read(4)
        raw.seek(0)
        if start.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(raw) as archive:
                yield [archive.open(name) for name in _chatgpt_parts(path, archive)]
        elif start.startswith(b"\x1f\x8b"):
            with gzip.open(raw) as stream:
                yield [cast(IO[bytes], stream)]
        elif start.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise ImportFailed(f"{path} is UTF-16; save it as UTF-8 and import it again")
        else:
            yield [raw]


def head(path: Path, size: int) -> bytes:
    """The first `size` decompressed bytes."""
    with opened(path) as streams:
        return streams[0].read(size)


def is_blank(path: Path) -> bool:
    """Whether the first 64 KiB of the file are only white space."""
    return not head(path, 1 << 16).strip()


def is_zip(path: Path) -> bool:
    with _open(path) as raw:
        return raw.read(4) == b"PK\x03\x04"


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb", buffering=1 << 20)
    except FileNotFoundError as error:
        raise ImportFailed(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise ImportFailed(f"{path} is a folder; name the file inside it") from error
    except OSError as error:
        raise ImportFailed(f"{path} cannot be opened: {error.strerror}") from error


def _chatgpt_parts(path: Path, archive: zipfile.ZipFile) -> list[str]:
    names = sorted(name for name in archive.namelist() if _CHATGPT_PART.search(name))
    if not names:
        raise ImportFailed(f"{path} is a zip without a conversations.json; unpack it and import its files")
    return names


Format = Literal["openai", "chatgpt", "locomo", "jsonl", "memorybank"]
_HEAD = 1 << 18
_SIGNS: tuple[tuple[Format, tuple[str, ...]], ...] = (
    ("chatgpt", ("mapping",)),
    ("locomo", ("dia_id",)),
    ("locomo", ("qa", "evidence")),
    ("memorybank", ("history", "query", "response")),
    ("openai", ("role", "content")),
    ("openai", ("messages",)),
)


def detect_format(path: Path) -> Format | None:
    """The format by the file's head, or None if it is not recognised. Raises ImportFailed (unreadable)."""
    if is_zip(path):
        return "chatgpt"
    start = head(path, _HEAD)
    lines = start.splitlines()[: -1 if len(start) == _HEAD else None]
    return _by_lines(lines[:20]) or _by_signs(start.decode("utf-8", "replace"))


def _by_lines(lines: list[bytes]) -> Format | None:
    """Recognises JSONL by the first line that is a JSON object of a known format."""
    for line in lines:
        try:
            value = parse(line.decode("utf-8", "replace").encode())
        except ValueError:
            continue
        found = _by_keys(value) if isinstance(value, dict) else None
        if found:
            return found
    return None


def _by_keys(value: dict[str, Any]) -> Format | None:
    if "mapping" in value:
        return "chatgpt"
    if "conversation" in value:
        return "locomo"
    if "messages" in value or ("role" in value and not value.keys() & {"thread", "text", "user"}):
        return "openai"
    return "jsonl" if value.keys() & {"thread", "text", "content"} else None


def _by_signs(text: str) -> Format | None:
    """Recognises a document by keys that only one format has. A key quoted in a text is escaped, so not counted."""
    for found, keys in _SIGNS:
        if all(re.search(rf'(?<!\\)"{key}"\s*:', text) for key in keys):
            return found
    return None
