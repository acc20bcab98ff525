"""memories: the memories of a user with their validity and sources.

Events contain the results of decisions (intervals, pending, archived); nothing is decided here. Events are applied
strictly in order, so the size of batches does not matter. A row stays when its memory is closed; only the daily job and
the removal of the user's data delete rows. A forgotten memory keeps its id, its interval and the hash of its content,
so that the same content is not extracted again.

importance is the value at importance_at, the time when turnlog recorded it (otherwise memories of an imported old
conversation would be unimportant at once). Decay and reinforcement are not applied here, because their rates are
settings and a rebuild must not depend on settings. agent/memory/deciding/policy.py computes the current importance from
importance, importance_at, access_count and last_accessed_at.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from turnlog.events.contracts import (
    REMOVALS,
    CompactionUndone,
    Derivation,
    Event,
    Interval,
    MemoriesAccessed,
    MemoriesCompacted,
    MemoriesEmbedded,
    MemoriesExtracted,
    MemoriesReviewed,
    MemoriesRevised,
    Memory,
    MemoryArchived,
    MemoryCompared,
    MemoryConfirmed,
    MemoryConflictAnswered,
    MemoryConflictRaised,
    MemoryForgotten,
    MemoryRated,
    MemoryRecorded,
    MemorySource,
    PreferencesSet,
    Recorded,
    UserPreferences,
)
from turnlog.projectors.engine.changes import Change, Row, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import array_literal
from turnlog.projectors.models.memories import sql
from turnlog.projectors.models.memories.tables import (
    memories,
    memory_compactions,
    memory_conflicts,
    memory_extractions,
    user_preferences,
)
from turnlog.projectors.models.memories.text import content_key
from turnlog.projectors.models.neighbours import neighbour_indexes
from turnlog.projectors.models.terms import terms

TABLES = (memories, memory_conflicts, memory_compactions, memory_extractions, user_preferences)
NEIGHBOUR_INDEXES = neighbour_indexes(memories)
LATER = (
    "access_count",
    "last_accessed_at",
    "valid_to",
    "replaced_by",
    "closed_reason",
    "archived_at",
    "archived_reason",
)
COLUMNS = tuple(c.name for c in memories.columns if c.name not in (*LATER, "embedding", "embedding_model"))
_MEMORY_COLUMNS = tuple(
    name for name in Memory.model_fields if name in COLUMNS and name not in ("sources", "entities", "metadata")
)
_CONFLICT = tuple(c.name for c in memory_conflicts.columns if c.name not in ("answer", "answered_at"))
_COMPACTION = tuple(c.name for c in memory_compactions.columns if c.name != "undone_at")


def project(batch: Sequence[Recorded]) -> list[Change]:
    return joined(change for recorded in batch for change in _HANDLERS[recorded.event.type](recorded))


def joined(changes: Iterable[Change]) -> list[Change]:
    """Returns the same changes in the same order, with adjacent changes of one kind combined."""
    return [_combined(list(run)) for _, run in groupby(changes, _kind)]


def _kind(change: Change) -> Any:
    match change:
        case Upsert(table, columns):
            return table.name, columns
        case Statement(text):
            return text
    return id(change)


def _combined(run: Sequence[Change]) -> Change:
    match run[0]:
        case Upsert() as first:
            return replace(first, rows=[row for change in run if isinstance(change, Upsert) for row in change.rows])
        case Statement(text, _):
            return Statement(text, [row for change in run if isinstance(change, Statement) for row in change.params])
    return run[0]


def _recorded(recorded: Recorded) -> list[Change]:
    data = recorded.event.data
    assert isinstance(data, MemoryRecorded)
    return [_insert(recorded, data.memory, "valid", data.derivation), *_intervals(recorded.event, data.intervals)]


def _confirmed(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoryConfirmed)
    said = {"said_at": data.source.said_at, "source": f"[{data.source.model_dump_json()}]"}
    scores = {"importance": data.importance, "confidence": data.confidence, "at": event.time}
    confirmed = Statement(sql.CONFIRM, [{**_place(event), "id": data.memory_id, **said, **scores}])
    return [confirmed, *_intervals(event, data.intervals)]


def _revised(recorded: Recorded) -> list[Change]:
    data = recorded.event.data
    assert isinstance(data, MemoriesRevised | MemoryCompared)
    return _intervals(recorded.event, data.intervals)


def _rated(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoryRated)
    rated = {"id": data.memory_id, "importance": data.importance, "at": event.time}
    return [Statement(sql.RATE, [{**_place(event), **rated}])]


def _archived(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoryArchived)
    params = {**_place(event), "id": data.memory_id, "reason": data.reason, "at": event.time}
    return [Statement(sql.ARCHIVE_ONE, [params])]


def _forgotten(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoryForgotten)
    params = {**_place(event), "id": data.memory_id, "at": event.time}
    return [Statement(sql.FORGET, [params]), Statement(sql.FORGET_QUESTIONS, [params])]


def _conflict_raised(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoryConflictRaised)
    row = (
        *_user(event, data.conflict_id),
        data.memory.id,
        array_literal(data.against),
        data.question,
        event.time,
    )
    return [
        _insert(recorded, data.memory, "pending", data.derivation),
        Statement(sql.PEND, [{**_place(event), "id": data.memory.id}]),
        Upsert(memory_conflicts, _CONFLICT, [row]),
    ]


def _conflict_answered(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoryConflictAnswered)
    params = {**_place(event), "id": data.conflict_id, "answer": data.answer, "at": event.time}
    return [Statement(sql.ANSWER, [params]), *_intervals(event, data.intervals)]


def _accessed(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoriesAccessed)
    return [Statement(sql.ACCESS, [{**_place(event), "ids": list(data.memory_ids), "at": event.time}])]


def _embedded(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoriesEmbedded)
    return [Statement(sql.EMBED, [{**_place(event), "ids": list(data.memory_ids), "model": data.model}])]


def _reviewed(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoriesReviewed)
    decisions = ((sql.ARCHIVE, data.archived), (sql.EXPIRE, data.expired), (sql.DELETE, data.deleted))
    return [
        Statement(text, [{**_place(event), "ids": list(ids), "due_at": data.due_at}]) for text, ids in decisions if ids
    ]


def _compacted(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoriesCompacted)
    made = [] if data.memory is None else [_insert(recorded, data.memory, "valid", data.derivation)]
    row = (
        *(event.tenant, event.thread, event.id, event.user or "", data.method, array_literal(data.members)),
        *(data.kept, data.memory.id if data.memory else None, data.similarity, event.time),
    )
    return [*made, *_intervals(event, data.intervals), Upsert(memory_compactions, _COMPACTION, [row])]


def _undone(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, CompactionUndone)
    made = [Interval(memory_id=data.made, valid_to=event.time, reason="reverted")] if data.made else []
    params = {**_place(event), "id": data.compaction_id, "at": event.time}
    return [Statement(sql.UNDO, [params]), *_intervals(event, (*made, *data.intervals))]


def _extracted(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, MemoriesExtracted)
    params = {**_place(event), "user": event.user or "", "at": event.time}
    run = data.model_dump(include={"conversation", "stage", "through_seq", "extractor", "found", "stored", "error"})
    return [Statement(sql.EXTRACTED, [{**params, **run}])]


def _preferred(recorded: Recorded) -> list[Change]:
    event, data = recorded.event, recorded.event.data
    assert isinstance(data, PreferencesSet)
    preferences = (data.preferences or UserPreferences()).model_dump_json(exclude_none=True)
    params = {"user": event.user or "", "preferences": preferences, "cleared": list(data.cleared), "at": event.time}
    return [Statement(sql.PREFER, [{**_place(event), **params}])]


def _insert(recorded: Recorded, memory: Memory, status: str, derivation: Derivation | None) -> Change:
    """Returns a change that inserts a memory's row. An existing row with the id is kept, because ids are derived from
    their cause."""
    event = recorded.event
    said_at = max((source.said_at for source in memory.sources), default=event.time)
    values: dict[str, Any] = {
        **{name: getattr(memory, name) for name in _MEMORY_COLUMNS},
        "tenant": event.tenant,
        "thread_id": event.thread,
        "user_id": event.user or "",
        "seq": recorded.seq,
        "status": status,
        "terms": array_literal(terms(memory.content)),
        "content_key": content_key(memory.kind, memory.content),
        "importance_at": event.time,
        "created_at": event.time,
        "confirmed_at": said_at,
        "sources": sources_json(memory.sources),
        "entities": array_literal(memory.entities),
        "metadata": None if memory.metadata is None else to_json(memory.metadata).decode(),
        "derivation": derivation.model_dump_json() if derivation else None,
    }
    row: Row = tuple(values[name] for name in COLUMNS)
    return Upsert(memories, COLUMNS, [row])


def sources_json(sources: Iterable[MemorySource]) -> str:
    return "[" + ",".join(source.model_dump_json() for source in sources) + "]"


def _intervals(event: Event, intervals: Iterable[Interval]) -> list[Change]:
    params = [{**_place(event), **interval.model_dump()} for interval in intervals]
    return [Statement(sql.REVISE, params)] if params else []


def _place(event: Event) -> dict[str, Any]:
    return {"tenant": event.tenant, "thread": event.thread}


def _user(event: Event, id_: UUID) -> Row:
    return (event.tenant, event.thread, id_, event.user or "")


_HANDLERS: dict[str, Callable[[Recorded], list[Change]]] = {
    "memory_recorded": _recorded,
    "memory_confirmed": _confirmed,
    "memories_revised": _revised,
    "memory_compared": _revised,
    "memory_rated": _rated,
    "memory_archived": _archived,
    "memory_forgotten": _forgotten,
    "memory_conflict_raised": _conflict_raised,
    "memory_conflict_answered": _conflict_answered,
    "memories_accessed": _accessed,
    "memories_embedded": _embedded,
    "memories_reviewed": _reviewed,
    "memories_compacted": _compacted,
    "compaction_undone": _undone,
    "memories_extracted": _extracted,
    "preferences_set": _preferred,
}
MEMORIES = Projection(
    "memories",
    2,
    TABLES,
    REMOVALS | _HANDLERS.keys(),
    project,
    last_sql=(NEIGHBOUR_INDEXES, "ANALYZE memories"),
    said=(memories,),
)
