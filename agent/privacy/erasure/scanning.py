"""Scans every table, the stream, the buckets, archives and log files for a person's strings after an erasure.

Tables are read by binary COPY, which returns the bytes as they were written, so that one search works for all types.
The database is read only once for all strings.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, NoKeysError, NotFoundError
from psycopg import sql

from turnlog.agent.extras import MissingExtra, parquet
from turnlog.agent.privacy.erasure.string_search import Searched, SearchStrings
from turnlog.events.log import Log
from turnlog.events.progress import OnProgress
from turnlog.events.read import read_to
from turnlog.events.subjects import KEYS, KEYS_STREAM, RECEIPT_BUCKET, SESSION_BUCKET, STORED_PREFIX, STREAM
from turnlog.projectors.engine.writer import Connection

READ_BYTES = 1024 * 1024
_TABLES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
AND n.nspname !~ '^pg_(toast|temp)' ORDER BY 1, 2"""
_STATISTICS = """
COPY (SELECT tablename, most_common_vals::text, histogram_bounds::text, most_common_elems::text FROM pg_stats
WHERE schemaname NOT IN ('pg_catalog', 'information_schema')) TO STDOUT (FORMAT BINARY)"""


@dataclass(slots=True)
class Scan:
    """The result of a search for remains. places: kind → number of places that were searched. hits: place → number of
    occurrences, for places that have any.

    strings: place → the strings found there, masked. recorded: like hits, but with the kind of a file instead of its
    path, which may contain a person's name.
    """

    places: dict[str, int] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)
    strings: dict[str, list[str]] = field(default_factory=dict)
    recorded: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str, where: str, hits: int, strings: Sequence[str] = ()) -> None:
        self.places[kind] = self.places.get(kind, 0) + 1
        if hits:
            recorded_as = kind if where.startswith("file ") else where
            self.hits[where] = self.hits.get(where, 0) + hits
            self.recorded[recorded_as] = self.recorded.get(recorded_as, 0) + hits
            self.strings[where] = list(strings)

    def searched(self, kind: str, where: str, done: Searched) -> None:
        self.note(kind, where, done.hits, done.masked)

    @property
    def total(self) -> int:
        return sum(self.hits.values())


async def scan_tables(conn: Connection, search_strings: SearchStrings, scan: Scan, on_progress: OnProgress) -> None:
    """Scans every column of every table, and the statistics of the planner."""
    tables = [(str(schema), str(name)) for schema, name in await (await conn.execute(_TABLES)).fetchall()]
    for at, (schema, name) in enumerate(tables):
        query = sql.SQL("COPY (SELECT t.* FROM {} t) TO STDOUT (FORMAT BINARY)").format(sql.Identifier(schema, name))
        scan.searched("tables", f"table {schema}.{name}", await searched_copy(conn, query, search_strings))
        on_progress(at + 1, len(tables))
    statistics = await searched_copy(conn, sql.SQL(_STATISTICS), search_strings)
    scan.searched("statistics", "Postgres's statistics (pg_stats)", statistics)


async def searched_copy(conn: Connection, query: sql.SQL | sql.Composed, search_strings: SearchStrings) -> Searched:
    searched = Searched(search_strings)
    async with conn.cursor() as cursor, cursor.copy(query) as copy:
        async for data in copy:
            searched.add(bytes(data))
    searched.flush()
    return searched


async def scan_stream(log: Log, search_strings: SearchStrings, scan: Scan, on_progress: OnProgress) -> None:
    """Scans every message of the log and of the stream of users' keys."""
    head = await log.head()
    for stream, filters in ((STREAM, f"{STORED_PREFIX}.>"), (KEYS_STREAM, KEYS)):
        if stream == KEYS_STREAM and log.keyring is None:
            continue
        searched = Searched(search_strings)
        async for stored in read_to(log.nc, [filters], 1, stream=stream, as_stored=True):
            searched.add(stored.body + b"\0")
            if stored.seq % 1_000 == 0:
                on_progress(min(stored.seq, head), head)
        searched.flush()
        scan.searched("streams", f"the stream {stream}", searched)


async def scan_buckets(log: Log, search_strings: SearchStrings, scan: Scan) -> None:
    """Scans the copies of sessions, and the receipts of contexts."""
    for name in (SESSION_BUCKET, RECEIPT_BUCKET):
        await _scan_bucket(log, name, search_strings, scan)


async def _scan_bucket(log: Log, name: str, search_strings: SearchStrings, scan: Scan) -> None:
    searched = Searched(search_strings)
    try:
        async for _, value in bucket_entries(log, name):
            searched.add(value + b"\0")
    except NatsError:
        scan.places["buckets that cannot be read"] = scan.places.get("buckets that cannot be read", 0) + 1
        return
    searched.flush()
    scan.searched("buckets", f"bucket {name}", searched)


async def bucket_entries(log: Log, name: str) -> AsyncIterator[tuple[str, bytes]]:
    """Yields each key of a bucket with its value; yields nothing if the bucket does not exist. Raises NatsError."""
    with contextlib.suppress(NotFoundError, NoKeysError):  # there is no bucket, or it has no keys
        bucket = await log.nc.jetstream().key_value(name)
        for key in await bucket.keys():
            try:
                value = (await bucket.get(key)).value
            except KeyNotFoundError:  # the key was removed meanwhile
                continue
            yield key, value or b""


def scan_files(
    paths: Iterable[tuple[str, Path]], search_strings: SearchStrings, scan: Scan, on_progress: OnProgress
) -> None:
    """Searches files for the strings. paths: pairs (kind, file). Files that cannot be read are counted separately, as
    are Parquet files if pyarrow is not installed; files that were removed meanwhile are skipped."""
    every = list(paths)
    for at, (kind, path) in enumerate(every):
        try:
            scan.searched(kind, f"file {path}", _in_file(path, search_strings))
        except FileNotFoundError:
            continue
        except OSError:
            scan.note(f"{kind} that cannot be read", f"file {path}", 0)
        except MissingExtra as error:
            scan.note(f"{kind} that cannot be read ({error})", f"file {path}", 0)
        on_progress(at + 1, len(every))


def files_below(folder: Path, suffix: str = "") -> Iterator[Path]:
    for base, _, names in os.walk(folder):
        yield from (Path(base) / name for name in names if name.endswith(suffix))


def _in_parquet(path: Path) -> Iterator[bytes]:
    """Yields the texts and bytes of a Parquet file, which are compressed on disk. Raises MissingExtra, and OSError for
    a file that is not Parquet."""
    pa, pq = parquet()
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for column in batch.columns:
                    for value in column.to_pylist():
                        if isinstance(value, str | bytes):
                            yield value if isinstance(value, bytes) else value.encode(errors="replace")
    except pa.ArrowInvalid as error:
        raise OSError(f"{path} is not a Parquet file") from error


def _in_file(path: Path, search_strings: SearchStrings) -> Searched:
    searched = Searched(search_strings)
    if path.suffix == ".parquet":
        for said in _in_parquet(path):
            searched.add(said + b"\0")
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            searched.add(bytes(data))
    searched.flush()
    return searched
