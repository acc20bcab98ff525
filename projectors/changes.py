"""What a projector decides, as data. writer.py is the one place that performs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """New rows, by COPY. columns name the row's values; JSON values are JSON text."""

    table: sa.Table
    columns: tuple[str, ...]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows by primary key. update: column → SQL over `t` (the row there) and `excluded`; () keeps what is there.

    Rows must be folded to one per key: two in one statement raise in Postgres. The writer sorts them by key.
    """

    table: sa.Table
    columns: tuple[str, ...]
    rows: Sequence[Row]
    update: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteThread:
    """Every row of one thread goes from the tables."""

    tables: tuple[sa.Table, ...]
    tenant: str
    thread: str


@dataclass(frozen=True, slots=True)
class Statement:
    """Any other SQL, with named parameters; sets of parameters run pipelined."""

    sql: str
    params: Sequence[dict[str, Any]]


Change = Insert | Upsert | DeleteThread | Statement
