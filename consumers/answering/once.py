"""Answered once: one worker at a time is at a request, and the log, not a read model, says what it already has."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psycopg

from turnlog.consumers.answering.request import answer_id
from turnlog.consumers.inbox import Later
from turnlog.events.contracts import Event
from turnlog.events.log import Log
from turnlog.projectors.writer import Connection

BUSY_S = 2.0
PATIENT = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the log holds for a request. failures: attempts that ended with a model's error."""

    answered: bool
    failures: int


async def outcome(log: Log, request: Event, seq: int, most: int) -> Outcome:
    """Reads the ids that the thread got since the request; counts up to `most` failures. Raises GapInLog."""
    stored = await log.stored_ids([(request.tenant, request.thread)], seq)
    failures = sum(answer_id(request.id, failure_part(number)) in stored for number in range(1, most + 1))
    return Outcome(answer_id(request.id, "answer") in stored, failures)


def failure_part(number: int) -> str:
    """Names the number-th failure of a request, from 1."""
    return f"failure-{number}"


@contextlib.asynccontextmanager
async def alone(conn: Connection, request: Event, attempt: int) -> AsyncIterator[None]:
    """Holds the request while the block runs; a dead worker's hold ends with its connection. Raises Later.

    A worker that is slow to say that it lives has its request delivered to a second one; without this, both
    would pay for a model's answer of which one is thrown away. After PATIENT attempts the second one goes ahead
    all the same: a frozen holder must not keep somebody waiting.
    """
    key = f"answer/{request.id}"
    rows = await conn.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 2))", (key,))
    if await rows.fetchone() != (True,) and attempt <= PATIENT:
        raise Later(BUSY_S, f"another worker is at request {request.id}")
    try:
        yield
    finally:
        with contextlib.suppress(psycopg.Error):  # the connection is lost, and with it the hold
            await conn.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 2))", (key,))
