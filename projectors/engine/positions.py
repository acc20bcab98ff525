"""Positions record how far each projection has read each partition. They move only together with the rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import AsyncCursor
from psycopg.rows import TupleRow

from turnlog.events.errors import TurnlogError
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection

LIVE = "live"
_MINE = "build = %s AND partition = %s AND projection = ANY(%s)"
_TAKE = f"""
WITH found AS (
  SELECT projection, build, partition, position FROM projection_positions WHERE {_MINE}
  ORDER BY projection FOR UPDATE)
UPDATE projection_positions p SET updated_at = now(), position = greatest(p.position, %s),
  stored_at = CASE WHEN p.position < %s THEN %s ELSE p.stored_at END FROM found
WHERE p.projection = found.projection AND p.build = found.build AND p.partition = found.partition
RETURNING p.projection, found.position"""


class PositionMoved(Exception):
    """Another process moved the position; the batch is discarded, and reading starts again at the new position."""


class RebuildNeeded(TurnlogError):
    """The projection's code and its rows have different versions; `turnlog rebuild NAME` rebuilds the rows."""

    code = "rebuild-needed"


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of the projections of one build in one partition. at: the last applied sequence of each
    projection."""

    build: str
    partition: int
    at: dict[str, int]

    @property
    def lowest(self) -> int:
        return min(self.at.values())

    @property
    def key(self) -> tuple[str, int, list[str]]:
        return self.build, self.partition, sorted(self.at)


async def outdated(conn: Connection, projections: Sequence[Projection], build: str) -> list[str]:
    """Returns the names of the projections whose rows have a different version than their code."""
    versions = {p.name: p.version for p in projections}
    rows = await conn.execute(
        "SELECT DISTINCT projection, code_version FROM projection_positions WHERE build = %s AND projection = ANY(%s) "
        "ORDER BY projection",
        (build, sorted(versions)),
    )
    return [name for name, version in await rows.fetchall() if version != versions[name]]


async def create(conn: Connection, projections: Sequence[Projection], build: str, partitions: Iterable[int]) -> None:
    """Adds missing position rows with position 0."""
    await conn.cursor().executemany(
        "INSERT INTO projection_positions (projection, build, partition, position, code_version) "
        "VALUES (%s, %s, %s, 0, %s) ON CONFLICT DO NOTHING",
        [(p.name, build, partition, p.version) for p in projections for partition in partitions],
    )


async def load(conn: Connection, projections: Sequence[Projection], build: str, partition: int) -> Positions:
    """Loads the positions; creates missing ones with 0. Raises RebuildNeeded."""
    await create(conn, projections, build, [partition])
    versions = {p.name: p.version for p in projections}
    rows = await conn.execute(
        f"SELECT projection, position, code_version FROM projection_positions WHERE {_MINE}",
        (build, partition, sorted(versions)),
    )
    stored = await rows.fetchall()
    for name, _, code_version in stored:
        if code_version != versions[name]:
            raise RebuildNeeded(
                f"projection {name} has rows of version {code_version} and code of version {versions[name]}: "
                f"run `turnlog rebuild {name}`"
            )
    return Positions(build, partition, {name: position for name, position, _ in stored})


async def move(
    conn: Connection, positions: Positions, through: int, stored_at: datetime | None = None
) -> AsyncCursor[TupleRow]:
    """Locks the position rows and moves them to `through`. It locks in name order, so that transactions cannot
    deadlock.

    stored_at: when the log stored the event at `through`; used later to recognise the log that was read.
    This is the first statement of a transaction; `assert_were` checks its result before the commit.
    """
    return await conn.execute(_TAKE, (*positions.key, through, through, stored_at))


async def assert_were(moved: AsyncCursor[TupleRow], positions: Positions) -> None:
    """Raises PositionMoved if a position differed from the one that the caller had read (compare and swap)."""
    _compare(dict(await moved.fetchall()), positions)


async def assert_unmoved(conn: Connection, positions: Positions) -> None:
    """Raises PositionMoved if a rebuild or a retry has moved a position since it was loaded."""
    rows = await conn.execute(
        f"SELECT projection, position FROM projection_positions WHERE {_MINE}",
        positions.key,
    )
    _compare(dict(await rows.fetchall()), positions)


def _compare(current: dict[str, int], positions: Positions) -> None:
    if current != positions.at:
        raise PositionMoved(f"positions of partition {positions.partition} moved from {positions.at} to {current}")
