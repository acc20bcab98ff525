"""Looks up the transcript's messages. Content stays plain JSON, so that no model is built per row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from turnlog.events.contracts import TurnOrigin
from turnlog.events.local_time import with_offset
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.forks import LINEAGE


@dataclass(frozen=True, slots=True)
class Message:
    """A stored turn. content: a string, or a list of blocks as in events.contracts (dicts with `type`).

    tool_calls: list of {"id", "name", "arguments"}; seq: stream sequence, the order within the thread.
    time: in the UTC offset that the turn was sent with.
    """

    seq: int
    event_id: UUID
    role: str
    content: str | list[dict[str, Any]]
    time: datetime
    name: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    tool_call_id: str | None = None
    user: str | None = None
    source_id: str | None = None
    agent: str | None = None
    model: str | None = None
    origin: TurnOrigin = "person"


_COLUMNS = (
    "seq, event_id, role, content, time, name, tool_calls, tool_call_id, user_id, source_id, agent, model, origin, "
    "utc_offset"
)
_TIME = _COLUMNS.split(", ").index("time")
_TOOL_CALLS = _COLUMNS.split(", ").index("tool_calls")


# OFFSET 0 makes the planner use one index scan per thread, however many turns it expects. Each thread's turns come in
# order; the caller orders the threads, which costs less than sorting whole turns in Postgres.
_MESSAGES = f"""
WITH RECURSIVE {LINEAGE}
SELECT m.* FROM lineage l CROSS JOIN LATERAL (
  SELECT {_COLUMNS} FROM messages
  WHERE tenant = %(tenant)s AND thread_id = l.thread_id AND seq > %(after)s AND seq <= least(%(through)s, l.through_seq)
  ORDER BY seq OFFSET 0) m"""

# Selects some turns of a thread. condition: an SQL condition on the turns `m`.
_SOME = """
WITH RECURSIVE {lineage}
SELECT {columns} FROM lineage l JOIN messages m
ON m.tenant = %(tenant)s AND m.thread_id = l.thread_id AND m.seq <= l.through_seq AND {condition}
ORDER BY m.seq"""
_OF_M = ", ".join(f"m.{name}" for name in _COLUMNS.split(", "))
_BY_EVENT = _SOME.format(lineage=LINEAGE, columns=_OF_M, condition="m.event_id = %(event)s").encode()
# Reads from the end, because a turn that is looked up by its event was usually just written. OFFSET 0 enforces this
# plan.
_OWN_BY_EVENT = f"""
SELECT * FROM (SELECT {_COLUMNS} FROM messages WHERE tenant = %(tenant)s AND thread_id = %(thread)s
  ORDER BY seq DESC OFFSET 0) m WHERE event_id = %(event)s LIMIT 1""".encode()
_AT = _SOME.format(lineage=LINEAGE, columns=_OF_M, condition="m.seq = ANY(%(seqs)s)").encode()
_COSTS = _SOME.format(
    lineage=LINEAGE, columns="m.seq, m.tokens_in, m.tokens_out, m.latency_ms", condition="m.seq = ANY(%(seqs)s)"
).encode()


async def thread_messages(
    conn: Connection,
    tenant: str,
    thread: str,
    after_seq: int = 0,
    through_seq: int | None = None,
) -> list[Message]:
    """Returns the thread's turns after a sequence, oldest first, including a fork's shared past.

    through_seq: the last sequence to return, to read an earlier state of the thread.
    """
    through = through_seq if through_seq is not None else 2**62
    rows = await conn.execute(_MESSAGES, {"tenant": tenant, "thread": thread, "after": after_seq, "through": through})
    return [_message(list(row)) for row in sorted(await rows.fetchall(), key=itemgetter(0))]


def _message(values: list[Any]) -> Message:
    values[_TIME] = with_offset(values[_TIME], values.pop())
    values[_TOOL_CALLS] = values[_TOOL_CALLS] or []
    return Message(*values)


async def message_by_event(conn: Connection, tenant: str, thread: str, event_id: UUID) -> Message | None:
    """Returns a turn of the thread or of a parent that it was forked from, or None. The lineage is read only if the
    turn is not the thread's own."""
    for query in (_OWN_BY_EVENT, _BY_EVENT):
        rows = await conn.execute(query, {"tenant": tenant, "thread": thread, "event": event_id})
        if (row := await rows.fetchone()) is not None:
            return _message(list(row))
    return None


_NEWEST = f"""
WITH RECURSIVE {LINEAGE}
SELECT min(seq) FROM (
  SELECT m.seq FROM lineage l CROSS JOIN LATERAL (
    SELECT seq FROM messages WHERE tenant = %(tenant)s AND thread_id = l.thread_id AND role <> 'tool'
    AND seq < %(before)s AND seq <= l.through_seq ORDER BY seq DESC LIMIT %(count)s) m
  ORDER BY m.seq DESC LIMIT %(count)s) newest"""

# The same rule as in memory_episodes: a user's turn with only tool results is not a question.
_ASKS = """role = 'user' AND (jsonb_typeof(content) = 'string' OR content @> '[{"type": "text"}]')"""

# If users send several turns in a row, as in a chat between two people, `count` questions may be far fewer than 2 *
# count turns. Then the last 2 * count turns are returned, from the first question among them on if there are enough.
_EXCHANGES = f"""
WITH RECURSIVE {LINEAGE},
asked AS (
  SELECT m.seq FROM lineage l CROSS JOIN LATERAL (
    SELECT seq FROM messages WHERE tenant = %(tenant)s AND thread_id = l.thread_id AND {_ASKS}
    AND seq < %(before)s AND seq <= l.through_seq ORDER BY seq DESC LIMIT %(count)s) m
  ORDER BY m.seq DESC LIMIT %(count)s),
said AS (
  SELECT m.seq, m.asks FROM lineage l CROSS JOIN LATERAL (
    SELECT seq, {_ASKS} AS asks FROM messages WHERE tenant = %(tenant)s AND thread_id = l.thread_id AND role <> 'tool'
    AND seq < %(before)s AND seq <= l.through_seq ORDER BY seq DESC LIMIT 2 * %(count)s) m
  ORDER BY m.seq DESC LIMIT 2 * %(count)s)
SELECT least((SELECT min(seq) FROM asked),
  (SELECT min(seq) FROM said WHERE asks OR (SELECT count(*) FROM asked) < %(count)s))"""


async def messages_at(conn: Connection, tenant: str, thread: str, seqs: Sequence[int]) -> list[Message]:
    """Returns the thread's turns at these sequences, oldest first; other sequences are ignored."""
    if not seqs:
        return []
    rows = await conn.execute(_AT, {"tenant": tenant, "thread": thread, "seqs": list(seqs)})
    return [_message(list(row)) for row in await rows.fetchall()]


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens and latency of a turn, as the model's provider reported them."""

    tokens_in: int | None
    tokens_out: int | None
    latency_ms: float | None


async def costs_at(conn: Connection, tenant: str, thread: str, seqs: Sequence[int]) -> dict[int, Cost]:
    """Returns the costs of the thread's turns at these sequences, by sequence."""
    rows = await conn.execute(_COSTS, {"tenant": tenant, "thread": thread, "seqs": list(seqs)})
    return {seq: Cost(*values) for seq, *values in await rows.fetchall()}


_PAGE = """
WITH RECURSIVE {lineage}
SELECT * FROM (
  SELECT m.* FROM lineage l CROSS JOIN LATERAL (
    SELECT {columns} FROM messages
    WHERE tenant = %(tenant)s AND thread_id = l.thread_id AND seq <= l.through_seq
    AND seq > %(after)s AND seq < %(before)s ORDER BY seq {order} LIMIT %(limit)s) m
  ORDER BY m.seq {order} LIMIT %(limit)s) page
ORDER BY seq"""


async def messages_page(
    conn: Connection,
    tenant: str,
    thread: str,
    limit: int,
    after_seq: int = 0,
    before_seq: int | None = None,
    newest: bool = False,
) -> list[Message]:
    """Returns at most `limit` of the thread's turns between two sequences, oldest first. newest: True returns the last
    of these turns, False the first."""
    query = _PAGE.format(lineage=LINEAGE, columns=_COLUMNS, order="DESC" if newest else "ASC")
    before = before_seq if before_seq is not None else 2**62
    params = {"tenant": tenant, "thread": thread, "limit": limit, "after": after_seq, "before": before}
    rows = await conn.execute(query.encode(), params)
    return [_message(list(row)) for row in await rows.fetchall()]


async def newest_from(
    conn: Connection, tenant: str, thread: str, count: int, before_seq: int | None = None
) -> int | None:
    """Returns the sequence of the first of the thread's last `count` turns, not counting results of tool calls."""
    return await _first(conn, _NEWEST, tenant, thread, count, before_seq)


async def newest_exchanges(
    conn: Connection, tenant: str, thread: str, count: int, before_seq: int | None = None
) -> list[Message]:
    """Returns the users' last `count` questions with all turns that follow them, oldest first.

    If the last 2 * count turns begin earlier, because users send several turns in a row or have asked fewer questions,
    these turns are returned instead. If there are `count` questions, turns before the first question among these turns
    are left out.
    """
    first = await _first(conn, _EXCHANGES, tenant, thread, count, before_seq)
    if first is None:
        return []
    return await thread_messages(conn, tenant, thread, first - 1, None if before_seq is None else before_seq - 1)


async def _first(
    conn: Connection, query: str, tenant: str, thread: str, count: int, before_seq: int | None
) -> int | None:
    before = before_seq if before_seq is not None else 2**62
    rows = await conn.execute(query, {"tenant": tenant, "thread": thread, "count": count, "before": before})
    row = await rows.fetchone()
    return None if row is None else row[0]


_WITH = """
SELECT t.thread_id FROM (
  SELECT thread_id, last_active_at FROM thread_activity WHERE tenant = %(tenant)s AND user_id = %(user)s
  ORDER BY last_active_at DESC LIMIT 100) t
CROSS JOIN LATERAL (
  SELECT count(*) AS hits FROM (
    SELECT role, content, tool_calls FROM messages WHERE tenant = %(tenant)s AND thread_id = t.thread_id
    ORDER BY seq LIMIT %(first)s) m
  WHERE m.role = 'assistant' AND (m.content = ANY(%(texts)s) OR m.tool_calls -> 0 ->> 'id' = ANY(%(calls)s))) found
WHERE found.hits > 0 ORDER BY found.hits DESC, t.last_active_at DESC LIMIT %(limit)s"""


async def threads_with(
    conn: Connection, tenant: str, user: str, texts: Sequence[str], calls: Sequence[str], first: int, limit: int
) -> list[str]:
    """Searches the first turns of a user's 100 most recent threads for assistant turns with one of the texts or one of
    the tool calls (by id). Returns the threads with a match, most matches first. first: the number of turns to search
    in each thread. Of a fork only its own turns are searched."""
    params = {"tenant": tenant, "user": user, "texts": [Jsonb(text) for text in texts], "calls": list(calls)}
    rows = await conn.execute(_WITH, {**params, "first": first, "limit": limit})
    return [str(thread_id) for (thread_id,) in await rows.fetchall()]


_USER_TURNS_AT = f"""
SELECT a.thread, a.seq AS at, m.* FROM unnest(%(threads)s::text[], %(seqs)s::bigint[]) AS a (thread, seq)
CROSS JOIN LATERAL (
  SELECT {_COLUMNS} FROM messages WHERE tenant = %(tenant)s AND thread_id = a.thread AND seq <= a.seq
  AND role = 'user' AND origin <> 'tool' ORDER BY seq DESC LIMIT 1) m""".encode()


async def user_turns_at(
    conn: Connection, tenant: str, turns: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], Message]:
    """Returns, for each turn (thread, seq), the last user's turn at or before it in the same thread."""
    params = {"tenant": tenant, "threads": [thread for thread, _ in turns], "seqs": [seq for _, seq in turns]}
    rows = await conn.execute(_USER_TURNS_AT, params)
    return {(row[0], row[1]): _message(list(row[2:])) for row in await rows.fetchall()}
