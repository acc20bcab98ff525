"""Measures how many bytes both savers have stored, in their tables and in the log."""

from dataclasses import dataclass
from typing import Self

from turnlog.agent.runtime import Pool
from turnlog.events.log import Log
from turnlog.events.subjects import STREAM
from turnlog.projectors.engine.database import SCHEMA

STATE = ("messages", "checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_lists", "event_ids")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in bytes. state: turnlog's tables with the state of a graph. all: all tables of turnlog. theirs: the tables
    of AsyncPostgresSaver."""

    state: int
    all: int
    theirs: int
    log: int

    def __sub__(self, other: Self) -> "Sizes":
        return Sizes(self.state - other.state, self.all - other.all, self.theirs - other.theirs, self.log - other.log)


async def sizes(pool: Pool, log: Log) -> Sizes:
    """Returns the sizes of the database's tables after VACUUM."""
    async with pool.connection() as conn:
        await conn.execute("VACUUM FULL")
        rows = await conn.execute(
            "SELECT n.nspname, c.relname, pg_total_relation_size(c.oid)::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname IN (%s, 'public')",
            (SCHEMA,),
        )
        table_sizes = {(schema, name): size for schema, name, size in await rows.fetchall()}
    mine = {name: size for (schema, name), size in table_sizes.items() if schema == SCHEMA}
    theirs = {name: size for (schema, name), size in table_sizes.items() if schema == "public"}
    state = (await log.nc.jetstream().stream_info(STREAM)).state
    return Sizes(
        sum(mine[name] for name in STATE),
        sum(mine.values()),
        sum(size for name, size in theirs.items() if name.startswith("checkpoint")),
        state.bytes,
    )
