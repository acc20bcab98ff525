"""Reads checkpoints from the tables: rows, then the lists they refer to, then the turns that the lists refer to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

from pydantic_core import from_json

from turnlog.consumers.langgraph.checkpoint.caught_up import PROJECTIONS
from turnlog.consumers.langgraph.checkpoint.checkpoints import Saved, Written
from turnlog.consumers.langgraph.checkpoint.growth import Row, Source, read, source_of
from turnlog.consumers.langgraph.checkpoint.items import Item, Marker, stored_item
from turnlog.consumers.langgraph.checkpoint.messages import Said
from turnlog.consumers.langgraph.checkpoint.queries import (
    CHECKPOINTS,
    ONE_PLAN,
    SPARE_TURNS,
    TURNS_BY_ID,
    first_look_statements,
    lists_and_turns,
)
from turnlog.consumers.langgraph.checkpoint.values import Typed, Value, lists_in, markers_in, resolved
from turnlog.events.subjects import thread_token
from turnlog.projectors.engine.duplicates import thread_hash
from turnlog.projectors.engine.writer import Connection

Connect = Callable[[], AbstractAsyncContextManager[Connection]]


class Fetched(NamedTuple):
    """Fetched rows by list id, and turns by event id, at least the newest ones."""

    rows: dict[str, list[Row]]
    turns: dict[str, Said]


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """Checkpoints of one thread. items, sources: by list id, for the lists they refer to."""

    saved: list[Saved] = field(default_factory=list)
    items: Mapping[str, list[Item]] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """A checkpoint with its lists and turns, from one round trip.

    reached: partition → the sequence up to which the tables have applied it. parked: sequence and error of the thread's
    first parked event. namespaces: namespaces of the thread with checkpoints; None if not requested. saved: the
    checkpoint with its values as stored.
    """

    reached: Mapping[int, int]
    parked: str | None
    namespaces: frozenset[str] | None
    saved: Saved | None
    fetched: Fetched


async def first_look(conn: Connection, which: str, asks: bool, named: Mapping[str, Any]) -> Look:
    """Reads a checkpoint with its lists and turns. which: NEWEST or ONE. named: tenant, thread, ns, and id for ONE;
    asks: whether to read the namespaces."""
    asked = {**named, "asks": asks, "projections": list(PROJECTIONS), "token": thread_token(named["thread"])}
    look_sql, list_sql, turn_sql = first_look_statements(which)
    async with conn.pipeline():
        await conn.execute(ONE_PLAN)
        looked = await conn.execute(look_sql, asked, binary=True, prepare=True)
        lists = await conn.execute(list_sql, asked, binary=True, prepare=True)
        turns = await conn.execute(turn_sql, asked, binary=True, prepare=True)
    row = await looked.fetchone()
    assert row is not None
    reached, parked, namespaces, *columns = row
    return Look(
        dict(reached or ()),
        parked,
        frozenset(namespaces or ()) if asks else None,
        _stored(*columns) if columns[0] is not None else None,
        _fetched(await lists.fetchall(), await turns.fetchall()),
    )


async def stored_checkpoints(conn: Connection, tenant: str, where: str, named: Mapping[str, Any]) -> list[Saved]:
    """Returns checkpoints with their values as stored. where: SQL conditions on `c`, the checkpoints, beginning with
    AND.
    """
    rows = await conn.execute((CHECKPOINTS + where).encode(), {"tenant": tenant, **named}, binary=True)
    return [_stored(*row) for row in await rows.fetchall()]


async def complete(
    connect: Connect, tenant: str, partitions: Sequence[int], stored: Sequence[Saved], fetched: Fetched | None = None
) -> FoundCheckpoint:
    """Returns checkpoints of one thread with their lists and turns. partitions: where its events may be.

    fetched: what was already read with the checkpoints. If it lacks a list, all lists are read; if it lacks turns, only
    those are read.
    """
    if not stored:
        return FoundCheckpoint()
    thread, typed = stored[0].thread, [value for saved in stored for value in _typed(saved)]
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
    return FoundCheckpoint([_resolved(saved, items, turns) for saved in stored], items, sources)


def _items(markers: Iterable[Marker], turns: Mapping[str, Said]) -> list[Item]:
    """Returns the items, without those whose turns were later deleted or erased."""
    return [item for marker in markers if (item := stored_item(marker, turns)) is not None]


async def _lists_and_turns(conn: Connection, tenant: str, thread: str, lists: list[str], count: int) -> Fetched:
    """Reads lists and turns in one round trip. count: how many turns the lists refer to; a few more are read."""
    named = {"tenant": tenant, "thread": thread, "lists": lists, "count": count + SPARE_TURNS}
    list_sql, turn_sql = lists_and_turns("SELECT unnest(%(lists)s::text[])", "%(count)s")
    async with conn.pipeline():
        await conn.execute(ONE_PLAN)
        growth = await conn.execute(list_sql, named, binary=True)
        newest = await conn.execute(turn_sql, named, binary=True)
    return _fetched(await growth.fetchall(), await newest.fetchall())


def _fetched(lists: list[tuple[Any, ...]], turns: list[tuple[Any, ...]]) -> Fetched:
    return Fetched(
        {
            list_id: _growth(list_id, firsts, base, from_json(items, cache_strings="keys"))
            for list_id, firsts, base, items in lists
        },
        _turns(turns),
    )


async def _turns_by_id(
    conn: Connection, tenant: str, thread: str, partitions: Sequence[int], ids: Iterable[str]
) -> dict[str, Said]:
    of_thread = thread_hash(tenant, thread_token(thread))
    named = {"tenant": tenant, "thread": thread, "hash": of_thread, "partitions": list(partitions), "ids": list(ids)}
    return _turns(await (await conn.execute(TURNS_BY_ID, named, binary=True)).fetchall())


def _growth(list_id: str, firsts: list[int], base: str | None, items: list[list[Marker]]) -> list[Row]:
    """Returns the rows of a list; a single row if its items have no gaps."""
    together = list(chain.from_iterable(items))
    if firsts[-1] + len(items[-1]) - firsts[0] == len(together):
        return [Row(list_id, firsts[0], base, firsts[0], together)]
    return [Row(list_id, first, base, firsts[0], own) for first, own in zip(firsts, items, strict=True)]


def _turns(rows: list[tuple[Any, ...]]) -> dict[str, Said]:
    return {turn_id: text if whole is None else whole for turn_id, text, whole in rows}


def _stored(
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
) -> Saved:
    blobs = {
        (_text(channel), _text(version)): Typed(_text(encoding), data or b"")
        for channel, version, encoding, data in values or ()
    }
    parts = (thread, ns, checkpoint_id, parent_id, checkpoint, metadata, blobs)
    return Saved(*parts, is_old=is_old, writes=_written(writes), sends=_written(sends))


def _written(rows: list[list[bytes]] | None) -> list[Written]:
    return [
        Written(task_id.decode(), int(idx), path.decode(), channel.decode(), Typed(encoding.decode(), data))
        for task_id, idx, path, channel, encoding, data in rows or ()
    ]


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _typed(saved: Saved) -> list[Typed]:
    values = [*saved.values.values(), *(write.value for write in (*saved.writes, *saved.sends))]
    return [value for value in values if isinstance(value, Typed)]


def _resolved(saved: Saved, items: Mapping[str, list[Item]], turns: Mapping[str, Said]) -> Saved:
    """Returns the checkpoint with the lists and turns that its stored values refer to."""

    def of(value: Value) -> Value:
        return resolved(value, items, turns) if isinstance(value, Typed) else value

    def written(writes: Iterable[Written]) -> list[Written]:
        return [write._replace(value=of(write.value)) for write in writes]

    return replace(
        saved,
        values={key: of(value) for key, value in saved.values.items()},
        writes=written(saved.writes),
        sends=written(saved.sends),
    )
