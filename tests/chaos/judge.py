"""Judges a run: every check returns its violations as sentences; a good run has none."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from uuid import UUID

from turnlog.agent.answering.request import answer_id
from turnlog.events.contracts import AnswerReceipt, AnswerRequested, Event, ThreadRenamed, TurnRecorded
from turnlog.events.log import Log
from turnlog.events.stored import recorded
from turnlog.projectors.engine.lag import lag
from turnlog.projectors.engine.parking import listed
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import PROJECTIONS
from turnlog.projectors.rebuild.rebuild import rebuild_several
from turnlog.projectors.rebuild.verify import verify_several

from .ledger import Ledger

MAX_SHOWN = 5
Row = tuple[UUID, int, object]
# More parts than an answer can have: an answer of the offline model is one round, or two with a search.
ANSWER_PARTS = (
    "answer",
    *(f"round-{n}" for n in range(4)),
    *(f"round-{n}/result-{m}" for n in range(4) for m in range(4)),
)


async def violations(log: Log, database_url: str, conn: Connection, ledger: Ledger) -> list[str]:
    """Returns the violations of all checks; the workers must have ended. The rebuild comes last, because it replaces
    the rows that the other checks read."""
    problems = _some(ledger.moved) + _some(await _transcript(conn, ledger))
    problems += _some([line async for line in _answers(log, ledger)])
    problems += _some(await _labels(conn, ledger))
    problems += [
        f"{progress.projection} is {progress.behind} behind" for progress in await lag(log, conn) if progress.behind
    ]
    problems += _some(
        f"seq {row['seq']} is parked in {row['projection']}: {row['error']}" for row in await listed(conn, None)
    )
    return problems + await _rebuilt_alike(log, database_url, conn)


async def _transcript(conn: Connection, ledger: Ledger) -> list[str]:
    """Checks that the transcript contains every acknowledged turn once, as acknowledged, and no other turns."""
    rows = await conn.execute("SELECT thread_id, event_id, seq, content FROM messages ORDER BY thread_id, seq")
    shown: dict[str, list[Row]] = {}
    for thread, event_id, seq, content in await rows.fetchall():
        shown.setdefault(thread, []).append((event_id, seq, content))
    problems = []
    answers = answer_ids(ledger)
    for thread in sorted(ledger.threads.keys() | shown.keys()):
        turns = [(e, seq) for e, seq in ledger.threads.get(thread, []) if isinstance(e.data, TurnRecorded)]
        wanted = [(e.id, seq, e.data.content) for e, seq in turns if isinstance(e.data, TurnRecorded)]
        mine = [row for row in shown.get(thread, []) if row[0] not in answers]
        if mine != wanted:
            problems.append(_difference(thread, wanted, mine))
    return problems


def _difference(thread: str, wanted: Sequence[Row], mine: Sequence[Row]) -> str:
    sent, there = Counter(row[0] for row in wanted), Counter(row[0] for row in mine)
    return (
        f"thread {thread!r}: {len(sent - there)} acknowledged turns are missing, {len(there - sent)} were never sent "
        f"or are there twice, and the order is {'right' if [r[0] for r in wanted] == [r[0] for r in mine] else 'wrong'}"
    )


async def _answers(log: Log, ledger: Ledger) -> AsyncIterator[str]:
    """Checks that each request has exactly one answer and one receipt on the log, although agents were killed while
    answering."""
    seen: Counter[tuple[UUID | None, str]] = Counter()
    async for stored in log.read(["turnlog.log.>"]):
        event = recorded(stored).event
        if isinstance(event.data, AnswerReceipt):
            seen[event.causation, "receipt"] += 1
        elif (
            isinstance(event.data, TurnRecorded)
            and event.causation
            and event.id == answer_id(event.causation, "answer")
        ):
            seen[event.causation, "answer"] += 1
    for request in requests(ledger):
        for part in ("answer", "receipt"):
            if seen[request.id, part] != 1:
                yield f"request {request.id} has {seen[request.id, part]} {part}s on the log"


async def _labels(conn: Connection, ledger: Ledger) -> list[str]:
    """Checks that a renamed thread has its last name."""
    rows = await conn.execute("SELECT thread_id, label FROM thread_activity")
    shown: dict[str, str | None] = dict(await rows.fetchall())
    last = {e.thread: e.data.label for t in ledger.threads.values() for e, _ in t if isinstance(e.data, ThreadRenamed)}
    return [
        f"thread {t!r} is called {shown.get(t)!r}, not {label!r}" for t, label in last.items() if shown.get(t) != label
    ]


async def _rebuilt_alike(log: Log, database_url: str, conn: Connection) -> list[str]:
    """Checks that a fresh build equals the live rows, and that a rebuild does not change them."""
    problems = []
    for verified in await verify_several(log, database_url, PROJECTIONS):
        problems += _some(f"{verified.projection}: {d.table} [{d.key}] {d.kind}" for d in verified.differences)
    before = [await _fingerprint(conn, projection) for projection in PROJECTIONS]
    await rebuild_several(log, database_url, PROJECTIONS)
    for projection, was in zip(PROJECTIONS, before, strict=True):
        if await _fingerprint(conn, projection) != was:
            problems.append(f"{projection.name} has other rows after a rebuild")
    return problems


async def _fingerprint(conn: Connection, projection: Projection) -> list[object]:
    """Returns the number of rows and a digest of all rows of each table."""
    rows: list[object] = []
    for table in projection.tables:
        text = f"SELECT count(*), md5(string_agg(md5(t::text), '' ORDER BY md5(t::text))) FROM {table.name} t"
        rows.append(await (await conn.execute(text.encode())).fetchone())
    return rows


def requests(ledger: Ledger) -> list[Event]:
    return [e for t in ledger.threads.values() for e, _ in t if isinstance(e.data, AnswerRequested)]


def answer_ids(ledger: Ledger) -> set[UUID]:
    """Returns all ids that turns of an answer to one of the requests may have."""
    return {answer_id(request.id, part) for request in requests(ledger) for part in ANSWER_PARTS}


def _some(lines: Iterable[str]) -> list[str]:
    all_lines = list(lines)
    more = len(all_lines) - MAX_SHOWN
    return all_lines[:MAX_SHOWN] + ([f"… and {more} more like it"] if more > 0 else [])
