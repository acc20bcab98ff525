"""Serves analysts: runs SQL on documented views of a tenant, and writes the log as Parquet files."""

import csv
import io
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import psycopg

from turnlog.agent.extras import parquet
from turnlog.agent.operations.tailing import Line, tail
from turnlog.agent.private_files import open_private
from turnlog.agent.runtime import Runtime
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import MEMORIES, check_tenant
from turnlog.projectors.engine.row_security import ROLE, SETTING, make_usable
from turnlog.projectors.engine.writer import Connection

# These definitions are put before a query, as a WITH clause. They are not database views, because a rebuild replaces
# the tables that they read.
VIEWS = {
    "turns": (
        "SELECT seq, time, thread_id, user_id, role, name, origin, agent, model, tokens_in, "
        "tokens_out, latency_ms, CASE jsonb_typeof(content) WHEN 'string' THEN content #>> '{}' ELSE content::text END "
        "AS text FROM turnlog.messages"
    ),
    "memories": (
        "SELECT id, user_id, kind, category, status, content, importance, confidence, access_count, "
        "origin, rule, valid_from, valid_to, created_at, confirmed_at FROM turnlog.memories "
        f"WHERE starts_with(thread_id, '{MEMORIES}')"  # without trial derivations
    ),
    "usage": (
        "SELECT day, user_id, agent, purpose, provider, model, calls, tokens_in, tokens_out, "
        "cost_micro_usd / 1e6 AS cost_usd, errors, latency_ms_sum, latency_ms_max FROM turnlog.usage"
    ),
    "runs": (
        "SELECT run_id, thread_id, user_id, agent, status, code, started_at, ended_at, "
        "tokens_in, tokens_out, cost_micro_usd / 1e6 AS cost_usd FROM turnlog.agent_runs"
    ),
}
STATEMENT_S, MOST_ROWS = 60, 1_000
_WORD = re.compile(r"\w+")
_WITH = re.compile(r"\s*with\s+(recursive\s+)?", re.IGNORECASE)
_NAMED = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'turnlog'::regnamespace AND relrowsecurity AND relname = ANY(%s)"
)
FIELDS = ("tenant", "id", "time", "type", "thread", "user")
BATCH = 10_000


class InvalidSql(TurnlogError):
    """Postgres refuses a query, or the query is not a single statement that only reads."""

    code = "invalid-sql"


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a query. rows: at most the requested number. more: there are more rows. hides: a table that the
    query may read has rows of other tenants, which row security hides."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool
    hides: bool

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


@dataclass(frozen=True, slots=True)
class LogExported:
    """The result of an export. days: number of files that were written, one per day. events: number of events in
    them."""

    folder: str
    days: int
    events: int


async def query(runtime: Runtime, tenant: str, sql: str, limit: int = MOST_ROWS) -> Answered:
    """Returns the rows of one statement that reads the views (VIEWS) or the tables of a tenant.

    The statement runs in a read-only transaction, for STATEMENT_S at most, with a role that sees only this tenant. SQL
    can leave the role again, so this protects against mistakes, not against somebody who has the password of the
    database.

    Raises InvalidSql, NoTenantRole, InvalidToken.
    """
    check_tenant(tenant)
    async with runtime.reading() as conn:
        await make_usable(conn)
        async with conn.transaction(force_rollback=True):
            await conn.execute(f"SET LOCAL statement_timeout = '{STATEMENT_S}s'".encode())
            await conn.execute("SELECT set_config(%s, %s, true)", (SETTING, tenant))
            hides = await _hides(conn, tenant, sql)
            await conn.execute("SET TRANSACTION READ ONLY")
            await conn.execute(f"SET LOCAL ROLE {ROLE}".encode())
            try:  # prepared, because Postgres then refuses several statements
                cursor = await conn.execute(with_views(sql).encode(), prepare=True)
                rows = await cursor.fetchmany(limit + 1) if cursor.description else None
            except psycopg.Error as error:
                raise InvalidSql(str(error).strip()) from None
    if rows is None:
        raise InvalidSql("the statement returns no rows")
    return Answered([column.name for column in cursor.description or ()], rows[:limit], len(rows) > limit, hides)


async def _hides(conn: Connection, tenant: str, sql: str) -> bool:
    """Returns whether other tenants have rows in a table that the query may read: its name, or the name of a view on
    it, is a word of the query."""
    words = set(_WORD.findall(sql.lower()))
    words.update(*(_WORD.findall(definition) for name, definition in VIEWS.items() if name in words))
    for (table,) in await (await conn.execute(_NAMED, (list(words),))).fetchall():
        # Not `<>`: no index supports it, so it would read all rows if no other tenant has any.
        others = " OR ".join(f"EXISTS (SELECT FROM turnlog.{table} WHERE tenant {sign} %(tenant)s)" for sign in "<>")
        if await (await conn.execute(f"SELECT {others}".encode(), {"tenant": tenant})).fetchone() == (True,):
            return True
    return False


def with_views(sql: str) -> str:
    """Returns the query with the definitions of the views before its own definitions."""
    views = ", ".join(f"{name} AS ({definition})" for name, definition in VIEWS.items())
    own = _WITH.match(sql)
    if own is None:
        return f"WITH {views} {sql}"
    return f"WITH {own[1] or ''}{views}, {sql[own.end() :]}"


async def views(runtime: Runtime, tenant: str) -> dict[str, list[str]]:
    """Returns the columns of each view. Raises the errors of `query`."""
    return {name: (await query(runtime, tenant, f"SELECT * FROM {name} LIMIT 0")).columns for name in VIEWS}


async def export_log(
    runtime: Runtime, tenant: str, folder: Path, since: date | None = None, words: bool = False
) -> LogExported:
    """Writes a tenant's events to files such as folder/day=2026-11-27/events.parquet, one for each day (UTC) on which
    events were stored.

    Files that exist are replaced. since: the first day. words: decrypt the fields that are sealed with users' keys; an
    erasure, redaction or retention does not change such files. Raises MissingExtra, InvalidToken, LogUnavailable,
    OSError.
    """
    _, pq = parquet()
    schema, writer, path, counted, rows = _schema(), None, None, [0, 0], list[dict[str, Any]]()

    def finish() -> None:
        if writer is not None and path is not None:
            _write(writer, rows)
            writer.close()
            path.replace(path.with_suffix(".parquet"))

    async for line in tail(runtime, 1, follow=False, tenant=tenant, readers=None if words else frozenset()):
        day = line.stored.stored_at.date()
        if since is not None and day < since:
            continue
        target = folder / f"day={day}" / "events.part"
        if target != path:
            finish()
            target.parent.mkdir(parents=True, exist_ok=True)
            path, rows = target, []
            os.close(open_private(path, os.O_WRONLY | os.O_TRUNC))
            writer = pq.ParquetWriter(path, schema, compression="zstd")
            counted[0] += 1
        rows.append(_row(line))
        counted[1] += 1
        if len(rows) == BATCH:
            _write(writer, rows)
            rows = []
    finish()
    return LogExported(str(folder), *counted)


def _schema() -> Any:
    pa, _ = parquet()
    moment, text = pa.timestamp("us", tz="UTC"), pa.string()
    return pa.schema({"seq": pa.int64(), "stored_at": moment, **dict.fromkeys(FIELDS, text), "data": text})


def _row(line: Line) -> dict[str, Any]:
    """Returns the event as a row of the table. The column `data` is JSON."""
    event = line.body or {}
    facts = {name: str(event[name]) if event.get(name) is not None else None for name in FIELDS}
    data = json.dumps(event.get("data"), ensure_ascii=False)
    return {"seq": line.stored.seq, "stored_at": line.stored.stored_at, **facts, "data": data}


def _write(writer: Any, rows: Sequence[dict[str, Any]]) -> None:
    pa, _ = parquet()
    if rows:
        writer.write_table(pa.Table.from_pylist(list(rows), schema=_schema()))
