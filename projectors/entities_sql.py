"""What is found and forgotten does to the rows of P8, as SQL; entities.py says which event does what."""

from turnlog.projectors.memories_sql import MAX_SOURCES


def _united(column: str, limit: int) -> str:
    """Elements that are not there yet go to the end, up to a limit."""
    new = (
        f"SELECT coalesce(jsonb_agg(e ORDER BY n), '[]') FROM jsonb_array_elements(excluded.{column}) "
        f"WITH ORDINALITY AS x (e, n) WHERE NOT t.{column} @> jsonb_build_array(e) "
        f"AND n <= {limit} - jsonb_array_length(t.{column})"
    )
    return f"{column} = t.{column} || ({new})"


_FORGOTTEN = """EXISTS (SELECT FROM forgotten_turns f WHERE f.tenant = %(tenant)s AND f.thread_id = %(thread)s
  AND f.event_id = (s ->> 'event_id')::uuid)"""

# What stands on forgotten turns alone is not found; what stands on others too comes without its words.
FOUND = f"""
WITH told AS (SELECT s, n, (s ->> 'said_at')::timestamptz AS said_at, NOT {_FORGOTTEN} AS stays
  FROM jsonb_array_elements(%(sources)s::jsonb) WITH ORDINALITY AS x (s, n)),
found AS (SELECT count(*) AS told, coalesce(bool_and(stays), true) AS is_whole,
    coalesce(jsonb_agg(s ORDER BY n) FILTER (WHERE stays), '[]') AS sources,
    coalesce(min(said_at) FILTER (WHERE stays), %(at)s::timestamptz) AS first_said,
    coalesce(max(said_at) FILTER (WHERE stays), %(at)s::timestamptz) AS last_said FROM told)
INSERT INTO entities AS t (tenant, thread_id, type, name_key, user_id, name, description, attributes, relations,
  sources, mention_count, first_seen_at, last_seen_at)
SELECT %(tenant)s, %(thread)s, %(type)s, %(name_key)s, %(user)s, %(name)s,
  CASE WHEN is_whole THEN %(description)s::text END, CASE WHEN is_whole THEN %(attributes)s::jsonb ELSE '{{}}' END,
  CASE WHEN is_whole THEN %(relations)s::jsonb ELSE '[]' END, sources, 1, first_said, last_said
FROM found WHERE told = 0 OR sources <> '[]'
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

DELETE_UNSAID = f"""
DELETE FROM entities t WHERE {_PLACE} AND t.sources <> '[]'
AND NOT EXISTS (SELECT FROM {_SOURCES} WHERE NOT {_FORGOTTEN})"""

# Of a row with as many sources as it may have, the forgotten turn was perhaps one more.
DROP_WORDS = f"""
UPDATE entities t SET description = NULL, attributes = '{{}}', relations = '[]',
  sources = (SELECT coalesce(jsonb_agg(s ORDER BY n), '[]') FROM {_SOURCES} WHERE NOT {_FORGOTTEN})
WHERE {_PLACE} AND cardinality(%(turns)s::uuid[]) > 0
AND (jsonb_array_length(t.sources) >= {MAX_SOURCES} OR EXISTS (SELECT FROM {_SOURCES} WHERE {_FORGOTTEN}))"""
