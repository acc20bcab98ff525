"""Formats memories as lines for people, and reads times as people write them."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer
from pydantic_core import to_json

from turnlog.agent.counting import counted
from turnlog.agent.memory.dates import dates
from turnlog.consumers.cli.console import minute
from turnlog.events.contracts import MemorySource
from turnlog.events.contracts.base import is_undated
from turnlog.events.errors import TurnlogError

if TYPE_CHECKING:
    from turnlog.agent.memory.memories import MemoryView
    from turnlog.agent.recall.profile import Profile
    from turnlog.projectors.models.memories.lookup import MemoryRow

User = Annotated[str, typer.Option("--user", "-u", help="Whose memories.")]
_MOMENT = timedelta(microseconds=1)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


class InvalidTime(TurnlogError):
    """A time that cannot be read."""

    code = "invalid-time"


def time_of(text: str, now: datetime, zone: tzinfo = UTC) -> datetime:
    """Returns an ISO time, or the last moment of a date or an expression such as "last March" (去年三月).

    An ISO time or date without a zone is in UTC, as the commands show times; an expression is in `zone`. Raises
    InvalidTime.
    """
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        return at if re.search(r"[T ]", text) else at + timedelta(days=1) - _MOMENT
    except (ValueError, OverflowError):
        periods = dates.dates_in(text, now, zone)
    if len(periods) != 1:
        raise InvalidTime(
            f"cannot read the time {text!r}; give one such as 2026-03-31, 2026-03-31T18:00 or 'last March'"
        )
    return min(periods[0].to_time, _LATEST) - _MOMENT


def memory_text(row: "MemoryView") -> str:
    """Returns a memory's words, validity, metadata and first source, one per line."""
    more = f" (and {len(row.sources) - 1} more)" if len(row.sources) > 1 else ""
    unquoted = "imported, without a quote" if row.origin == "imported" else "written by hand"
    said = f"{source_line(row.sources[0])}{more}" if row.sources else unquoted
    about = to_json(row.metadata).decode() if row.metadata else ""
    return "\n".join(filter(None, (words_of(row), validity(row), about, said if row.status != "forgotten" else "")))


def profile_lines(profile: "Profile") -> list[str]:
    """Returns the text that a model wrote, each sentence with the numbers of its lines; then each group with its lines,
    and under each line what the user said."""
    lines, written = [], profile.written
    shown = (line for group in profile.groups for line in group.lines)
    numbers = {line.memory: n for n, line in enumerate(shown, 1)}
    if written is not None:
        cited = [[numbers[id_] for id_ in sentence.memories if id_ in numbers] for sentence in written.sentences]
        lines.append(" ".join(f"{said.text} {at}" for said, at in zip(written.sentences, cited, strict=True)))
    for group in profile.groups:
        lines.append(group.heading)
        for line in group.lines:
            lines.append(f"  {numbers[line.memory]}. {line.text}" if written else f"  {line.text}")
            lines += [f"      {source_line(source)}" for source in line.sources[:1]]
    if profile.left_out:
        lines.append(f"{counted(profile.left_out, 'memory', 'memories')} of less importance left out")
    return lines


def history_lines(rows: "Sequence[MemoryView]", asked: UUID) -> list[str]:
    """Returns every version, oldest first, with each of its sources."""
    lines: list[str] = []
    for row in rows:
        lines.append(f"{'→' if row.id == asked else ' '} {row.kind:<10}  {words_of(row)}")
        lines.append(f"    {row.id}  {validity(row)}")
        if row.replaced_by is not None:
            lines.append(f"    replaced by {row.replaced_by}")
        lines += [f"    {source_line(source)}" for source in row.sources if source.quote]
    return lines


def words_of(row: "MemoryRow") -> str:
    return "(forgotten)" if row.status == "forgotten" else " ".join(row.content.split())


def validity(row: "MemoryRow") -> str:
    """Returns since when a memory is valid, until when, and why it ended."""
    until = f" until {_minute(row.valid_to)}" if row.valid_to else ""
    ends = ""
    if row.expires_at and not row.valid_to:
        ends = f", lives until {_minute(row.expires_at.astimezone(row.said_from.tzinfo))}"
    state = row.closed_reason if row.status == "closed" else row.status
    if row.status == "archived" and row.archived_reason:
        state = f"archived ({row.archived_reason})"
    return f"{state} since {_minute(row.said_from)}{ends}" if not until else f"{state}, {_minute(row.said_from)}{until}"


def source_line(source: MemorySource) -> str:
    return f"“{' '.join(source.quote.split())}”  {source.thread} #{source.seq}, {_minute(source.said_at)}"


def _minute(at: datetime | None) -> str:
    if at is not None and is_undated(at):
        return "an unknown time"
    return minute(at) if at else "-"
