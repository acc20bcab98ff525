"""Checkpoints out of the tables: rows, then the lists they name, then the turns those name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import TASKS
from pydantic_core import from_json

from turnlog.consumers.langgraph.growth import Row, Source, read, source_of
from turnlog.consumers.langgraph.item_list import ItemList
from turnlog.consumers.langgraph.items import Marker, stored_item
from turnlog.consumers.langgraph.messages import Said
from turnlog.consumers.langgraph.tuples import FIRST_WITHOUT_SENDS, Saved, Written
from turnlog.consumers.langgraph.values import Typed, lists_in, markers_in, resolved
from turnlog.projectors.writer import Connection

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
# Behind SQL that selects list ids.
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
# Most turns are plain text alone: sent as text it costs the reader no parsing, and few columns.
_IS_TEXT = "jsonb_typeof(content) = 'string' AND num_nulls(name, tool_calls, tool_call_id) = 3"
_TURN = (
    f"event_id::text, CASE WHEN {_IS_TEXT} THEN content #>> '{{}}' END, CASE WHEN NOT ({_IS_TEXT}) THEN "
    "jsonb_build_object('content', content, 'name', name, 'tool_calls', tool_calls, 'tool_call_id', tool_call_id) END"
)
# Most states are the newest turns of their thread: one scan. What it does not meet is found by the index of ids.
_NEWEST_TURNS = (
    f"SELECT {_TURN} FROM messages WHERE tenant = %(tenant)s AND thread_id = %(thread)s ORDER BY seq DESC LIMIT "
)
_TURNS_BY_ID = f"""
SELECT {_TURN} FROM messages WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND seq IN (
    SELECT seq FROM event_ids WHERE partition = ANY(%(partitions)s) AND event_id = ANY(%(ids)s::uuid[])
)
"""
SPARE_TURNS = 32
# First in a pipeline, which is one transaction, and for it alone: nothing is planned for the values given. The planner
# expects less of a thread shorter than others, and would plan each of its reads, which takes longer than reading.
ONE_PLAN = b"SELECT set_config('plan_cache_mode', 'force_generic_plan', true)"
Connect = Callable[[], AbstractAsyncContextManager[Connection]]


class Raw(NamedTuple):
    """A checkpoint's row, its values still as they are stored."""

    thread: str
    ns: str
    checkpoint_id: str
    parent_id: str | None
    checkpoint: str
    metadata: str
    values: dict[tuple[str, str], Typed]
    writes: list[tuple[str, int, str, str, Typed]]
    is_old: bool
    sends: list[tuple[str, int, str, str, Typed]]

    def typed(self) -> list[Typed]:
        return [*self.values.values(), *(one[-1] for one in self.writes), *(one[-1] for one in self.sends)]


class Fetched(NamedTuple):
    """Rows by list id, turns by event id: the newest ones, and those that were asked for."""

    rows: dict[str, list[Row]]
    turns: dict[str, Said]


@dataclass(frozen=True, slots=True)
class Found:
    """Checkpoints of one thread. items, sources: by list id, of the lists they name."""

    saved: list[Saved] = field(default_factory=list)
    items: Mapping[str, ItemList] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)


async def raw_checkpoints(conn: Connection, tenant: str, where: str, named: Mapping[str, Any]) -> list[Raw]:
    """where: SQL over `c`, the checkpoints, that begins with AND, or with what ends the statement."""
    rows = await conn.execute((CHECKPOINTS + where).encode(), {"tenant": tenant, **named}, binary=True)
    return [raw_of(*row) for row in await rows.fetchall()]


async def complete(
    connect: Connect, tenant: str, partitions: Sequence[int], raws: Sequence[Raw], fetched: Fetched | None = None
) -> Found:
    """Checkpoints of one thread with their lists and turns. partitions: where its events may be.

    fetched: what came with the checkpoints; only what is missing there is asked for.
    """
    if not raws:
        return Found()
    thread, typed = raws[0].thread, [value for raw in raws for value in raw.typed()]
    counts: dict[str, int] = {}
    for list_id, count in lists_in(typed):
        counts[list_id] = max(count, counts.get(list_id, 0))
    beside = markers_in(typed)
    rows, turns = fetched or Fetched({}, {})
    if counts.keys() - rows.keys():
        async with connect() as conn:
            wanted = sum(counts.values()) + len(beside)
            rows, turns = await _lists_and_turns(conn, tenant, thread, list(counts), wanted)
    markers = {list_id: read(rows, list_id, count) for list_id, count in counts.items()}
    named = {marker["turn"] for own in (*markers.values(), beside) for marker in own if "kind" in marker}
    if missing := named - turns.keys():
        async with connect() as conn:
            turns |= await _turns_by_id(conn, tenant, thread, partitions, missing)
    items = {list_id: _items(own, turns) for list_id, own in markers.items()}
    sources = {list_id: source_of(rows, list_id) for list_id in counts}
    return Found([_saved(raw, items, turns) for raw in raws], items, sources)


def _items(markers: Iterable[Marker], turns: Mapping[str, Said]) -> ItemList:
    """What was deleted or erased since is left out."""
    return ItemList([item for marker in markers if (item := stored_item(marker, turns)) is not None])


def lists_and_turns(lists: str, count: str) -> tuple[bytes, bytes]:
    """Two statements. lists: SQL that selects list ids; count: SQL of how many of the newest turns."""
    return f"WITH RECURSIVE needed(list_id) AS ({lists}{_AND_THEIR_BASES}".encode(), (_NEWEST_TURNS + count).encode()


async def _lists_and_turns(conn: Connection, tenant: str, thread: str, lists: list[str], count: int) -> Fetched:
    """Of the newest turns some more than are named. One round trip."""
    named = {"tenant": tenant, "thread": thread, "lists": lists, "count": count + SPARE_TURNS}
    list_sql, turn_sql = lists_and_turns("SELECT unnest(%(lists)s::text[])", "%(count)s")
    async with conn.pipeline():
        await conn.execute(ONE_PLAN)
        growth = await conn.execute(list_sql, named, binary=True)
        newest = await conn.execute(turn_sql, named, binary=True)
    return fetched_of(await growth.fetchall(), await newest.fetchall())


def fetched_of(lists: list[tuple[Any, ...]], turns: list[tuple[Any, ...]]) -> Fetched:
    return Fetched(_list_rows(lists), _turns(turns))


async def _turns_by_id(
    conn: Connection, tenant: str, thread: str, partitions: Sequence[int], ids: Iterable[str]
) -> dict[str, Said]:
    named = {"tenant": tenant, "thread": thread, "partitions": list(partitions), "ids": list(ids)}
    return _turns(await (await conn.execute(_TURNS_BY_ID, named, binary=True)).fetchall())


def _list_rows(rows: list[tuple[Any, ...]]) -> dict[str, list[Row]]:
    return {
        list_id: _growth(list_id, firsts, base, from_json(items, cache_strings="keys"))
        for list_id, firsts, base, items in rows
    }


def _growth(list_id: str, firsts: list[int], base: str | None, items: list[list[Marker]]) -> list[Row]:
    """A list without gaps is one row."""
    together = list(chain.from_iterable(items))
    if firsts[-1] + len(items[-1]) - firsts[0] == len(together):
        return [Row(list_id, firsts[0], base, firsts[0], together)]
    return [Row(list_id, first, base, firsts[0], own) for first, own in zip(firsts, items, strict=True)]


def _turns(rows: list[tuple[Any, ...]]) -> dict[str, Said]:
    return {turn_id: text if whole is None else whole for turn_id, text, whole in rows}


def raw_of(
    thread: str,
    ns: str,
    checkpoint_id: str,
    parent_id: str | None,
    checkpoint: str,
    metadata: str,
    values: list[list[bytes | None]] | None,
    writes: list[list[bytes]] | None,
    is_old: bool,
    sends: list[list[bytes]] | None,
) -> Raw:
    blobs = {
        (_text(channel), _text(version)): Typed(_text(encoding), data or b"")
        for channel, version, encoding, data in values or ()
    }
    return Raw(
        thread, ns, checkpoint_id, parent_id, checkpoint, metadata, blobs, _written(writes), is_old, _written(sends)
    )


def _written(rows: list[list[bytes]] | None) -> list[tuple[str, int, str, str, Typed]]:
    return [
        (task_id.decode(), int(idx), path.decode(), channel.decode(), Typed(encoding.decode(), data))
        for task_id, idx, path, channel, encoding, data in rows or ()
    ]


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _saved(raw: Raw, items: Mapping[str, ItemList], turns: Mapping[str, Said]) -> Saved:
    def of(rows: Iterable[tuple[str, int, str, str, Typed]]) -> tuple[Written, ...]:
        return tuple(Written(*row[:4], resolved(row[4], items, turns)) for row in rows)

    return Saved(
        raw.thread,
        raw.ns,
        raw.checkpoint_id,
        raw.parent_id,
        raw.checkpoint,
        raw.metadata,
        {key: resolved(value, items, turns) for key, value in raw.values.items()},
        raw.is_old,
        of(raw.writes),
        of(raw.sends),
    )
