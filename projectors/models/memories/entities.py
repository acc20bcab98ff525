"""entities: people and things that a user mentions, one row per type and name.

Events are applied in order: a later description or attribute replaces an earlier one; relations and sources are added.
When a memory is forgotten, the data from its source turns is removed, even if it was found later. The source of a
single description, attribute or relation is not known, so all of them are removed when any source is. The number and
times of mentions stay.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from pydantic_core import to_json

from turnlog.events.contracts import REMOVALS, EntitiesFound, Entity, Event, MemoryForgotten, Recorded
from turnlog.projectors.engine.changes import Change, Statement
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.models.memories.projection import sources_json
from turnlog.projectors.models.memories.sql import MAX_SOURCES
from turnlog.projectors.models.memories.tables import entities, forgotten_turns
from turnlog.projectors.models.memories.text import name_key


def _united(column: str, limit: int) -> str:
    """Returns SQL that appends new elements, up to a limit."""
    new = (
        f"SELECT coalesce(jsonb_agg(e ORDER BY n), '[]') FROM jsonb_array_elements(excluded.{column}) "
        f"WITH ORDINALITY AS x (e, n) WHERE NOT t.{column} @> jsonb_build_array(e) "
        f"AND n <= {limit} - jsonb_array_length(t.{column})"
    )
    return f"{column} = t.{column} || ({new})"


_FORGOTTEN = """EXISTS (SELECT FROM forgotten_turns f WHERE f.tenant = %(tenant)s AND f.thread_id = %(thread)s
  AND f.event_id = (s ->> 'event_id')::uuid)"""

# An entity that only forgotten turns mention is ignored; if other turns mention it too, it is stored without
# description, attributes and relations.
FOUND = f"""
WITH given AS (SELECT s, n, (s ->> 'said_at')::timestamptz AS said_at, NOT {_FORGOTTEN} AS stays
  FROM jsonb_array_elements(%(sources)s::jsonb) WITH ORDINALITY AS x (s, n)),
found AS (SELECT count(*) AS mentions, coalesce(bool_and(stays), true) AS is_whole,
    coalesce(jsonb_agg(s ORDER BY n) FILTER (WHERE stays), '[]') AS sources,
    coalesce(min(said_at) FILTER (WHERE stays), %(at)s::timestamptz) AS first_said,
    coalesce(max(said_at) FILTER (WHERE stays), %(at)s::timestamptz) AS last_said FROM given)
INSERT INTO entities AS t (tenant, thread_id, type, name_key, user_id, name, description, attributes, relations,
  sources, mention_count, first_seen_at, last_seen_at)
SELECT %(tenant)s, %(thread)s, %(type)s, %(name_key)s, %(user)s, %(name)s,
  CASE WHEN is_whole THEN %(description)s::text END, CASE WHEN is_whole THEN %(attributes)s::jsonb ELSE '{{}}' END,
  CASE WHEN is_whole THEN %(relations)s::jsonb ELSE '[]' END, sources, 1, first_said, last_said
FROM found WHERE mentions = 0 OR sources <> '[]'
ON CONFLICT (tenant, thread_id, type, name_key) DO UPDATE SET
  description = coalesce(excluded.description, t.description), attributes = t.attributes || excluded.attributes,
  {_united("relations", MAX_SOURCES)}, {_united("sources", MAX_SOURCES)},
  mention_count = t.mention_count + 1, first_seen_at = least(t.first_seen_at, excluded.first_seen_at),
  last_seen_at = greatest(t.last_seen_at, excluded.last_seen_at)"""

_PLACE = "t.tenant = %(tenant)s AND t.thread_id = %(thread)s"
_SOURCES = "jsonb_array_elements(t.sources) WITH ORDINALITY AS x (s, n)"

REMEMBER_TURNS = """
INSERT INTO forgotten_turns (tenant, thread_id, event_id)
SELECT %(tenant)s, %(thread)s, turn FROM unnest(%(turns)s::uuid[]) AS turn ON CONFLICT DO NOTHING"""

# Reads only entities that have one of the turns as a source, because a user may have very many others.
_NAMES_ONE = "jsonb_path_query_array(t.sources, '$[*].event_id') ?| %(turns)s::uuid[]::text[]"

DELETE_UNSAID = f"""
DELETE FROM entities t WHERE {_PLACE} AND {_NAMES_ONE}
AND NOT EXISTS (SELECT FROM {_SOURCES} WHERE NOT {_FORGOTTEN})"""

# A row with the maximum number of sources may come from the forgotten turn too, even if that turn is not listed.
DROP_WORDS = f"""
UPDATE entities t SET description = NULL, attributes = '{{}}', relations = '[]',
  sources = (SELECT coalesce(jsonb_agg(s ORDER BY n), '[]') FROM {_SOURCES} WHERE NOT {_FORGOTTEN})
WHERE {_PLACE} AND cardinality(%(turns)s::uuid[]) > 0
AND (jsonb_array_length(t.sources) >= {MAX_SOURCES} OR {_NAMES_ONE})"""

CLEAR = "DELETE FROM entities WHERE tenant = %(tenant)s AND thread_id = %(thread)s"

TABLES = (entities, forgotten_turns)


def project(batch: Sequence[Recorded]) -> list[Change]:
    events = [recorded.event for recorded in batch]
    return [change for type_, run in groupby(events, lambda event: event.type) for change in _HANDLERS[type_](run)]


def _found(events: Iterable[Event]) -> list[Change]:
    rows: list[dict[str, Any]] = []
    for event in events:
        assert isinstance(event.data, EntitiesFound)
        rows += [_row(event, entity) for entity in event.data.entities]
    return [Statement(FOUND, rows)]


def _forgotten(events: Iterable[Event]) -> list[Change]:
    params = []
    for event in events:
        assert isinstance(event.data, MemoryForgotten)
        params.append({"tenant": event.tenant, "thread": event.thread, "turns": list(event.data.source_ids)})
    return [Statement(text, params) for text in (REMEMBER_TURNS, DELETE_UNSAID, DROP_WORDS)]


def _cleared(events: Iterable[Event]) -> list[Change]:
    return [Statement(CLEAR, [{"tenant": event.tenant, "thread": event.thread} for event in events])]


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
    "entities_cleared": _cleared,
}
ENTITIES = Projection("entities", 1, TABLES, REMOVALS | _HANDLERS.keys(), project, said=(entities,))
