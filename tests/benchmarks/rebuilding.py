"""Measures a complete rebuild of the messages, compared with only reading the log and only copying the rows."""

from statistics import median

from tests.benchmarks.measuring import Row, interleaved, per_second, ratio, seconds
from tests.benchmarks.reading import raw_read
from tests.benchmarks.stand import Stand, fill, project
from turnlog.events.log import Log
from turnlog.events.stored import recorded
from turnlog.projectors.engine.changes import Row as TableRow
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.messages import COLUMNS, MESSAGES, row
from turnlog.projectors.rebuild.rebuild import rebuild


async def measure(stand: Stand) -> list[Row]:
    async with (
        stand.empty_log() as log,
        stand.fresh_database() as url,
        await connect(url) as conn,
    ):
        count = await fill(log, stand.conversations.events(stand.sized(50_000, 10_000)))
        await project(log, url, conn, (MESSAGES,))
        rows = await _rows(log, count)

        async def ours() -> float:
            return count / await seconds(rebuild(log, url, MESSAGES))

        async def read() -> float:
            return count / await raw_read(log, count)

        async def copy() -> float:
            return count / await _raw_copy(conn, rows)

        mine, reads, copies = await interleaved(stand.rounds, ours, read, copy)
    floor = [min(pair) for pair in zip(reads, copies, strict=True)]
    factor, spread = ratio(mine, floor)
    method = (
        f"{count:,} events ({stand.conversations.described}), from the call to the switched tables, key included. "
        f"Floor: the slower of the raw read ({per_second(median(reads))}) and one COPY of the same rows into a table "
        f"without a key ({per_second(median(copies))})."
    )
    return [
        Row(
            "rebuild of messages",
            per_second(median(mine)),
            per_second(median(floor)),
            factor,
            spread,
            (">=", 0.5),
            method,
        )
    ]


async def _rows(log: Log, count: int) -> list[TableRow]:
    rows: list[TableRow] = []
    async with log.reader(0, 1) as reader:
        while len(rows) < count:
            rows += [row(recorded(stored)) for stored in await reader.batch()]
    return rows


async def _raw_copy(conn: Connection, rows: list[TableRow]) -> float:
    await conn.execute("DROP TABLE IF EXISTS raw_copy")
    await conn.execute("CREATE TABLE raw_copy (LIKE messages)")
    return await seconds(_copy(conn, rows))


async def _copy(conn: Connection, rows: list[TableRow]) -> None:
    text = f"COPY raw_copy ({', '.join(COLUMNS)}) FROM STDIN".encode()
    async with conn.cursor() as cursor, cursor.copy(text) as copy:
        for values in rows:
            await copy.write_row(values)
