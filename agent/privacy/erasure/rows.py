"""Finds and clears a person's rows in Postgres outside the read models (caches, dead letters), and finds the person's
threads.

Only projectors remove rows of read models. The other tables are cleared here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from psycopg import sql

from turnlog.agent.privacy.erasure.event_scan import Person
from turnlog.events.subjects import thread_token
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.registry import BY_NAME, PROJECTIONS

_MINE = "(t.tenant = %(tenant)s AND (t.thread_id = ANY(%(threads)s) OR t.user_id = %(user)s))"

_NO_ITEM_OF_OTHERS = """NOT EXISTS (SELECT FROM store_vectors o WHERE o.model = c.model AND o.embedding = c.embedding
  AND NOT (o.tenant = %(tenant)s AND o.thread_id = ANY(%(threads)s)))"""
# Deletes the vectors of texts that only this person has. A rebuild of other people's rows needs the other vectors.
_VECTORS = f"""
WITH mine AS (
  SELECT t.index_text AS text FROM memory_vectors t WHERE {_MINE}
  UNION SELECT t.content FROM memories t WHERE {_MINE}),
only_mine AS (
  SELECT text FROM mine EXCEPT (
    SELECT t.index_text FROM memory_vectors t JOIN mine ON mine.text = t.index_text WHERE NOT coalesce({_MINE}, false)
    UNION SELECT t.content FROM memories t JOIN mine ON mine.text = t.content WHERE NOT coalesce({_MINE}, false)))
DELETE FROM embedding_cache c USING only_mine o WHERE c.text_hash = sha256(convert_to(o.text, 'UTF8'))
AND {_NO_ITEM_OF_OTHERS}"""
# Deletes the vectors of texts whose rows no longer exist, because the conversation was archived or deleted, or the
# memory was forgotten.
_HASHED = f"""
DELETE FROM embedding_cache c WHERE c.text_hash = ANY(%(hashes)s::bytea[])
AND c.text_hash NOT IN (
  SELECT sha256(convert_to(t.index_text, 'UTF8')) FROM memory_vectors t WHERE NOT coalesce({_MINE}, false)
  UNION SELECT sha256(convert_to(t.content, 'UTF8')) FROM memories t WHERE NOT coalesce({_MINE}, false))
AND {_NO_ITEM_OF_OTHERS}"""
_ITEMS = "(t.tenant = %(tenant)s AND t.thread_id = ANY(%(threads)s))"
_ITEM_VECTORS = f"""
DELETE FROM embedding_cache c USING store_vectors t WHERE {_ITEMS} AND c.model = t.model AND c.embedding = t.embedding
AND {_NO_ITEM_OF_OTHERS}
AND NOT EXISTS (SELECT FROM memory_vectors o WHERE o.embedding_model = c.model AND o.embedding = c.embedding
  AND NOT (o.tenant = %(tenant)s AND o.thread_id = ANY(%(threads)s)))"""
_ANSWERS = "DELETE FROM model_cache WHERE tenant = %(tenant)s AND (user_id = %(user)s OR thread_id = ANY(%(all)s))"
# Encrypted answers do not show whose words they contain, and answers to other users of the tenant may contain the
# person's words.
_WRITES = "DELETE FROM repeatable_writes WHERE tenant = %(tenant)s AND (user_id = %(user)s OR answer IS NOT NULL)"
_USES = f"""
DELETE FROM api_key_uses u USING api_keys t WHERE u.tenant = t.tenant AND u.key_id = t.id AND {_MINE}"""
_LETTERS = """
UPDATE dead_letters SET error = 'erased'
WHERE tenant = %(tenant)s AND thread_token = ANY(%(tokens)s) AND error <> 'erased'"""
_PARKED = """
SELECT DISTINCT projection, thread_token FROM dead_letters
WHERE build = 'live' AND status = 'parked' AND tenant = %(tenant)s AND thread_token = ANY(%(tokens)s)
AND projection = ANY(%(projections)s)"""
_DESTROYED = "SELECT key_id::text FROM user_keys WHERE tenant = %s AND user_id = %s AND destroyed_at IS NOT NULL"
_FORGET_STATISTICS = """
SELECT pg_clear_attribute_stats(schemaname, tablename, attname, inherited) FROM pg_stats
WHERE schemaname = current_schema() AND tablename = %(table)s"""


@dataclass(frozen=True, slots=True)
class Cleared:
    """Counts of rows that were removed or emptied."""

    vectors: int
    answers: int
    letters: int


async def known_threads(conn: Connection, person: Person) -> set[str]:
    """Returns the person's threads in the read models, including namespaces of the store."""
    threads: set[str] = set()
    for table in _tables("user_id"):
        query = f"SELECT DISTINCT thread_id FROM {table.name} WHERE tenant = %s AND user_id = %s"
        threads.update(await _values(conn, query, (person.tenant, person.user)))
    spaces = await _values(conn, "SELECT DISTINCT thread_id FROM store_items WHERE tenant = %s", (person.tenant,))
    return threads | {thread for thread in spaces if person.owns(thread)}


async def threads_with_others(conn: Connection, person: Person, threads: Sequence[str]) -> set[str]:
    """Returns the threads in which another user has rows too."""
    shared: set[str] = set()
    for table in _tables("user_id"):
        query = (
            f"SELECT DISTINCT thread_id FROM {table.name} "
            "WHERE tenant = %s AND thread_id = ANY(%s) AND user_id NOT IN (%s, '')"
        )
        shared.update(await _values(conn, query, (person.tenant, list(threads), person.user)))
    return shared


async def row_counts(conn: Connection, person: Person, threads: Sequence[str]) -> dict[str, int]:
    """Returns, for each table that has any, the number of rows in the person's threads or with the person's id."""
    counts: dict[str, int] = {}
    for table in _tables():
        mine = _MINE if "user_id" in table.columns else _ITEMS
        values = {"tenant": person.tenant, "user": person.user, "threads": list(threads)}
        [counts[table.name]] = await _values(conn, f"SELECT count(*) FROM {table.name} t WHERE {mine}", values)
    return {table: count for table, count in counts.items() if count}


async def shared_rows(conn: Connection, person: Person, threads: Sequence[str]) -> dict[str, list[str]]:
    """Returns, for each table, the hashes of the person's rows in shared threads. An erasure keeps such rows without
    their words, so a row with the same hash before and after had no words."""
    hashes: dict[str, list[str]] = {}
    for table in _tables("user_id"):
        query = f"SELECT md5(t::text) FROM {table.name} t WHERE tenant = %s AND user_id = %s AND thread_id = ANY(%s)"
        hashes[table.name] = await _values(conn, query, (person.tenant, person.user, list(threads)))
    return hashes


async def clear_caches(
    conn: Connection, person: Person, own: Sequence[str], shared: Sequence[str], hashes: Sequence[bytes] = ()
) -> Cleared:
    """Clears the caches. Call it before the person's rows are removed, because they show which vectors are the
    person's. hashes: SHA-256 of the person's texts."""
    every = [*own, *shared]
    values = {
        "tenant": person.tenant,
        "user": person.user,
        "threads": list(own),
        "all": every,
        "tokens": [thread_token(thread) for thread in every],
        "hashes": list(hashes),
    }
    async with conn.transaction():
        vectors = (await conn.execute(_VECTORS.encode(), values)).rowcount
        vectors += (await conn.execute(_ITEM_VECTORS.encode(), values)).rowcount
        vectors += (await conn.execute(_HASHED.encode(), values)).rowcount
        answers = await clear_answers(conn, person, every)
        await conn.execute(_USES.encode(), values)
        letters = (await conn.execute(_LETTERS.encode(), values)).rowcount
    return Cleared(vectors, answers, letters)


async def clear_answers(conn: Connection, person: Person, threads: Sequence[str]) -> int:
    values = {"tenant": person.tenant, "user": person.user, "all": list(threads)}
    await conn.execute(_WRITES, values)
    return (await conn.execute(_ANSWERS.encode(), values)).rowcount


async def parked(conn: Connection, person: Person, threads: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (projection, thread) of the person's parked threads. Dead letters of reactors are left out, because
    reactors have no rows."""
    tokens = {thread_token(thread): thread for thread in threads}
    rows = await conn.execute(_PARKED, {"tenant": person.tenant, "tokens": list(tokens), "projections": list(BY_NAME)})
    return [(str(projection), tokens[str(token)]) for projection, token in await rows.fetchall()]


async def destroyed_keys(conn: Connection, person: Person) -> set[str]:
    return set(await _values(conn, _DESTROYED, (person.tenant, person.user)))


async def vacuum(conn: Connection, is_full: bool, table: str) -> None:
    """Frees dead rows of a table and renews its statistics. Statistics contain column values, and those of an empty
    table would otherwise stay. is_full: use VACUUM FULL.
    """
    await conn.execute(_FORGET_STATISTICS, {"table": table})
    await conn.execute(f"VACUUM ({'FULL, ' if is_full else ''}ANALYZE) {table}".encode())


async def vacuum_statistics(conn: Connection) -> None:
    """Rewrites pg_statistic, because its freed rows still contain column values. Without the right to do so, Postgres
    only warns."""
    await conn.execute("VACUUM FULL pg_statistic")


def vacuumed_tables() -> list[str]:
    others = {"embedding_cache", "model_cache", "dead_letters", "repeatable_writes"}
    return sorted({table.name for table in _tables()} | others)


def _tables(*columns: str) -> list[sa.Table]:
    """Returns the tables of read models that have the column thread_id and these columns."""
    tables = [table for projection in PROJECTIONS for table in projection.tables]
    return [table for table in tables if {"thread_id", *columns} <= set(table.columns.keys())]


async def _values(conn: Connection, query: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
    """Returns the first column of every row."""
    return [row[0] for row in await (await conn.execute(query.encode(), parameters)).fetchall()]


def said_tables() -> list[str]:
    """Returns the tables with people's own words. If a string is also in rows of other people, it is not searched for
    after an erasure.

    In a shared thread, only rows with the person's id count as the person's.
    """
    return [table.name for projection in PROJECTIONS for table in projection.said]


def told_tables() -> list[str]:
    """Returns the tables with texts that applications and models wrote about threads, such as "New conversation".

    In a shared thread, every row may contain words of the person. Tables that copy the texts of other tables are left
    out.
    """
    read_already = {table for projection in PROJECTIONS for table in (*projection.said, *projection.copied)}
    return [table.name for table in _tables() if table not in read_already]


def others_query(table: str, person: Person, threads: Sequence[str], shared: Mapping[str, int]) -> sql.Composed:
    """Returns a COPY query of all rows of a table that are not the person's.

    threads: threads whose rows all count as the person's. shared: thread → sequence from which on its rows count as the
    person's.
    """
    columns = next(candidate.columns for candidate in _tables() if candidate.name == table)
    of_user = sql.SQL(" OR t.user_id = {}").format(person.user) if "user_id" in columns else sql.SQL("")
    since = sql.SQL(" AND t.seq >= coalesce(({}::jsonb ->> t.thread_id)::bigint, 0)").format(json.dumps(shared))
    return sql.SQL(
        "COPY (SELECT t.* FROM {table} t WHERE NOT coalesce("
        "t.tenant = {tenant} AND (t.thread_id = ANY({threads}){since}{mine}), false)) TO STDOUT (FORMAT BINARY)"
    ).format(
        table=sql.Identifier(table),
        tenant=person.tenant,
        threads=list(threads),
        since=since if "seq" in columns else sql.SQL(""),
        mine=of_user,
    )


async def archive_paths(conn: Connection, person: Person, threads: Sequence[str]) -> list[str]:
    query = "SELECT path FROM thread_archives WHERE tenant = %s AND thread_id = ANY(%s) ORDER BY path"
    return await _values(conn, query, (person.tenant, list(threads)))


async def left(conn: Connection, person: Person, marks: Mapping[str, int]) -> dict[str, int]:
    """Returns, for each table that has any, the number of rows that still exist although their thread was erased after
    them. marks: thread → sequence of its `erased` event."""
    counts: dict[str, int] = {}
    for table in _tables("seq"):
        query = (
            f"SELECT count(*) FROM {table.name} t JOIN unnest(%s::text[], %s::bigint[]) m (thread, mark) "
            "ON t.tenant = %s AND t.thread_id = m.thread AND t.seq <= m.mark"
        )
        [counts[table.name]] = await _values(conn, query, (list(marks), list(marks.values()), person.tenant))
    return {table: count for table, count in counts.items() if count}
