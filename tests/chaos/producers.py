"""Producers send the operations of each lane in order, and repeat each with the same ids until it is acknowledged."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from turnlog.events.contracts import Event
from turnlog.events.errors import LogUnavailable, WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.publish import Appended

from .ledger import Ledger
from .workload import Operation, Workload

Gate = Callable[[], Awaitable[object]]


async def produce(log: Log, workload: Workload, ledger: Ledger, gate: Gate) -> None:
    """Sends all operations of all lanes. gate: each operation waits for it; it is closed while read models lag too far
    behind."""
    async with asyncio.TaskGroup() as group:
        for lane in workload.lanes:
            group.create_task(_lane(log, lane, ledger, gate))


async def _lane(log: Log, operations: Sequence[Operation], ledger: Ledger, gate: Gate) -> None:
    for operation in operations:
        await gate()
        results = await _until_acknowledged(log, operation, ledger)
        ledger.acknowledge(operation.events, results)
        if operation.is_repeated:
            ledger.repeated(results, await _until_acknowledged(log, operation, ledger))


async def _until_acknowledged(log: Log, operation: Operation, ledger: Ledger) -> list[Appended]:
    while True:
        try:
            return await _send(log, operation)
        except LogUnavailable:
            ledger.retries += 1
        except WrongExpectedVersion:  # a reactor or the agent wrote to the thread, so read its head again
            ledger.conflicts += 1


async def _send(log: Log, operation: Operation) -> list[Appended]:
    match operation.kind:
        case "group":
            return list(await asyncio.gather(*(log.append(event) for event in operation.events)))
        case "batch" | "mixed" | "ask":
            return await log.append_many(operation.events)
        case "expected":
            return [await _expecting(log, operation.events[0])]
    return [await log.append(operation.events[0])]


async def _expecting(log: Log, event: Event) -> Appended:
    return await log.append(event, expected=await log.thread_head(event.tenant, event.thread))
