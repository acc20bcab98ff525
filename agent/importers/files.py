"""Bytes of a file: plain, gzip or the zip of a ChatGPT export, told apart by their first bytes."""

import gzip
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from turnlog.agent.importers.imported import ImportFailed

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
    """Whether there is nothing in the file but white space, as far as its first 64 KiB tell."""
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
