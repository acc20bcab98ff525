"""P8 entities: whom and what a user speaks of, one row per type and name, with all that was said of it (E 7.4, 10.4).

Applied in order: a later description or attribute takes the place of an earlier one, relations and sources add up.
"""

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from turnlog.events.contracts import Event, Recorded
from turnlog.events.memory_contracts import EntitiesFound, Entity
from turnlog.projectors.changes import Change, DeleteThread, Statement
from turnlog.projectors.memories import sources_json
from turnlog.projectors.memories_sql import MAX_SOURCES
from turnlog.projectors.memory_tables import entities
from turnlog.projectors.memory_text import name_key
from turnlog.projectors.projection import REMOVALS, Projection


def _united(column: str, limit: int) -> str:
    """Elements that are not there yet go to the end, up to a limit."""
    new = (
        f"SELECT coalesce(jsonb_agg(e ORDER BY n), '[]') FROM jsonb_array_elements(excluded.{column}) "
        f"WITH ORDINALITY AS x (e, n) WHERE NOT t.{column} @> jsonb_build_array(e) "
        f"AND n <= {limit} - jsonb_array_length(t.{column})"
    )
    return f"{column} = t.{column} || ({new})"


_FOUND = f"""
INSERT INTO entities AS t (tenant, thread_id, type, name_key, user_id, name, description, attributes, relations,
  sources, mention_count, first_seen_at, last_seen_at)
VALUES (%(tenant)s, %(thread)s, %(type)s, %(name_key)s, %(user)s, %(name)s, %(description)s, %(attributes)s,
  %(relations)s, %(sources)s, 1, %(first)s, %(last)s)
ON CONFLICT (tenant, thread_id, type, name_key) DO UPDATE SET
  description = coalesce(excluded.description, t.description), attributes = t.attributes || excluded.attributes,
  {_united("relations", MAX_SOURCES)}, {_united("sources", MAX_SOURCES)},
  mention_count = t.mention_count + 1, first_seen_at = least(t.first_seen_at, excluded.first_seen_at),
  last_seen_at = greatest(t.last_seen_at, excluded.last_seen_at)"""


def project(batch: Sequence[Recorded]) -> list[Change]:
    first = batch[0].event
    if first.type in REMOVALS:
        return [DeleteThread((entities,), first.tenant, first.thread)]
    return [Statement(_FOUND, [row for recorded in batch for row in _rows(recorded.event)])]


def _rows(event: Event) -> list[dict[str, Any]]:
    assert isinstance(event.data, EntitiesFound)
    return [_row(event, entity) for entity in event.data.entities]


def _row(event: Event, entity: Entity) -> dict[str, Any]:
    said = [source.said_at for source in entity.sources] or [event.time]
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
        "first": min(said),
        "last": max(said),
    }


ENTITIES = Projection("entities", 1, (entities,), REMOVALS | {"entities_found"}, project)
