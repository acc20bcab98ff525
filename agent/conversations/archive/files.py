"""Stores archived conversations as Parquet files, one per conversation, in folders by tenant and last month.

Events that are in clear in the log, such as those of a conversation without a user, are sealed in the file with a key
of the tenant.
"""

import hashlib
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag

from turnlog.agent.extras import parquet
from turnlog.agent.private_files import open_private, private_folder
from turnlog.events.errors import InvalidEvent, TurnlogError
from turnlog.events.sealing import NONCE_BYTES, Keyring, key_ids_in
from turnlog.events.subjects import thread_token

COMPRESSION = "zstd"
# The user id of a tenant's key. No user has this id, so no erasure destroys the key.
TENANT = ""


class ArchiveMissing(TurnlogError):
    """The file of an archived conversation is missing."""

    code = "archive-missing"


class ArchiveDamaged(TurnlogError):
    """The file of an archived conversation differs from the one that was written."""

    code = "archive-damaged"


@dataclass(frozen=True, slots=True)
class ArchivedRow:
    """An event of the log. envelope: its bytes in the log, with sealed fields still sealed.

    key: id of the tenant's key that seals the envelope in the file; None if the envelope is the same in the file and
    the log.
    """

    seq: int
    stored_at: datetime
    event_id: str
    type: str
    user: str | None
    time: datetime
    envelope: bytes
    key: str | None = None


NAMES = tuple(field.name for field in fields(ArchivedRow))


def path_of(tenant: str, thread: str, rows: Sequence[ArchivedRow]) -> str:
    """Returns the path below the archive's folder; the month is that of the last turn, in UTC."""
    last = next((row for row in reversed(rows) if row.type == "turn_recorded"), rows[-1])
    return f"{tenant}/{last.time.astimezone(UTC):%Y-%m}/{thread_token(thread)}-{rows[-1].seq}.parquet"


def sealed(rows: Iterable[ArchivedRow], keyring: Keyring | None, tenant: str, path: str) -> list[ArchivedRow]:
    """Returns the rows as they are written to the file: envelopes in clear are encrypted with the tenant's key. Raises
    KeyUnavailable."""
    if keyring is None:
        return list(rows)
    key = keyring.current(tenant, TENANT)

    def seal(row: ArchivedRow) -> ArchivedRow:
        nonce = os.urandom(NONCE_BYTES)
        words = key.cipher.encrypt(nonce, zlib.compress(row.envelope, 1), _bound(row, path))
        return replace(row, envelope=nonce + words, key=key.id)

    return [row if key_ids_in([row.envelope]) else seal(row) for row in rows]


def unsealed(rows: Iterable[ArchivedRow], keyring: Keyring | None, tenant: str, path: str) -> list[ArchivedRow]:
    """Returns the rows as they were in the log: envelopes that `sealed` encrypted are decrypted. Raises KeyUnavailable,
    ArchiveDamaged."""

    def unseal(row: ArchivedRow, key_id: str) -> ArchivedRow:
        key = keyring.find(tenant, TENANT, key_id) if keyring else None
        if key is None:
            raise ArchiveDamaged(f"{path} is sealed with key {key_id} of tenant {tenant!r}, which is lost or not given")
        words = key.cipher.decrypt(row.envelope[:NONCE_BYTES], row.envelope[NONCE_BYTES:], _bound(row, path))
        return replace(row, envelope=zlib.decompress(words), key=None)

    try:
        return [row if row.key is None else unseal(row, row.key) for row in rows]
    except (InvalidTag, InvalidEvent, zlib.error) as error:
        reason = str(error) or "it was changed"
        raise ArchiveDamaged(f"{path} does not open with the key of tenant {tenant!r}: {reason}") from None


def _bound(row: ArchivedRow, path: str) -> bytes:
    return f"{path}\0{row.seq}\0{row.event_id}".encode()


def write_archive(folder: Path, path: str, rows: Sequence[ArchivedRow]) -> str:
    """Writes the file atomically, reads it back, and returns its SHA-256.

    Raises OSError, ArchiveDamaged, MissingExtra.
    """
    pa, pq = parquet()
    file = folder / path
    for directory in (folder, file.parent.parent, file.parent):
        private_folder(directory)
    temporary = file.with_suffix(".part")
    columns = zip(*(astuple(row) for row in rows), strict=True)
    schema = _schema()
    table = pa.table(
        [pa.array(values, column.type) for values, column in zip(columns, schema, strict=True)], schema=schema
    )
    with os.fdopen(open_private(temporary, os.O_WRONLY | os.O_TRUNC), "wb") as handle:
        pq.write_table(table, handle, compression=COMPRESSION)
    _sync(temporary)
    temporary.replace(file)
    _sync(file.parent)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if read_archive(folder, path, digest) != list(rows):
        raise ArchiveDamaged(f"{file} reads back differently from what was written; check its disk")
    return digest


def read_archive(folder: Path, path: str, sha256: str) -> list[ArchivedRow]:
    """Returns the file's events in order. Raises ArchiveMissing, ArchiveDamaged, MissingExtra."""
    pa, pq = parquet()
    file = folder / path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ArchiveMissing(f"cannot read {file}: {error.strerror}; set TURNLOG_ARCHIVE to where it is") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ArchiveDamaged(f"{file} was changed after it was written; replace it by a copy of the original")
    table = pq.read_table(pa.BufferReader(data)).to_pydict()
    # Files of earlier versions have no column `key`.
    columns = [table[name] for name in NAMES if name in table]
    return [ArchivedRow(*values) for values in zip(*columns, strict=True)]


def files_of(folder: Path, tenant: str, threads: Iterable[str]) -> list[str]:
    """Returns every file of these conversations, including files that a crash left without an event."""
    tokens = {thread_token(thread) for thread in threads}
    every = (folder / tenant).rglob("*") if tokens else ()
    return sorted(str(file.relative_to(folder)) for file in every if file.name.rpartition("-")[0] in tokens)


def remove(folder: Path, paths: Iterable[str]) -> None:
    for path in paths:
        (folder / path).unlink(missing_ok=True)


def _schema() -> Any:
    pa, _ = parquet()
    moment = pa.timestamp("us", tz="UTC")
    types = (pa.int64(), moment, pa.string(), pa.string(), pa.string(), moment, pa.binary(), pa.string())
    return pa.schema(list(zip(NAMES, types, strict=True)))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
