"""Performs changes on a Postgres connection. The caller owns the transaction and the search path."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection, sql
from psycopg.rows import TupleRow

from turnlog.projectors.engine.changes import Change, DeleteThread, Insert, Statement, Upsert

if TYPE_CHECKING:
    import sqlalchemy as sa


def array_literal(values: Iterable[object]) -> str:
    """Returns an array in Postgres' text form; for a long list this is ten times faster than psycopg."""
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(value: object) -> str:
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


Connection = AsyncConnection[TupleRow]

COPY_FROM = 100
# psycopg does not cache statements with more values; up to this many values VALUES costs a tenth of what arrays cost.
VALUES_UP_TO = 50


async def perform(conn: Connection, changes: Iterable[Change]) -> None:
    """Performs the changes in order. Many new rows are sent by COPY, except in a pipeline, where COPY is impossible."""
    for change in changes:
        match change:
            case Insert():
                await _insert(conn, change)
            case Upsert():
                await _upsert(conn, change)
            case DeleteThread():
                await _delete_thread(conn, change)
            case Statement(text, params):
                await conn.cursor().executemany(text.encode(), params)


async def _insert(conn: Connection, change: Insert) -> None:
    if len(change.rows) < COPY_FROM or conn.pgconn.pipeline_status:
        await _upsert(conn, Upsert(change.table, change.columns, change.rows), is_insert=True)
        return
    copy_sql = _copy_sql(change.table, change.columns)
    async with conn.cursor() as cursor, cursor.copy(copy_sql) as copy:
        for row in change.rows:
            await copy.write_row(row)


async def _upsert(conn: Connection, change: Upsert, is_insert: bool = False) -> None:
    """Inserts or updates rows by primary key. is_insert: an existing row is an error."""
    if not change.rows:
        return
    keys = [column.name for column in change.table.primary_key]
    rows = sorted(change.rows, key=itemgetter(*map(change.columns.index, keys)))
    conflict = b"" if is_insert else _conflict_sql(change.table, change.update, change.where)
    if len(rows) * len(change.columns) <= VALUES_UP_TO:
        text = _values_sql(change.table, change.columns, len(rows))
        await conn.execute(text + conflict, list(chain.from_iterable(rows)))
    else:
        arrays = [array_literal(values) for values in zip(*rows, strict=True)]
        await conn.execute(_insert_sql(change.table, change.columns) + conflict, arrays)


async def _delete_thread(conn: Connection, change: DeleteThread) -> None:
    for table in change.tables:
        text = sql.SQL("DELETE FROM {} WHERE tenant = %s AND thread_id = %s").format(sql.Identifier(table.name))
        await conn.execute(text, (change.tenant, change.thread))


@cache
def _copy_sql(table: "sa.Table", columns: tuple[str, ...]) -> bytes:
    """Returns the COPY statement as bytes, because psycopg renders a Composed again at every call."""
    return sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), _names(columns)).as_bytes(None)


@cache
def _insert_sql(table: "sa.Table", columns: tuple[str, ...]) -> bytes:
    text = sql.SQL("INSERT INTO {} AS t ({}) SELECT {} FROM unnest({}) AS u ({})").format(
        sql.Identifier(table.name),
        _names(columns),
        sql.SQL(", ").join(_selected(table.c[name]) for name in columns),
        sql.SQL(", ").join(sql.SQL("%s::{}[]").format(sql.SQL(_sent_type(table.c[name]))) for name in columns),
        _names(columns),
    )
    return text.as_bytes(None)


@cache
def _values_sql(table: "sa.Table", columns: tuple[str, ...], rows: int) -> bytes:
    casts = (sql.SQL("%s::{}").format(sql.SQL(_type(table.c[name]))) for name in columns)
    row = sql.SQL("({})").format(sql.SQL(", ").join(casts))
    text = sql.SQL("INSERT INTO {} AS t ({}) VALUES {}").format(
        sql.Identifier(table.name), _names(columns), sql.SQL(", ").join([row] * rows)
    )
    return text.as_bytes(None)


@cache
def _conflict_sql(table: "sa.Table", update: tuple[tuple[str, str], ...], where: str) -> bytes:
    action: sql.Composable = sql.SQL("NOTHING")
    if update:
        sets = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.SQL(to)) for name, to in update]
        action = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(sets))
        if where:
            action += sql.SQL(" WHERE {}").format(sql.SQL(where))
    keys = _names([column.name for column in table.primary_key])
    return sql.SQL(" ON CONFLICT ({}) DO {}").format(keys, action).as_bytes(None)


def _sent_type(column: "sa.Column[Any]") -> str:
    """Returns the SQL type in which a column's values are sent. Array values are sent as text and cast on arrival,
    because unnest flattens nested arrays."""
    name = _type(column)
    return "text" if name.endswith("[]") else name


def _type(column: "sa.Column[Any]") -> str:
    """Returns the SQL name of a column's type. SQLAlchemy is imported here, because loading it takes 0.15 s and
    look-ups import this module."""
    from sqlalchemy.dialects import postgresql

    return column.type.compile(postgresql.dialect())  # type: ignore[no-untyped-call]


def _selected(column: "sa.Column[Any]") -> sql.Composable:
    cast = sql.SQL("::{}").format(sql.SQL(_type(column)))
    return sql.SQL("u.{}{}").format(sql.Identifier(column.name), cast)


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in columns)
