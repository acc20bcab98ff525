"""Finds an event's relations: its causes, its effects, and the rows that name it."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from pgvector.sqlalchemy import HALFVEC

from turnlog.agent.operations.tailing import Line, line_at, readable
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import NotFound
from turnlog.events.publish import Key
from turnlog.events.subjects import memory_thread, parse_stored, thread_token
from turnlog.projectors.engine.duplicates import first_seqs
from turnlog.projectors.models.registry import PROJECTIONS

MOST_READ = 2_000  # later events that are examined, because effects follow soon
MOST = 100  # maximum number of causes, of effects, and of rows of one table in a result
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Columns with the sequence of an event, and columns with a list of sequences or ids.
_SEQS = ("seq", "last_seq", "first_seq", "created_seq", "question_seq", "answer_seq")
_LISTS = {"seqs": "ARRAY[%(seq)s::bigint]", "event_ids": "ARRAY[%(id)s::uuid]"}


@dataclass(frozen=True, slots=True)
class RowsOfEvent:
    """Rows of one table of a read model, as JSON, without bytes, vectors and internal columns."""

    read_model: str
    table: str
    rows: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class EventRelations:
    """An event with its causes and effects, which are events of the same thread. causes: events that it names, directly
    or through other events. effects: events that name it, directly or through other events. Events have the form of the
    stream of events; both lists are in the order of the log. cut: not all later events were examined for effects. rows:
    rows of read models that name the event."""

    event: dict[str, Any]
    causes: list[dict[str, Any]]
    effects: list[dict[str, Any]]
    cut: bool
    rows: list[RowsOfEvent]


async def event_relations(runtime: Runtime, tenant: str, thread: str, user: str, seq: int) -> EventRelations:
    """Returns the relations of an event in a user's thread. Personal fields of other people stay sealed, and rows about
    them are left out. Raises NotFound, LogUnavailable."""
    readers = frozenset({user})
    line = await line_at(runtime.log, seq, readers)
    subject = parse_stored(line.stored.subject)
    if (subject.tenant, subject.thread_token) != (tenant, thread_token(thread)):
        raise NotFound(f"thread {thread!r} has no event at sequence {seq}")
    return await _related(runtime, line, thread, readers, user, user)


async def event_relations_for_operator(runtime: Runtime, tenant: str, user: str, seq: int) -> EventRelations:
    """Returns the relations of an event in any thread of the operator's tenant. All personal fields stay sealed, and
    rows contain only ids and numbers. user: the operator. Raises NotFound, LogUnavailable."""
    readers = frozenset[str]()
    line = await line_at(runtime.log, seq, readers)
    subject, body = parse_stored(line.stored.subject), line.body or {}
    if subject.tenant != tenant:
        raise NotFound(f"the tenant has no event at sequence {seq}")
    thread = body.get("thread")
    if not isinstance(thread, str) or thread_token(thread) != subject.thread_token:  # nobody can decode it
        return EventRelations(line.document(), [], [], cut=False, rows=[])
    return await _related(runtime, line, thread, readers, body.get("user") or user, None)


async def _related(
    runtime: Runtime, line: Line, thread: str, readers: frozenset[str], about: str, user: str | None
) -> EventRelations:
    """Returns the relations of an event. about: the user in whose memories to search for rows. user: the reader, who
    sees complete rows about themselves; None for an operator."""
    subject = parse_stored(line.stored.subject)
    causes = await _causes(runtime, line, subject.partition, subject.tenant, thread, readers)
    effects, cut = await _effects(runtime, line, subject.tenant, thread, readers)
    rows = await _rows(runtime, line, subject.tenant, (thread, memory_thread(about)), user)
    return EventRelations(line.document(), _documents(causes), _documents(effects), cut, rows)


def _documents(lines: Iterable[Line]) -> list[dict[str, Any]]:
    return [line.document() for line in sorted(lines, key=lambda line: line.stored.seq)][:MOST]


async def _causes(
    runtime: Runtime, line: Line, partition: int, tenant: str, thread: str, readers: frozenset[str]
) -> list[Line]:
    causes, named = dict[int, Line](), _named(line)
    while named and len(causes) < MOST:
        keys = [Key(tenant, thread_token(thread), id_) for id_ in sorted(named)[:MOST]]
        async with runtime.pool.connection() as conn:
            seqs = set((await first_seqs(conn, [partition], keys)).values())
        new = [
            await line_at(runtime.log, seq, readers) for seq in sorted(seqs - causes.keys()) if seq < line.stored.seq
        ]
        causes |= {cause.stored.seq: cause for cause in new[: MOST - len(causes)]}
        named = set[UUID]().union(*map(_named, new))
    return list(causes.values())


async def _effects(
    runtime: Runtime, line: Line, tenant: str, thread: str, readers: frozenset[str]
) -> tuple[list[Line], bool]:
    """Returns later events that name the event or one of its effects, and whether there are more events that were not
    read."""
    ids, effects, read = {_id_of(line)}, list[Line](), 0
    async for stored in runtime.log.read_stored(tenant, thread, line.stored.seq + 1):
        later = Line(stored, readable(stored, readers))
        if _named(later) & ids:
            effects.append(later)
            ids.add(_id_of(later))
        read += 1
        if read == MOST_READ or len(effects) == MOST:
            return effects, stored.pending > 0
    return effects, False


async def _rows(
    runtime: Runtime, line: Line, tenant: str, threads: tuple[str, str], user: str | None
) -> list[RowsOfEvent]:
    values = {"tenant": tenant, "threads": list(threads), "user": user, "seq": line.stored.seq, "id": _id_of(line)}
    values["source"] = json.dumps([{"event_id": str(values["id"])}])
    named = list[RowsOfEvent]()
    async with runtime.pool.connection() as conn:
        for projection in PROJECTIONS:
            for table in projection.tables:
                if query := _query(table, is_operator=user is None):
                    rows = [row for (row,) in await (await conn.execute(query.encode(), values)).fetchall()]
                    if rows:
                        named.append(RowsOfEvent(projection.name, table.name, rows))
    return named


def _query(table: sa.Table, *, is_operator: bool) -> str | None:
    """Returns the query for the rows of a table that name an event; None if the table has no column that can name
    one."""
    columns = table.columns.keys()
    conditions = [f"{name} = %(seq)s" for name in _SEQS if name in columns]
    conditions += [f"{name} = %(id)s" for name in ("event_id",) if name in columns]
    conditions += [f"{name} @> {value}" for name, value in _LISTS.items() if name in columns]
    conditions += ["sources @> %(source)s::jsonb"] if "sources" in columns else []
    if not conditions:
        return None
    hidden = ",".join(
        column.name for column in table.columns if _is_internal(column) or (is_operator and not _is_number(column))
    )
    whose = "" if is_operator or "user_id" not in columns else "AND (user_id IS NULL OR user_id = %(user)s)"
    return (
        f"SELECT to_jsonb(t) - '{{{hidden}}}'::text[] FROM {table.name} t WHERE tenant = %(tenant)s "
        f"AND thread_id = ANY(%(threads)s) AND ({' OR '.join(conditions)}) {whose} LIMIT {MOST}"
    )


def _is_internal(column: sa.Column[Any]) -> bool:
    """Returns whether a column is internal: it contains bytes or vectors, or its table declares it internal."""
    return isinstance(column.type, sa.LargeBinary | HALFVEC) or bool(column.info.get("internal"))


def _is_number(column: sa.Column[Any]) -> bool:
    """Returns whether the column contains an id or a number, and no words of a person."""
    return isinstance(column.type, sa.Integer | sa.Uuid) or column.name in ("thread_id", "user_id")


def _id_of(line: Line) -> UUID | None:
    """Returns the event's id; None if it cannot be decoded."""
    try:
        return UUID(str((line.body or {}).get("id")))
    except ValueError:
        return None


def _named(line: Line) -> set[UUID]:
    """Returns the ids that the event names as its causation and in its data."""
    body = line.body or {}
    text = json.dumps([body.get("causation"), body.get("data")])
    return {id_ for id_ in map(UUID, _ID.findall(text)) if id_ != _id_of(line)}
