"""The changes a projector returns, as data. Only writer.py performs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlalchemy as sa

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """Inserts new rows, by COPY if there are many. columns: the names of a row's values, in order; JSON values are JSON
    text."""

    table: "sa.Table"
    columns: tuple[str, ...]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Upsert:
    """Inserts rows, or updates the stored rows with the same primary key.

    update: for each column, SQL that may use `t` (the stored row) and `excluded`; () keeps the stored row.
    where: an SQL condition on both that selects the stored rows to update; "" updates all.

    With `update` there must be one row per key, because Postgres raises an error for two in one statement; without it,
    later rows with the same key are ignored. The writer sorts the rows by key.
    """

    table: "sa.Table"
    columns: tuple[str, ...]
    rows: Sequence[Row]
    update: tuple[tuple[str, str], ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class DeleteThread:
    """Deletes every row of one thread from the tables."""

    tables: "tuple[sa.Table, ...]"
    tenant: str
    thread: str


@dataclass(frozen=True, slots=True)
class Statement:
    """Executes other SQL with named parameters, once for each set of parameters, pipelined."""

    sql: str
    params: Sequence[dict[str, Any]]


Change = Insert | Upsert | DeleteThread | Statement
