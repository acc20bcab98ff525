"""Verifies a projection: rebuilds it into shadow tables up to the live position and compares row by row."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql
from sqlalchemy import Table

from turnlog.events.log import Log
from turnlog.events.progress import OnProgress, no_progress
from turnlog.projectors.engine.database import SCHEMA, connect
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.rebuild import shadow
from turnlog.projectors.rebuild.build import Build, building

MAX_DIFFERENCES = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that exists on one side only, or that differs. key: the row's primary key."""

    table: str
    key: str
    kind: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of comparing a projection with a rebuild. rows: the number of live rows. checksum: over every column
    of every row, independent of their order."""

    projection: str
    events: int
    rows: int
    parked: int
    checksum: str
    differences: tuple[Difference, ...]

    @property
    def clean(self) -> bool:
        return not self.differences


async def verify(
    log: Log, database_url: str, projection: Projection, on_progress: OnProgress = no_progress
) -> Verified:
    """Compares a snapshot of a projection with a rebuild, while live service continues. Raises RebuildStopped,
    RebuildRunning, and errors of the log and of its keys."""
    return (await verify_several(log, database_url, [projection], on_progress))[0]


async def verify_several(
    log: Log,
    database_url: str,
    projections: Sequence[Projection],
    on_progress: OnProgress = no_progress,
) -> list[Verified]:
    """Verifies several projections, in one pass over the log for each set of projections at the same position.

    Raises the same errors as `verify`.
    """
    results: list[Verified] = []
    async with await connect(database_url) as live, live.transaction():
        await live.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for at, together in (await _by_position(live, projections)).items():
            async with building(database_url, together, "verify", on_progress) as build:
                for partition, through in at:
                    await build.fill(log, partition, through)
                results += [await _compare(live, projection, build) for projection in together]
    order = [projection.name for projection in projections]
    return sorted(results, key=lambda result: order.index(result.projection))


async def _by_position(
    live: Connection, projections: Sequence[Projection]
) -> dict[tuple[tuple[int, int], ...], list[Projection]]:
    """Returns the projections grouped by their positions, ((partition, position), …)."""
    groups: dict[tuple[tuple[int, int], ...], list[Projection]] = {}
    for projection in projections:
        rows = await live.execute(
            "SELECT partition, position FROM projection_positions WHERE projection = %s AND build = 'live' "
            "ORDER BY partition",
            (projection.name,),
        )
        groups.setdefault(tuple((p, at) for p, at in await rows.fetchall()), []).append(projection)
    return groups


async def _compare(live: Connection, projection: Projection, build: Build) -> Verified:
    counted, sums = 0, []
    differences: list[Difference] = []
    for table in projection.tables:
        count, checksum = await _checksum(live, SCHEMA, table)
        if (count, checksum) != await _checksum(build.conn, shadow.schema_of(build.name), table):
            here = await _row_hashes(live, SCHEMA, table)
            there = await _row_hashes(build.conn, shadow.schema_of(build.name), table)
            table_differences: list[Difference] = []
            for key in sorted(here.keys() | there.keys()):
                if here.get(key) != there.get(key):
                    kind = "differs" if key in here and key in there else "only live" if key in here else "only rebuilt"
                    table_differences.append(Difference(table.name, key, kind))
            differences += table_differences[:MAX_DIFFERENCES]
        counted += count
        sums.append(checksum)
    parked = await _parked(live, projection, "live")
    for seq in sorted(parked ^ await _parked(build.conn, projection, build.name))[:MAX_DIFFERENCES]:
        differences.append(Difference("dead_letters", str(seq), "parked on one side only"))
    return Verified(
        projection.name,
        build.events,
        counted,
        len(parked),
        "-".join(sums),
        tuple(differences[:MAX_DIFFERENCES]),
    )


async def _checksum(conn: Connection, schema: str, table: Table) -> tuple[int, str]:
    text = sql.SQL(
        "SELECT count(*), coalesce(sum(('x' || left(md5(t::text), 16))::bit(64)::bigint::numeric), 0)::text FROM {} t"
    ).format(sql.Identifier(schema, table.name))
    row = await (await conn.execute(text)).fetchone()
    assert row is not None
    return int(row[0]), str(row[1])


async def _row_hashes(conn: Connection, schema: str, table: Table) -> dict[str, str]:
    key = sql.SQL(", ").join(sql.Identifier(c.name) for c in table.primary_key)
    text = sql.SQL("SELECT concat_ws(' / ', {}), md5(t::text) FROM {} t").format(
        key, sql.Identifier(schema, table.name)
    )
    return dict(await (await conn.execute(text)).fetchall())


async def _parked(conn: Connection, projection: Projection, build: str) -> set[int]:
    rows = await conn.execute(
        "SELECT seq FROM dead_letters WHERE projection = %s AND build = %s AND status = 'parked'",
        (projection.name, build),
    )
    return {seq for (seq,) in await rows.fetchall()}
