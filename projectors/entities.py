"""P8 entities: whom and what a user speaks of, one row per type and name, with all that was said of it (E 7.4, 10.4).

Applied in order: a later description or attribute takes the place of an earlier one, relations and sources add up.

A forgotten memory takes along what was said in its turns, whether it was found before the memory was forgotten or
after. Which source a description, an attribute or a relation came from is not known: where one source goes, they go.
How often and when an entity was spoken of stays.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from pydantic_core import to_json

from turnlog.events.contracts import Event, Recorded
from turnlog.events.memory_contracts import EntitiesFound, Entity, MemoryForgotten
from turnlog.projectors import entities_sql as sql
from turnlog.projectors.changes import Change, DeleteThread, Statement
from turnlog.projectors.memories import sources_json
from turnlog.projectors.memory_tables import entities, forgotten_turns
from turnlog.projectors.memory_text import name_key
from turnlog.projectors.projection import REMOVALS, Projection

TABLES = (entities, forgotten_turns)


def project(batch: Sequence[Recorded]) -> list[Change]:
    first = batch[0].event
    if first.type in REMOVALS:
        return [DeleteThread(TABLES, first.tenant, first.thread)]
    events = [recorded.event for recorded in batch]
    return [change for type_, run in groupby(events, lambda event: event.type) for change in _HANDLERS[type_](run)]


def _found(events: Iterable[Event]) -> list[Change]:
    return [Statement(sql.FOUND, [row for event in events for row in _rows(event)])]


def _forgotten(events: Iterable[Event]) -> list[Change]:
    params = [_turns(event) for event in events]
    return [Statement(text, params) for text in (sql.REMEMBER_TURNS, sql.DELETE_UNSAID, sql.DROP_WORDS)]


def _turns(event: Event) -> dict[str, Any]:
    assert isinstance(event.data, MemoryForgotten)
    return {"tenant": event.tenant, "thread": event.thread, "turns": list(event.data.source_ids)}


def _rows(event: Event) -> list[dict[str, Any]]:
    assert isinstance(event.data, EntitiesFound)
    return [_row(event, entity) for entity in event.data.entities]


def _row(event: Event, entity: Entity) -> dict[str, Any]:
    relations = dict.fromkeys(relation.model_dump_json() for relation in entity.relations)
    return {
        "tenant": event.tenant,
        "thread": event.thread,
        "type": entity.type,
        "name_key": name_key(entity.name),
        "user": event.user or "",
        "name": entity.name,
        "description": entity.description,
        "attributes": to_json(entity.attributes).decode(),
        "relations": "[" + ",".join(relations) + "]",
        "sources": sources_json(dict.fromkeys(entity.sources)),
        "at": event.time,
    }


_HANDLERS: dict[str, Callable[[Iterable[Event]], list[Change]]] = {
    "entities_found": _found,
    "memory_forgotten": _forgotten,
}
ENTITIES = Projection("entities", 1, TABLES, REMOVALS | _HANDLERS.keys(), project)
