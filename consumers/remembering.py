"""What the commands over memories look up and show: which memory is meant, and rows as lines and documents."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID

from turnlog.agent.memories.dates import dates_in
from turnlog.agent.memories.policy import SEED, Policy, Score, score
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.memory_contracts import MemorySource
from turnlog.projectors.memory_finding import memories_by_prefix, memories_with_words
from turnlog.projectors.memory_lookup import Conflict, StoredMemory
from turnlog.projectors.writer import Connection

_PART_OF_ID = re.compile(r"[0-9a-f]{4,8}(?:-?[0-9a-f]{0,4}){0,3}(?:-[0-9a-f]{0,12})?", re.IGNORECASE)
_MOMENT = timedelta(microseconds=1)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


class AmbiguousMemory(TurnlogError):
    """What was given means more than one memory; the message lists them."""

    code = "ambiguous-memory"


class InvalidTime(TurnlogError):
    """A time that cannot be read."""

    code = "invalid-time"


async def the_memory(conn: Connection, tenant: str, thread: str, user: str, given: str) -> StoredMemory:
    """The one memory that `given` means: an id, the beginning of one, or words that only it has of those in use, or,
    where none in use has them, of those that ended.

    Raises NotFound, AmbiguousMemory: also for no words at all, which the only memory of a user would have.
    """
    if not given.strip():
        raise AmbiguousMemory("no words were given; give an id, or words that only the memory has")
    found: list[StoredMemory] = []
    if _PART_OF_ID.fullmatch(given):
        found = await memories_by_prefix(conn, tenant, thread, given.lower())
    for statuses in (("valid", "pending", "archived"), ("closed",)):
        found = found or await memories_with_words(conn, tenant, thread, given, statuses)
    if not found:
        raise NotFound(f"user {user!r} has no memory {given!r}; `turnlog memories --user {user}` lists them")
    if len(found) > 1:
        listed = "".join(f"\n  {row.id}  {row.content}" for row in found)
        raise AmbiguousMemory(f"{given!r} is in {len(found)} memories; give more of the words or an id:{listed}")
    return found[0]


def time_of(given: str, now: datetime, zone: tzinfo = UTC) -> datetime:
    """An ISO time, or a date or an expression such as "last March" (去年三月), of which the last moment is meant.

    An ISO time or date without a zone is in UTC, as the commands show times; an expression is in `zone`. Raises
    InvalidTime.
    """
    try:
        at = datetime.fromisoformat(given)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        return at if re.search(r"[T ]", given) else at + timedelta(days=1) - _MOMENT
    except (ValueError, OverflowError):
        found = dates_in(given, now, zone)
    if len(found) != 1:
        raise InvalidTime(f"{given!r} is no time; give one such as 2026-03-31, 2026-03-31T18:00 or 'last March'")
    return min(found[0].to_time, _LATEST) - _MOMENT


def memory_document(row: StoredMemory, now: datetime, policy: Policy = SEED) -> dict[str, Any]:
    found = asdict(row)
    del found["content_key"], found["embedding_model"]
    found["sources"] = [source.model_dump() for source in row.sources]
    return {**found, "score": asdict(score(row, now, policy))}


def by_score(rows: Iterable[StoredMemory], now: datetime, policy: Policy) -> list[tuple[StoredMemory, Score]]:
    """Best first."""
    return sorted(((row, score(row, now, policy)) for row in rows), key=lambda one: -one[1].total)


def memory_lines(row: StoredMemory, worth: Score) -> list[str]:
    """A memory with its score, tier, validity and first source."""
    head = f"{worth.total:.2f}  {worth.tier:<7}  {row.kind:<10}  {words_of(row)}"
    more = f" (and {len(row.sources) - 1} more)" if len(row.sources) > 1 else ""
    said = [f"      {source_line(row.sources[0])}{more}"] if row.sources else ["      written by hand"]
    return [head, f"      {row.id}  {validity(row)}", *(said if row.status != "forgotten" else [])]


def history_lines(rows: Sequence[StoredMemory], asked: UUID) -> list[str]:
    """Every version, the first first, with each of its sources."""
    lines: list[str] = []
    for row in rows:
        lines.append(f"{'→' if row.id == asked else ' '} {row.kind:<10}  {words_of(row)}")
        lines.append(f"    {row.id}  {validity(row)}")
        if row.replaced_by is not None:
            lines.append(f"    replaced by {row.replaced_by}")
        lines += [f"    {source_line(source)}" for source in row.sources if source.quote]
    return lines


def conflict_lines(conflict: Conflict) -> list[str]:
    said = f"  answered: {conflict.answer}" if conflict.answer else ""
    return [f"{conflict.conflict_id}  {conflict.raised_at:%Y-%m-%d %H:%M}{said}", f"      {conflict.question}"]


def words_of(row: StoredMemory) -> str:
    return "(forgotten)" if row.status == "forgotten" else " ".join(row.content.split())


def validity(row: StoredMemory) -> str:
    """Since when it holds, until when, and why it ended."""
    until = f" until {_minute(row.valid_to)}" if row.valid_to else ""
    ends = f", lives until {_minute(row.expires_at)}" if row.expires_at and not row.valid_to else ""
    state = row.closed_reason if row.status == "closed" else row.status
    return (
        f"{state} since {_minute(row.valid_from)}{ends}" if not until else f"{state}, {_minute(row.valid_from)}{until}"
    )


def source_line(source: MemorySource) -> str:
    return f"“{' '.join(source.quote.split())}”  {source.thread} #{source.seq}, {_minute(source.said_at)}"


def _minute(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}" if at else "-"
