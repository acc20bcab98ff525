"""The changes a projector returns, as data. Only writer.py performs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlalchemy as sa

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """New rows, by COPY. columns name the row's values; JSON values are JSON text."""

    table: "sa.Table"
    columns: tuple[str, ...]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows by primary key. update: column → SQL over `t` (the stored row) and `excluded`; () keeps the stored row.

    where: SQL over both, for the stored rows to update; "" updates all.

    There must be one row per key: Postgres raises for two in one statement. The writer sorts them by key.
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
    """Any other SQL, with named parameters; sets of parameters run pipelined."""

    sql: str
    params: Sequence[dict[str, Any]]


Change = Insert | Upsert | DeleteThread | Statement
