"""The SQL that reads checkpoints, the lists they refer to, and the turns that the lists refer to."""

from functools import cache

from langgraph.checkpoint.serde.types import TASKS

from turnlog.consumers.langgraph.checkpoint.caught_up import PROJECTIONS
from turnlog.consumers.langgraph.checkpoint.checkpoints import FIRST_WITHOUT_SENDS

_WRITES = """
SELECT array_agg(ARRAY[convert_to(w.task_id, 'UTF8'), convert_to(w.idx::text, 'UTF8'),
    convert_to(w.task_path, 'UTF8'), convert_to(w.channel, 'UTF8'), convert_to(w.type, 'UTF8'), w.blob])
FROM checkpoint_writes w
WHERE w.tenant = c.tenant AND w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
"""
CHECKPOINTS = f"""
SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.checkpoint::text, c.metadata::text,
    (SELECT array_agg(ARRAY[convert_to(b.channel, 'UTF8'), convert_to(b.version, 'UTF8'),
        convert_to(b.type, 'UTF8'), b.blob])
     FROM jsonb_each_text(c.checkpoint -> 'channel_versions') v CROSS JOIN LATERAL (
        SELECT * FROM checkpoint_blobs b WHERE b.tenant = c.tenant AND b.thread_id = c.thread_id
        AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = v.key AND b.version = v.value LIMIT 1) b),
    ({_WRITES} AND w.checkpoint_id = c.checkpoint_id),
    (c.checkpoint ->> 'v')::int < {FIRST_WITHOUT_SENDS} AND c.parent_checkpoint_id IS NOT NULL,
    CASE WHEN (c.checkpoint ->> 'v')::int < {FIRST_WITHOUT_SENDS} THEN
        ({_WRITES} AND w.checkpoint_id = c.parent_checkpoint_id AND w.channel = '{TASKS}') END
FROM checkpoints c WHERE c.tenant = %(tenant)s
"""
# Appended to SQL that selects list ids.
_AND_THEIR_BASES = """
    UNION
    SELECT b.base_list FROM needed CROSS JOIN LATERAL (
        SELECT l.base_list FROM checkpoint_lists l WHERE l.tenant = %(tenant)s AND l.thread_id = %(thread)s
        AND l.list_id = needed.list_id ORDER BY l.first LIMIT 1
    ) b WHERE b.base_list IS NOT NULL
)
SELECT needed.list_id, l.* FROM needed CROSS JOIN LATERAL (
    SELECT array_agg(o.first) AS firsts, max(o.base_list), '[' || string_agg(o.items::text, ',') || ']' FROM (
        SELECT l.first, l.base_list, l.items FROM checkpoint_lists l
        WHERE l.tenant = %(tenant)s AND l.thread_id = %(thread)s AND l.list_id = needed.list_id ORDER BY l.first
    ) o
) l WHERE l.firsts IS NOT NULL
"""
# Most turns are plain text. They are sent as text, so that the reader parses nothing and gets few columns.
_IS_TEXT = "jsonb_typeof(content) = 'string' AND num_nulls(name, tool_calls, tool_call_id) = 3"
_TURN = (
    f"event_id::text, CASE WHEN {_IS_TEXT} THEN content #>> '{{}}' END, CASE WHEN NOT ({_IS_TEXT}) THEN "
    "jsonb_build_object('content', content, 'name', name, 'tool_calls', tool_calls, 'tool_call_id', tool_call_id) END"
)
# Most states consist of their thread's newest turns, which one scan reads. Other turns are found by the index of ids.
_NEWEST_TURNS = (
    f"SELECT {_TURN} FROM messages WHERE tenant = %(tenant)s AND thread_id = %(thread)s ORDER BY seq DESC LIMIT "
)
TURNS_BY_ID = f"""
SELECT {_TURN} FROM messages WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND seq IN (
    SELECT seq FROM event_ids WHERE partition = ANY(%(partitions)s) AND event_id = ANY(%(ids)s::uuid[])
    AND thread_hash = %(hash)s::uuid
    UNION ALL
    SELECT seq FROM event_ids_of_any_thread WHERE partition = ANY(%(partitions)s) AND event_id = ANY(%(ids)s::uuid[])
)
"""
SPARE_TURNS = 32
# The first statement of a pipeline, which is one transaction; the setting applies only to that transaction. It makes
# Postgres use generic plans. For a thread that is shorter than most, the planner would otherwise plan each read again,
# which takes longer than reading (0021).
ONE_PLAN = b"SELECT set_config('plan_cache_mode', 'force_generic_plan', true)"
# Steps from one namespace to the next by the index, regardless of how many checkpoints each has.
_NAMESPACES = """
    WITH RECURSIVE n(ns) AS (
        (SELECT checkpoint_ns FROM checkpoints WHERE tenant = %(tenant)s AND thread_id = %(thread)s
         ORDER BY checkpoint_ns LIMIT 1)
        UNION ALL
        SELECT (SELECT checkpoint_ns FROM checkpoints WHERE tenant = %(tenant)s AND thread_id = %(thread)s
                AND checkpoint_ns > n.ns ORDER BY checkpoint_ns LIMIT 1) FROM n WHERE n.ns IS NOT NULL
    ) SELECT array_agg(ns) FROM n WHERE ns IS NOT NULL
"""
_LOOK = f"""
SELECT s.*, found.* FROM (SELECT
    (SELECT array_agg(ARRAY[p.partition, p.reached]) FROM (
        SELECT partition, min(position) AS reached FROM projection_positions
        WHERE build = 'live' AND projection = ANY(%(projections)s)
        GROUP BY partition HAVING count(*) = {len(PROJECTIONS)}) p),
    (SELECT seq || ': ' || error FROM dead_letters WHERE tenant = %(tenant)s AND thread_token = %(token)s
     AND build = 'live' AND status = 'parked' AND projection = ANY(%(projections)s) ORDER BY seq LIMIT 1),
    CASE WHEN %(asks)s THEN ({_NAMESPACES}) END
) s LEFT JOIN LATERAL ({CHECKPOINTS} AND c.thread_id = %(thread)s AND c.checkpoint_ns = %(ns)s {{which}}) found ON true
"""
# The lists that the checkpoint of _LOOK refers to, so that they are read in the same round trip.
_NAMED = """
    SELECT convert_from(b.blob, 'UTF8')::jsonb AS list FROM (
        SELECT * FROM checkpoints c
        WHERE c.tenant = %(tenant)s AND c.thread_id = %(thread)s AND c.checkpoint_ns = %(ns)s {which}
    ) c CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') v CROSS JOIN LATERAL (
        SELECT * FROM checkpoint_blobs b WHERE b.tenant = c.tenant AND b.thread_id = c.thread_id
        AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = v.key AND b.version = v.value LIMIT 1
    ) b WHERE b.type = 'turnlog.list'
"""
_LISTS = f"SELECT n.list ->> 'list' FROM ({_NAMED}) n"
_COUNT = f"(SELECT coalesce(sum((n.list ->> 'count')::int) + {SPARE_TURNS}, 0) FROM ({_NAMED}) n)"
NEWEST = "ORDER BY c.checkpoint_id DESC LIMIT 1"
ONE = "AND c.checkpoint_id = %(id)s"


def lists_and_turns(lists: str, count: str) -> tuple[bytes, bytes]:
    """Returns two statements, for lists and for turns. lists: SQL that selects list ids; count: SQL for the number of
    newest turns."""
    return f"WITH RECURSIVE needed(list_id) AS ({lists}{_AND_THEIR_BASES}".encode(), (_NEWEST_TURNS + count).encode()


@cache
def first_look_statements(which: str) -> tuple[bytes, bytes, bytes]:
    """Returns the statements that read the checkpoint, its lists and its turns. which: NEWEST or ONE."""
    lists, count = _LISTS.format(which=which), _COUNT.format(which=which)
    return _LOOK.format(which=which).encode(), *lists_and_turns(lists, count)
