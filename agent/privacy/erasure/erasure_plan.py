"""Finds everything stored about a person in the log and the read models before an erasure."""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from turnlog.agent.conversations.archive.files import files_of
from turnlog.agent.privacy.erasure import rows
from turnlog.agent.privacy.erasure.erasure_receipt import found_in, last_receipt
from turnlog.agent.privacy.erasure.event_scan import (
    Person,
    ScannedEvent,
    Traces,
    are_of,
    events_of,
    find_traces,
    tokens,
)
from turnlog.agent.privacy.erasure.scanning import bucket_entries, searched_copy
from turnlog.agent.privacy.erasure.string_search import (
    KEY_BYTES,
    MOST_CANDIDATES,
    Searched,
    SearchStrings,
    chosen,
    fitting,
    text_hashes,
    words_of,
)
from turnlog.agent.privacy.keys import key_admin
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, Recorded
from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log, nats_errors
from turnlog.events.progress import OnProgress, no_progress
from turnlog.events.stored import recorded
from turnlog.events.subjects import RECEIPT_BUCKET, receipt_key

STRINGS_AT_MOST = 400
Step = Callable[[str], AbstractContextManager[OnProgress]]


@contextmanager
def silent_step(label: str) -> Iterator[OnProgress]:
    yield no_progress


@dataclass(frozen=True, slots=True)
class ErasureReach:
    """Resources that an erasure needs in addition to a runtime; consumers/erasing.py composes them.

    files: returns (kind, path) of the files of the servers and the archive, which are searched but not changed. step:
    shows the progress of a named step.
    """

    files: Callable[[], Iterable[tuple[str, Path]]]
    step: Step = silent_step


@dataclass(frozen=True, slots=True)
class ErasureScope:
    """The runtime and resources that an erasure works on."""

    runtime: Runtime
    reach: ErasureReach


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of an erasure. rows: number of rows by table. events: number of events in the log that are the person's
    or in their threads.

    search_strings: strings by which the person's words are recognised; they are not stored. hashes: SHA-256 of the
    person's texts that may have vectors. head: the log's last sequence when it was read. last: the receipt of the
    previous erasure. found_before: place → hits of the previous erasure; empty if strings were given to search for.
    """

    person: Person
    traces: Traces
    rows: dict[str, int]
    events: int
    archives: tuple[str, ...]
    search_strings: SearchStrings
    hashes: frozenset[bytes]
    head: int
    last: Recorded | None
    found_before: dict[str, int]

    @property
    def is_empty(self) -> bool:
        return not self.traces.threads and not self.traces.strays and not self.rows

    @property
    def passed_over(self) -> list[int]:
        """Returns the sequences of unreadable messages that contain the person's id and are not in the person's
        threads."""
        own = tokens(self.traces.own)
        return [seq for seq, token in self.traces.unreadable.items() if token not in own]


class StringsTooShort(TurnlogError):
    """The strings to search for are too short to be significant; nothing was erased."""

    code = "strings-too-short"


async def planned(at: ErasureScope, person: Person, more_strings: Sequence[str] = ()) -> Plan:
    """Returns the plan of an erasure, from the log and the read models; changes nothing. more_strings: further strings
    to scan for.

    Raises StringsTooShort.
    """
    if len(fitting(more_strings)) < len(more_strings):
        raise StringsTooShort(
            f"{len(more_strings) - len(fitting(more_strings))} of the strings to search for have less than {KEY_BYTES} "
            "bytes of UTF-8, which occur by chance; give longer ones, with a word beside a short name"
        )
    await at.runtime.wait_until_projected()
    head = await at.runtime.log.head()
    async with at.runtime.pool.connection() as conn:
        known = await rows.known_threads(conn, person)
        with at.reach.step("reading the log") as progress:
            traces = await find_traces(at.runtime.log, person, known, progress)
        strings, hashes, events = await _said(at.runtime.log, person, traces)
        own = sorted(traces.own)
        archived = await rows.archive_paths(conn, person, own)
        counts = await rows.row_counts(conn, person, own)
        with at.reach.step("choosing what to search for"):
            keys = await key_admin.wrapped_forms(conn, person.tenant, person.user)
            search_strings = SearchStrings(
                [*more_strings, *keys, *await _distinctive(conn, at.runtime.log, person, traces, strings)]
            )
    archives = tuple(sorted({*archived, *files_of(at.runtime.settings.archive, person.tenant, own)}))
    last = await last_receipt(at.runtime.log, person)
    before = {} if more_strings else found_in(last)
    return Plan(person, traces, counts, events, archives, search_strings, hashes, head, last, before)


async def _said(log: Log, person: Person, traces: Traces) -> tuple[list[str], frozenset[bytes], int]:
    """Returns candidates for search strings, the SHA-256 of the texts that may have vectors, and the number of
    events."""
    strings: dict[str, None] = {}
    hashes: set[bytes] = set()
    events, is_own = len(traces.strays), are_of(traces.own)
    async for scanned in events_of(log, person.tenant, traces.threads):
        if not is_own(scanned) and scanned.user != person.user:
            continue
        events += 1
        if (event := decoded(scanned)) is None:
            continue
        hashes.update(text_hashes(event))
        if len(strings) < MOST_CANDIDATES:
            strings.update(dict.fromkeys(words_of(event.data)))
    return list(strings), frozenset(hashes), events


async def _distinctive(
    conn: AsyncConnection[TupleRow], log: Log, person: Person, traces: Traces, strings: Sequence[str]
) -> list[str]:
    """Returns the strings that do not occur in other people's rows and receipts. Strings that are part of the person's
    id or of the name of a thread are left out."""
    ids = " ".join([person.user, *traces.threads]).casefold()
    search_strings = SearchStrings(
        chosen([string for string in strings if string.casefold() not in ids], 3 * STRINGS_AT_MOST)
    )
    others: set[int] = set()
    said = rows.said_tables()
    for table in (*said, *rows.told_tables()):
        mine = sorted(traces.own) if table in said else traces.threads
        query = rows.others_query(table, person, mine, traces.shared)
        others |= (await searched_copy(conn, query, search_strings)).found.keys()
    others |= await _in_receipts_of_others(log, person, traces, search_strings)
    return chosen([string for at, string in enumerate(search_strings.strings) if at not in others], STRINGS_AT_MOST)


async def _in_receipts_of_others(
    log: Log, person: Person, traces: Traces, search_strings: SearchStrings
) -> frozenset[int]:
    """Returns the indexes of the strings that occur in other people's receipts in the receipt bucket. The questions of
    these receipts may not be on the log yet.

    Receipts of shared threads are left out, because they may contain words of the person; an erasure removes them.
    """
    searched, mine = Searched(search_strings), receipt_key(person.tenant, person.user, "")
    with nats_errors("cannot read the receipts that were given"):
        async for key, receipt in bucket_entries(log, RECEIPT_BUCKET):
            if not key.startswith(mine) and not is_of_threads(receipt, person.tenant, traces.shared):
                searched.add(receipt + b"\0")
    searched.flush()
    return frozenset(searched.found)


def is_of_threads(receipt: bytes, tenant: str, threads: Container[str]) -> bool:
    """Returns whether a context receipt belongs to one of these threads of the tenant."""
    document = json.loads(receipt)
    return document["tenant"] == tenant and document["thread"] in threads


def decoded(scanned: ScannedEvent) -> Event | None:
    try:
        return recorded(scanned.stored).event
    except TurnlogError:
        return None
