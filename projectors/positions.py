"""Positions: how far each projection has read, per partition. Moved only together with the rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.events.errors import TurnlogError
from turnlog.projectors.projection import Projection
from turnlog.projectors.writer import Connection

LIVE = "live"
_MINE = "build = %s AND partition = %s AND projection = ANY(%s)"


class PositionMoved(Exception):
    """Somebody else moved the position: the batch is thrown away and reading starts anew from there."""


class RebuildNeeded(TurnlogError):
    """The projection's code is of another version than its rows; `turnlog rebuild NAME` makes them anew."""

    code = "rebuild-needed"


@dataclass(frozen=True, slots=True)
class Positions:
    """Where some projections of one build and partition stand. at: projection → sequence it has applied."""

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
    """Why some of the projections cannot go on: their rows are of another version than their code."""
    versions = {p.name: p.version for p in projections}
    rows = await conn.execute(
        "SELECT DISTINCT projection, code_version FROM projection_positions WHERE build = %s AND projection = ANY(%s)",
        (build, sorted(versions)),
    )
    return [name for name, version in await rows.fetchall() if version != versions[name]]


async def load(conn: Connection, projections: Sequence[Projection], build: str, partition: int) -> Positions:
    """The positions, made 0 where there were none. Raises RebuildNeeded."""
    await conn.cursor().executemany(
        "INSERT INTO projection_positions (projection, build, partition, position, code_version) "
        "VALUES (%s, %s, %s, 0, %s) ON CONFLICT DO NOTHING",
        [(p.name, build, partition, p.version) for p in projections],
    )
    versions = {p.name: p.version for p in projections}
    rows = await conn.execute(
        f"SELECT projection, position, code_version FROM projection_positions WHERE {_MINE}",
        (build, partition, sorted(versions)),
    )
    found = await rows.fetchall()
    for name, _, code_version in found:
        if code_version != versions[name]:
            raise RebuildNeeded(
                f"projection {name} has rows of version {code_version} and code of version {versions[name]}: "
                f"run `turnlog rebuild {name}`"
            )
    return Positions(build, partition, {name: position for name, position, _ in found})


async def lock(conn: Connection, positions: Positions) -> None:
    """Takes the row locks first of all, in name order, so that no two transactions wait for each other.

    Raises PositionMoved when a position is not what the caller read (compare and swap).
    """
    rows = await conn.execute(
        f"SELECT projection, position FROM projection_positions WHERE {_MINE} ORDER BY projection FOR UPDATE",
        positions.key,
    )
    _compare(dict(await rows.fetchall()), positions)


async def move(conn: Connection, positions: Positions, through: int) -> None:
    await conn.execute(
        f"UPDATE projection_positions SET position = greatest(position, %s), updated_at = now() WHERE {_MINE}",
        (through, *positions.key),
    )


async def assert_unmoved(conn: Connection, positions: Positions) -> None:
    """Raises PositionMoved when a rebuild or a retry moved a position while this reader was idle."""
    rows = await conn.execute(
        f"SELECT projection, position FROM projection_positions WHERE {_MINE}",
        positions.key,
    )
    _compare(dict(await rows.fetchall()), positions)


def _compare(found: dict[str, int], positions: Positions) -> None:
    if found != positions.at:
        raise PositionMoved(f"positions of partition {positions.partition} moved from {positions.at} to {found}")
